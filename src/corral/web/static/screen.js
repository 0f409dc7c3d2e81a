// A read-only terminal: no input, and links are not clickable.

globalThis.openScreen = (box, options = {}) => {
  const style = getComputedStyle(document.documentElement);
  const terminal = new Terminal({
    convertEol: true,
    cursorBlink: false,
    cursorInactiveStyle: "none",
    disableStdin: true,
    fontFamily: style.getPropertyValue("--mono"),
    minimumContrastRatio: 3,
    fontSize: 12.5,
    lineHeight: 1.25,
    scrollback: 20_000,
    screenReaderMode: true,
    theme: {
      background: "#16181b", foreground: "#d9d6cf", cursor: "#d9d6cf", selectionBackground: "#4a4f57",
      black: "#2a2d31", red: "#f08b80", green: "#7fcf9f", yellow: "#e8c06a", blue: "#86b3e0",
      magenta: "#d3a1d8", cyan: "#7fc8c8", white: "#d9d6cf", brightBlack: "#77746d", brightRed: "#ffab9f",
      brightGreen: "#a0e3bb", brightYellow: "#f5d68c", brightBlue: "#aecdf0", brightMagenta: "#e6c1ea",
      brightCyan: "#a4e0e0", brightWhite: "#ffffff",
    },
    // Links in output are untrusted: do nothing.
    linkHandler: { activate() {}, allowNonHttpProtocols: false },
    ...options,
  });
  terminal.open(box);

  const largest = terminal.options.fontSize;
  let size = null; // size of the run's terminal; null: fit the box

  function fit() {
    const cell = terminal._core?._renderService?.dimensions?.css?.cell;
    if (!cell?.width || !cell.height || !box.clientWidth) return; // hidden or removed
    const room = getComputedStyle(box);
    const width = box.clientWidth - parseFloat(room.paddingLeft) - parseFloat(room.paddingRight) - 14;
    if (size) {
      const wanted = (terminal.options.fontSize * width) / (size.columns * cell.width);
      terminal.options.fontSize = Math.max(8, Math.min(largest, Math.floor(wanted * 4) / 4));
      terminal.resize(size.columns, size.rows);
      return;
    }
    const height = box.clientHeight - parseFloat(room.paddingTop) - parseFloat(room.paddingBottom);
    terminal.resize(Math.max(20, Math.floor(width / cell.width)), Math.max(5, Math.floor(height / cell.height)));
  }
  fit();
  new ResizeObserver(fit).observe(box);
  // Keep the size that the program drew for: another one would break its lines.
  terminal.keepSize = (rows, columns) => {
    size = { rows, columns };
    box.classList.add("sized");
    fit();
  };
  return terminal;
};

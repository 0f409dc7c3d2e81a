// The terminal on a run's page: it plays what the run wrote, and what it writes now.

const box = document.getElementById("terminal");
const note = document.getElementById("terminal-note");
const FONT = getComputedStyle(document.documentElement).getPropertyValue("--mono");

const terminal = new Terminal({
  convertEol: box.dataset.mode !== "pty",
  cursorBlink: false,
  cursorInactiveStyle: "none",
  disableStdin: true,
  fontFamily: FONT,
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
  // A link that a program printed leads nowhere: nobody vouches for it.
  linkHandler: { activate() {}, allowNonHttpProtocols: false },
});
terminal.open(box);

function fit() {
  const cell = terminal._core?._renderService?.dimensions?.css?.cell;
  if (!cell?.width || !cell.height) return;
  const style = getComputedStyle(box);
  const width = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 14;
  const height = box.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
  terminal.resize(Math.max(20, Math.floor(width / cell.width)), Math.max(5, Math.floor(height / cell.height)));
}
fit();
new ResizeObserver(fit).observe(box);

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const source = new EventSource(box.dataset.src);
let told = false;

source.addEventListener("open", () => {
  if (told) terminal.reset(); // such a stream begins anew
  note.textContent = "";
});
source.addEventListener("left_out", (event) => {
  note.textContent = `${Number(event.data).toLocaleString()} earlier bytes are left out; download all of it`;
});
source.addEventListener("output", (event) => {
  terminal.write(bytes(event.data));
  box.dataset.written = "1";
});
source.addEventListener("told", (event) => {
  told = true;
  terminal.write(new TextDecoder().decode(bytes(event.data)).replaceAll("\n", "\r\n"));
  box.dataset.written = "1";
});
source.addEventListener("over", (event) => {
  source.close();
  const why = event.data ? new TextDecoder().decode(bytes(event.data)) : "";
  note.textContent = why || (box.dataset.written ? "that was all" : "it wrote nothing");
});
source.addEventListener("error", () => {
  if (source.readyState !== EventSource.CLOSED) note.textContent = "connecting again";
});
addEventListener("pagehide", () => source.close());

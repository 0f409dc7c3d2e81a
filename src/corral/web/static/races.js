// The terminals of a round's attempts: one stream for all of them, and a screen for each run.

const screens = new Map();
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const words = (text) => new TextDecoder().decode(bytes(text));
let source = null;
let address = "";

function screenOf(run) {
  const known = screens.get(run);
  if (known?.section.isConnected) return known;
  known?.terminal.dispose();
  screens.delete(run);
  const section = document.getElementById(`screen-${run}`);
  if (!section) return null;
  const terminal = openScreen(section.querySelector(".mini"), { fontSize: 11, scrollback: 5_000, screenReaderMode: false });
  const made = { section, terminal, note: section.querySelector(".said"), wrote: false };
  screens.set(run, made);
  return made;
}

// What comes before the page shows its attempt waits for that.
const early = new Map();
const MOST_EARLY = 2_000;

function hand(run, act) {
  const screen = screenOf(run);
  if (screen) return act(screen);
  const line = early.get(run) || [];
  early.set(run, line.slice(-MOST_EARLY).concat([act]));
}

function follow() {
  const list = document.getElementById("attempts");
  if (!list) return;
  address = list.dataset.screens;
  source = new EventSource(address);
  const hear = (name, act) => source.addEventListener(name, (event) => {
    const [run, data] = event.data.split(" ");
    hand(run, (screen) => act(screen, data));
  });
  hear("begin", (screen) => {
    screen.terminal.reset(); // the stream may begin anew
    screen.wrote = false;
    delete screen.section.dataset.empty;
    screen.note.textContent = "";
  });
  hear("size", (screen, data) => screen.terminal.keepSize(...data.split("x").map(Number)));
  hear("left_out", (screen, data) => {
    screen.note.textContent = `${Number(data).toLocaleString()} earlier bytes are left out`;
  });
  hear("output", (screen, data) => write(screen, bytes(data)));
  hear("told", (screen, data) => write(screen, words(data).replaceAll("\n", "\r\n")));
  hear("over", (screen, data) => {
    screen.note.textContent = data ? words(data) : screen.wrote ? "that was all" : "it wrote nothing";
    if (!screen.wrote) screen.section.dataset.empty = "1";
  });
  source.addEventListener("all_over", () => source.close());
}

function write(screen, text) {
  screen.terminal.write(text);
  screen.wrote = true;
  screen.section.dataset.written = "1";
}

// A part that was fetched anew may show another round, or a new try of an attempt.
function look() {
  const list = document.getElementById("attempts");
  const shown = [...document.querySelectorAll(".screen[data-run]")];
  const strange = shown.some((section) => !screens.get(section.dataset.run)?.section.isConnected);
  for (const { dataset: { run } } of shown) {
    const screen = screenOf(run);
    for (const act of early.get(run) || []) act(screen);
    early.delete(run);
  }
  if (!list || (list.dataset.screens === address && !strange)) return;
  if (list.dataset.screens !== address || source?.readyState === EventSource.CLOSED) {
    source?.close();
    follow();
  }
}

follow();
document.addEventListener("htmx:after:swap", look);
addEventListener("pagehide", () => source?.close());

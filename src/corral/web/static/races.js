// The terminals of a round's attempts: one stream for all, one screen per run.

const screens = new Map();
const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const decodeText = (text) => new TextDecoder().decode(bytes(text));
let source = null;
let address = "";

function screenOf(run) {
  const existing = screens.get(run);
  if (existing?.section.isConnected) return existing;
  existing?.terminal.dispose();
  screens.delete(run);
  const section = document.getElementById(`screen-${run}`);
  if (!section) return null;
  const terminal = openScreen(section.querySelector(".small-terminal"), { fontSize: 11, scrollback: 5_000, screenReaderMode: false });
  const screen = { section, terminal, note: section.querySelector(".screen-note"), hasOutput: false };
  screens.set(run, screen);
  return screen;
}

// Events of a run are queued until the page shows its attempt.
const queuedEvents = new Map();
const MAX_QUEUED_EVENTS = 2_000;

function dispatch(run, act) {
  const screen = screenOf(run);
  if (screen) return act(screen);
  const queue = queuedEvents.get(run) || [];
  queuedEvents.set(run, queue.slice(-MAX_QUEUED_EVENTS).concat([act]));
}

function follow() {
  const list = document.getElementById("attempts");
  if (!list) return;
  address = list.dataset.screens;
  source = new EventSource(address);
  const on = (name, act) => source.addEventListener(name, (event) => {
    const [run, data] = event.data.split(" ");
    dispatch(run, (screen) => act(screen, data));
  });
  on("begin", (screen) => {
    screen.terminal.reset(); // the stream restarts after a reconnect
    screen.hasOutput = false;
    delete screen.section.dataset.empty;
    screen.note.textContent = "";
  });
  on("size", (screen, data) => screen.terminal.keepSize(...data.split("x").map(Number)));
  on("truncated", (screen, data) => {
    screen.note.textContent = `${Number(data).toLocaleString()} earlier bytes not shown`;
  });
  on("output", (screen, data) => write(screen, bytes(data)));
  on("text", (screen, data) => write(screen, decodeText(data).replaceAll("\n", "\r\n")));
  on("end", (screen, data) => {
    screen.note.textContent = data ? decodeText(data) : screen.hasOutput ? "end of output" : "no output";
    if (!screen.hasOutput) screen.section.dataset.empty = "1";
  });
  source.addEventListener("end_of_round", () => source.close());
}

function write(screen, text) {
  screen.terminal.write(text);
  screen.hasOutput = true;
  screen.section.dataset.written = "1";
}

// A reloaded fragment may show another round, or a new run of an attempt.
function attachScreens() {
  const list = document.getElementById("attempts");
  const shown = [...document.querySelectorAll(".screen[data-run]")];
  const hasUnknown = shown.some((section) => !screens.get(section.dataset.run)?.section.isConnected);
  for (const { dataset: { run } } of shown) {
    const screen = screenOf(run);
    for (const act of queuedEvents.get(run) || []) act(screen);
    queuedEvents.delete(run);
  }
  if (!list || (list.dataset.screens === address && !hasUnknown)) return;
  if (list.dataset.screens !== address || source?.readyState === EventSource.CLOSED) {
    source?.close();
    follow();
  }
}

follow();
document.addEventListener("htmx:after:swap", attachScreens);
addEventListener("pagehide", () => source?.close());

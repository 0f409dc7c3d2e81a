// The terminal of a run's page: output so far, then live output.

const box = document.getElementById("terminal");
const note = document.getElementById("terminal-note");
const terminal = openScreen(box, { convertEol: box.dataset.mode !== "pty" });
const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const source = new EventSource(box.dataset.src);
let isStructured = false;

source.addEventListener("open", () => {
  if (isStructured) terminal.reset(); // this stream restarts from the beginning
  note.textContent = "";
});
source.addEventListener("size", (event) => terminal.keepSize(...event.data.split("x").map(Number)));
source.addEventListener("truncated", (event) => {
  note.textContent = `${Number(event.data).toLocaleString()} earlier bytes not shown; download the full output`;
});
source.addEventListener("output", (event) => {
  terminal.write(bytes(event.data));
  box.dataset.written = "1";
});
source.addEventListener("text", (event) => {
  isStructured = true;
  terminal.write(new TextDecoder().decode(bytes(event.data)).replaceAll("\n", "\r\n"));
  box.dataset.written = "1";
});
source.addEventListener("end", (event) => {
  source.close();
  const error = event.data ? new TextDecoder().decode(bytes(event.data)) : "";
  note.textContent = error || (box.dataset.written ? "end of output" : "no output");
});
source.addEventListener("error", () => {
  if (source.readyState !== EventSource.CLOSED) note.textContent = "reconnecting";
});
addEventListener("pagehide", () => source.close());

// The terminal on a run's page: it plays what the run wrote, and what it writes now.

const box = document.getElementById("terminal");
const note = document.getElementById("terminal-note");
const terminal = openScreen(box, { convertEol: box.dataset.mode !== "pty" });
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const source = new EventSource(box.dataset.src);
let told = false;

source.addEventListener("open", () => {
  if (told) terminal.reset(); // such a stream begins anew
  note.textContent = "";
});
source.addEventListener("size", (event) => terminal.keepSize(...event.data.split("x").map(Number)));
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

// A talk: Enter sends, and what comes last is in sight unless somebody reads further up.

const form = document.getElementById("say");
const NEAR = 160;

function toEnd() {
  const page = document.scrollingElement;
  page.scrollTop = page.scrollHeight;
}

function nearEnd() {
  const page = document.scrollingElement;
  return page.scrollHeight - page.clientHeight - page.scrollTop < NEAR;
}

if (form) {
  const field = form.querySelector("textarea");
  field.addEventListener("keydown", (key) => {
    if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
    key.preventDefault();
    if (field.value.trim()) form.requestSubmit();
  });
  let follows = true;
  document.addEventListener("htmx:before:swap", () => { follows = nearEnd(); });
  document.addEventListener("htmx:after:swap", () => { if (follows) toEnd(); });
  document.addEventListener("corral:done", () => { follows = true; toEnd(); });
  toEnd();
}

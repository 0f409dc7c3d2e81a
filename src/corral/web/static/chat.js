// Chat: Enter sends, and the page follows new messages unless the user has scrolled up.

const form = document.getElementById("message-form");
const NEAR = 160;

function scrollToEnd() {
  const page = document.scrollingElement;
  page.scrollTop = page.scrollHeight;
}

function isNearEnd() {
  const page = document.scrollingElement;
  return page.scrollHeight - page.clientHeight - page.scrollTop < NEAR;
}

if (form) {
  const field = form.querySelector("textarea");
  const files = form.querySelector("[type=file]");
  field.addEventListener("keydown", (key) => {
    if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
    key.preventDefault();
    if (field.value.trim() || files.files.length) form.requestSubmit();
  });
  // Report files that the server would refuse before sending them.
  const check = () => {
    const size = [...files.files].reduce((sum, file) => sum + file.size, 0);
    const maxBytes = Number(files.dataset.maxBytes);
    files.setCustomValidity(size > maxBytes ? `The files exceed ${Math.floor(maxBytes / 1024 / 1024)} MiB. Select fewer or smaller files.` : "");
    field.required = !files.files.length;
    files.reportValidity();
  };
  files.addEventListener("change", check);
  form.addEventListener("reset", () => setTimeout(check));
  field.required = true;
  field.addEventListener("paste", (pasted) => {
    if (!pasted.clipboardData?.files.length) return;
    files.files = pasted.clipboardData.files;
    check();
  });
  let isFollowing = true;
  document.addEventListener("htmx:before:swap", () => { isFollowing = isNearEnd(); });
  document.addEventListener("htmx:after:swap", () => { if (isFollowing) scrollToEnd(); });
  document.addEventListener("corral:done", () => { isFollowing = true; scrollToEnd(); });
  scrollToEnd();
}

// Live updates, relative times, keyboard shortcuts and dialogs of all pages.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- relative times, from the store's clock: the clock of this machine may differ ------------------

const clockOffset = Date.now() - Number(document.documentElement.dataset.now || Date.now());
const now = () => Date.now() - clockOffset;
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000]];

function formatAge(at) {
  const distance = now() - at;
  for (const [unit, size] of UNITS) {
    if (Math.abs(distance) >= size) {
      const text = `${Math.floor(Math.abs(distance) / size)} ${unit}`;
      return distance > 0 ? `${text} ago` : `in ${text}`;
    }
  }
  return "now";
}

function formatDuration(ms) {
  for (let n = 0; n < UNITS.length; n++) {
    const [unit, size] = UNITS[n];
    if (ms >= size) {
      const rest = n + 1 < UNITS.length ? Math.floor((ms % size) / UNITS[n + 1][1]) : 0;
      return `${Math.floor(ms / size)} ${unit}` + (rest ? ` ${rest} ${UNITS[n + 1][0]}` : "");
    }
  }
  return `${Math.max(Math.round(ms), 0)} ms`;
}

function updateTimes() {
  for (const time of $$("time[data-at]")) {
    const text = formatAge(Number(time.dataset.at));
    if (time.textContent !== text) time.textContent = text;
    if (!time.dateTime) {
      const at = new Date(Number(time.dataset.at));
      time.dateTime = at.toISOString();
      time.title = at.toLocaleString();
    }
  }
  for (const span of $$("[data-since]")) {
    const text = formatDuration(now() - Number(span.dataset.since));
    if (span.textContent !== text) span.textContent = text;
  }
}
setInterval(updateTimes, 1_000);
document.addEventListener("htmx:after:swap", updateTimes);
updateTimes();

// -- event feed: an event marks the fragments that it concerns, and htmx reloads them -------------

const SHORTEST_PAUSE = 150;

class Part {
  constructor(element) {
    this.element = element;
    this.kinds = new Set((element.dataset.kinds || "").split(",").filter(Boolean));
    this.subject = element.dataset.subject;
    this.isFetching = false;
    this.isStale = false;
    this.fetchedAt = 0;
    element.addEventListener("htmx:finally:request", () => this.finish());
  }

  concerns(event) {
    if (!this.kinds.has("*") && !this.kinds.has(event.kind)) return false;
    const data = event.data || {};
    return !this.subject || event.kind === "charge" || event.kind === "session" ||
      event.subject === this.subject || data.run === this.subject;
  }

  fetch() {
    if (this.isFetching) {
      this.isStale = true;
      return;
    }
    this.isFetching = true;
    this.isStale = false;
    const pause = Math.max(0, this.fetchedAt + SHORTEST_PAUSE - Date.now());
    setTimeout(() => {
      this.fetchedAt = Date.now();
      htmx.trigger(this.element, "corral:changed");
    }, pause);
  }

  finish() {
    this.isFetching = false;
    if (this.isStale) this.fetch();
  }
}

const parts = $$(".live").filter((element) => element.dataset.kinds).map((element) => new Part(element));
const feed = $("#feed");

function setFeedState(state, text) {
  if (!feed || feed.dataset.state === state) return;
  feed.dataset.state = state;
  $("span", feed).textContent = text;
}

// Starts from the cursor of the page, so that events since it was rendered are not missed.
let cursor = feed?.dataset.cursor || "";

function follow() {
  const source = new EventSource(cursor ? `/api/events?after=${encodeURIComponent(cursor)}` : "/api/events");
  let wasLost = false;
  const onEvent = (message) => {
    cursor = message.lastEventId || cursor;
    let event;
    try {
      event = JSON.parse(message.data);
    } catch {
      return;
    }
    for (const part of parts) if (part.concerns(event)) part.fetch();
  };
  source.onopen = () => {
    setFeedState("live", "live");
    // The feed replays events that were missed while disconnected, but the page may be older.
    if (wasLost) for (const part of parts) part.fetch();
    wasLost = false;
  };
  source.onmessage = onEvent;
  source.addEventListener("event", onEvent);
  source.onerror = () => {
    wasLost = true;
    setFeedState("lost", "disconnected");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 3_000);
  };
  addEventListener("pagehide", () => source.close());
}
if (feed) follow();
addEventListener("pageshow", (shown) => {
  if (shown.persisted) location.reload();
});

// -- dialogs and notices --------------------------------------------------------------------------

function open(button) {
  const dialog = document.getElementById(button.dataset.opens);
  if (!dialog) return;
  for (const [name, value] of Object.entries(button.dataset)) {
    if (name.startsWith("fill")) {
      const field = $(`[name="${name.slice(4).toLowerCase()}"]`, dialog);
      if (field) field.value = value;
    }
  }
  const answer = $(".answer", dialog);
  if (answer) answer.replaceChildren();
  dialog.showModal();
  $("input:not([type=hidden]):not([readonly]), textarea, select", dialog)?.focus();
}

document.addEventListener("click", (click) => {
  const opener = click.target.closest("[data-opens]");
  if (opener) open(opener);
  if (click.target.closest("[data-closes]") || click.target.matches("dialog")) {
    click.target.closest("dialog")?.close();
  }
  click.target.closest("[data-dismiss]")?.closest(".notice").remove();
});
for (const button of $$("[data-open-now]")) open(button);

document.addEventListener("corral:done", (done) => {
  const form = done.target.closest?.("form") || done.target;
  for (const dialog of $$("dialog[open]")) dialog.close();
  if (form instanceof HTMLFormElement) {
    form.reset();
    $(".answer", form)?.replaceChildren();
  }
  for (const part of parts) part.fetch();
  const notices = $$("#notices .notice");
  setTimeout(() => notices.forEach((notice) => notice.remove()), 8_000);
});

// -- keyboard shortcuts ---------------------------------------------------------------------------

let previousKey = "";

function step(by) {
  const rows = $$("main .open").filter((link) => link.offsetParent);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (key) => {
  const typing = key.target.closest("input, textarea, select, .xterm");
  if (key.key === "Escape" && typing) key.target.blur();
  if (typing || key.ctrlKey || key.metaKey || key.altKey || $("dialog[open]")) return;
  const link = previousKey === "g" && $(`nav [data-key="${CSS.escape(key.key)}"]`);
  previousKey = key.key;
  if (link) location.href = link.href;
  else if (key.key === "j") step(1);
  else if (key.key === "k") step(-1);
  else if (key.key === "?") $("#keys")?.showModal();
  else if (key.key === "/") {
    key.preventDefault();
    const field = $("main [type=search]") || $("#search-field");
    if (field.offsetParent) field.focus();
    else location.href = "/search";
  }
});

// -- dark mode ------------------------------------------------------------------------------------

$("#theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `corral_theme=${root.dataset.theme}; Path=/; SameSite=Strict; Max-Age=31536000`;
  document.dispatchEvent(new Event("corral:theme"));
});

// Drag and drop of cards on the task board. The legal actions are the options of the card's menu,
// as the server rendered them.

const $ = (selector, within = document) => within.querySelector(selector);

let dragged = null;

const optionsFor = (card, column) =>
  [...card.querySelectorAll("option[data-to]")].filter((option) =>
    option.dataset.to.split(" ").includes(column.dataset.column));

const takes = (column) =>
  dragged && !column.contains(dragged) && optionsFor(dragged, column).length > 0;

function ask(card, option) {
  const dialog = document.getElementById(option.dataset.asks);
  $("[name=id]", dialog).value = card.dataset.id;
  const verb = $("[name=verb]", dialog);
  if (verb.options) {
    for (const each of verb.options) {
      each.disabled = !$(`option[value="${CSS.escape(each.value)}"]`, $(".move", card));
    }
    verb.value = option.value;
  }
  $(".answer", dialog).replaceChildren();
  dialog.showModal();
}

document.addEventListener("dragstart", (drag) => {
  const card = drag.target.closest?.(".task[draggable=true]");
  if (!card) return;
  dragged = card;
  drag.dataTransfer.effectAllowed = "move";
  drag.dataTransfer.setData("text/plain", card.dataset.id);
  for (const column of document.querySelectorAll(".column")) {
    column.classList.toggle("takes", takes(column));
  }
});

document.addEventListener("dragover", (drag) => {
  const column = drag.target.closest?.(".column");
  if (column && takes(column)) drag.preventDefault();
});

document.addEventListener("drop", (drop) => {
  const column = drop.target.closest?.(".column");
  if (!column || !takes(column)) return;
  drop.preventDefault();
  // The board may have been reloaded since: use the current card.
  const card = document.getElementById(dragged.dataset.id);
  const option = card && optionsFor(card, column)[0];
  if (!option) return;
  if (option.dataset.asks) return ask(card, option);
  option.selected = true;
  $(".move", card).requestSubmit();
});

document.addEventListener("dragend", () => {
  dragged = null;
  for (const column of document.querySelectorAll(".column.takes")) column.classList.remove("takes");
});

// In the capture phase, before htmx submits: actions that need a reason open a dialog first.
document.addEventListener("submit", (submit) => {
  const form = submit.target.closest(".move");
  const option = form && $("[name=verb]", form).selectedOptions[0];
  if (!option?.dataset.asks) return;
  submit.preventDefault();
  submit.stopImmediatePropagation();
  ask(form.closest(".task"), option);
}, true);

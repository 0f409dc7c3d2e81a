// Drag and drop of cards on the task board. The legal actions are the options of the card's menu,
// as the server rendered them.

const $ = (selector, within = document) => within.querySelector(selector);

let dragged = null;

const optionsFor = (card, column) =>
  [...card.querySelectorAll("option[data-to]")].filter((option) =>
    option.dataset.to.split(" ").includes(column.dataset.column));

const acceptsDrop = (column) =>
  dragged && !column.contains(dragged) && optionsFor(dragged, column).length > 0;

function openDialog(card, option) {
  const dialog = document.getElementById(option.dataset.dialog);
  $("[name=id]", dialog).value = card.dataset.id;
  const verb = $("[name=verb]", dialog);
  if (verb.options) {
    for (const choice of verb.options) {
      choice.disabled = !$(`option[value="${CSS.escape(choice.value)}"]`, $(".move", card));
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
    column.classList.toggle("drop-target", acceptsDrop(column));
  }
});

document.addEventListener("dragover", (drag) => {
  const column = drag.target.closest?.(".column");
  if (column && acceptsDrop(column)) drag.preventDefault();
});

document.addEventListener("drop", (drop) => {
  const column = drop.target.closest?.(".column");
  if (!column || !acceptsDrop(column)) return;
  drop.preventDefault();
  // The board may have been reloaded since: use the current card.
  const card = document.getElementById(dragged.dataset.id);
  const option = card && optionsFor(card, column)[0];
  if (!option) return;
  if (option.dataset.dialog) return openDialog(card, option);
  option.selected = true;
  $(".move", card).requestSubmit();
});

document.addEventListener("dragend", () => {
  dragged = null;
  for (const column of document.querySelectorAll(".column.drop-target")) column.classList.remove("drop-target");
});

// In the capture phase, before htmx submits: actions that need a reason open a dialog first.
document.addEventListener("submit", (submit) => {
  const form = submit.target.closest(".move");
  const option = form && $("[name=verb]", form).selectedOptions[0];
  if (!option?.dataset.dialog) return;
  submit.preventDefault();
  submit.stopImmediatePropagation();
  openDialog(form.closest(".task"), option);
}, true);

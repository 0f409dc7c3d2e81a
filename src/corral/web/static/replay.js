// The slider of the board history: shows its time while it is moved.

const form = document.querySelector("form.replay");
const time = form?.querySelector("[name=time]");

form?.querySelector("[name=at]").addEventListener("input", (moved) => {
  time.value = ""; // the input that was changed last wins
  const label = document.querySelector("#shown-at");
  if (label) label.textContent = new Date(Number(moved.target.value)).toISOString().replace("T", " ").slice(0, 19) + " UTC";
});

// The slider of the timeline: it says which moment it stands for while it is moved.

const form = document.querySelector("form.replay");
const time = form?.querySelector("[name=time]");

form?.querySelector("[name=at]").addEventListener("input", (moved) => {
  time.value = ""; // of the two, what was touched last counts
  const told = document.querySelector("#shown-at");
  if (told) told.textContent = new Date(Number(moved.target.value)).toISOString().replace("T", " ").slice(0, 19) + " UTC";
});

// Examples and ticks are events of the page. The focus stays on a passage that was ticked.
let ticked = "";
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-example]");
  if (button) trigger("example", { index: Number(button.dataset.example) });
});
element.addEventListener("change", (event) => {
  if (!event.target.dataset.passage) return;
  ticked = event.target.id;
  trigger("tick", { position: Number(event.target.dataset.passage) });
});
watch("value", () => {
  if (ticked) document.getElementById(ticked)?.focus();
  ticked = "";
});

"use strict";
// Counts the proof-reader's verdicts and lists the wrong labels. They live as long as the page is open.
const labels = [...document.querySelectorAll(".label")];
const bar = document.getElementById("bar");

function refresh() {
  const given = labels.filter((label) => label.dataset.verdict);
  const wrong = given.filter((label) => label.dataset.verdict === "wrong");
  document.getElementById("count").textContent =
    `${given.length} of ${labels.length} labels read, ${wrong.length} wrong` +
    (given.length ? ` (${(100 * (1 - wrong.length / given.length)).toFixed(1)} % right)` : "");
  document.getElementById("wrong").textContent = wrong.map((label) => label.dataset.name).join("\n") || "none yet";
  for (const label of labels) {
    label.hidden = (bar.elements.open.checked && Boolean(label.dataset.verdict)) ||
      (bar.elements.relevant.checked && label.classList.contains("irrelevant"));
  }
  for (const article of document.querySelectorAll("article")) {
    article.hidden = [...article.querySelectorAll(".label")].every((label) => label.hidden);
  }
}

document.querySelector("main").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const label = button.closest(".label");
  label.dataset.verdict = label.dataset.verdict === button.value ? "" : button.value;
  for (const other of label.querySelectorAll("button")) {
    other.setAttribute("aria-pressed", String(other.value === label.dataset.verdict));
  }
  refresh();
});
bar.addEventListener("change", refresh);
bar.addEventListener("submit", (event) => event.preventDefault());
refresh();

"use strict";
// The sliders: mR²AG's choice among the passages that it answered from, as `choose_again` of pipelines/mr2ag.py.
const sliders = document.getElementById("again");
const SLIDERS = ["gamma", "threshold", "entries"];
let decided = new Map();  // by question: the decision at the sliders, if it differs from the run's

function decide(trace, wanted) {
  if (trace.gate !== null && trace.gate >= wanted.gamma !== trace.retrieved) return null;  // that answer is not stored
  if (!trace.again) return trace;
  const ret = entryScores(trace.again.ret.slice(0, wanted.entries));
  const read = trace.again.read.filter(([, entry]) => entry < wanted.entries);
  const relevant = read.filter(([, , rel, irr]) => rel * (1 - wanted.threshold) > irr * wanted.threshold);
  const rows = relevant.length ? relevant : read;
  const [a, b, c] = data.again.exponents;
  const products = rows.map(([, entry, rel, , ans]) =>
    Math.max(0, ret[entry]) ** a * Math.max(0, rel) ** b * Math.max(0, ans) ** c);
  const votes = new Map();
  rows.forEach((row, i) => votes.set(row[6] ?? i, (votes.get(row[6] ?? i) ?? 0) + products[i]));
  if (!rows.length) return null;
  const key = (i) => [votes.get(rows[i][6] ?? i), products[i], rows[i][2]];
  const best = rows.reduce((first, _, i) => (compare(key(i), key(first)) > 0 ? i : first), 0);
  const [position, , , , , correct] = rows[best];
  return { answer: readAt(trace, position).answer, correct, chosen: position, error: "" };
}

function entryScores(similarities) {
  if (!data.again.temperature) return similarities;
  const highest = Math.max(...similarities);
  const weights = similarities.map((similarity) => Math.exp((similarity - highest) / data.again.temperature));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

// The metric's overall score of pairs [question, worth]: InfoSeek's is the harmonic mean of two halves.
function overall(pairs) {
  const mean = (rows) => rows.reduce((sum, [, worth]) => sum + worth, 0) / rows.length;
  const [first, second] = [1, 0].map((part) => pairs.filter(([question]) => question.part === part));
  if (!first.length || !second.length) return mean(pairs);
  const [x, y] = [mean(first), mean(second)];
  return x + y ? (2 * x * y) / (x + y) : 0;
}

function redecide() {
  const wanted = Object.fromEntries(SLIDERS.map((name) => [name, sliders.elements[name].valueAsNumber]));
  for (const name of SLIDERS) sliders.elements[name].nextElementSibling.value = wanted[name];
  const rows = data.questions.filter((question) => question.traces[data.again.pipeline]).map((question) => {
    const then = question.traces[data.again.pipeline];
    return { question, then, now: decide(then, wanted) };
  });
  const changed = rows.filter(({ then, now }) => !now || now.answer !== then.answer || now.chosen !== then.chosen);
  decided = new Map(changed.map(({ question, now }) => [question, now]));
  const scored = rows.filter(({ question }) => question.part !== undefined);
  const score = (worth) => (100 * overall(scored.map((row) => [row.question, worth(row)]))).toFixed(1);
  const count = (holds) => scored.filter(({ then, now }) => now && holds(now.correct, then.correct)).length;
  const unknown = scored.filter(({ now }) => now === null).length;
  const gated = rows.filter(({ then }) => then.gate !== null && then.lookup !== null);
  const right = gated.filter(({ then }) => (then.gate >= wanted.gamma) === then.lookup).length;
  document.getElementById("decided").textContent =
    `Score ${score(({ then }) => then.correct)} → ${score(({ now }) => now?.correct ?? 0)}`
    + (unknown ? ` to ${score(({ now }) => now?.correct ?? 1)}` : "")
    + ` %. Answers that become right: ${count((now, then) => now > then)}, wrong: ${count((now, then) => now < then)}`
    + (unknown ? `, not stored: ${unknown}.` : ".")
    + (gated.length ? ` The gate is right on ${percent(right / gated.length)} of the questions.` : "");
  if (form.elements.outcome.value === CHANGED) refresh();
  else for (const node of list.children) showAgain(node);
}

function showAgain(node) {
  const now = form.elements.pipeline.value === data.again?.pipeline ? decided.get(node.question) : undefined;
  const line = now === undefined ? [] : ["at the sliders: ", now ? answerLine(now) : "an answer that is not stored"];
  node.querySelector(".again").replaceChildren(...line);
}

function startSliders() {
  const step = Number.isInteger(Number((100 * data.gamma).toFixed(9))) ? 0.01 : "any";
  const { least, threshold, entries } = data.again;
  const range = {
    gamma: [0, 1, step, data.gamma], threshold: [least, 1, 0.01, threshold], entries: [1, entries, 1, entries],
  };
  for (const [name, [min, max, step, value]] of Object.entries(range)) {
    Object.assign(sliders.elements[name], { min, max, step, defaultValue: String(value) });
  }
  document.getElementById("sliders").hidden = false;
  document.getElementById("least").hidden = !least;
  sliders.addEventListener("input", redecide);
  sliders.addEventListener("reset", () => setTimeout(redecide));
  redecide();
}

for (const question of data.questions) {
  for (const [name, trace] of Object.entries(question.traces)) question.traces[name] = { ...TRACE, ...trace };
}
options("pipeline", data.pipelines, "");
options("split", [...new Set(data.questions.map((question) => question.split))].sort(), "all");
options("kind", [...new Set(data.questions.map(kind))].sort(), "all");
const traces = data.questions.flatMap((question) => Object.values(question.traces));
const happened = new Set(traces.map((trace) => trace.outcome));
options("outcome", [...Object.keys(filters).filter((name) => name && (data.again || name !== CHANGED)),
  ...Object.entries(data.outcomes).filter(([key]) => happened.has(key))], "all");
form.addEventListener("input", () => { only = ""; refresh(); });
form.addEventListener("submit", (event) => event.preventDefault());
refresh();
if (data.again) startSliders();
window.addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {  // a second click on a link doesn't change the address
  if (event.target.closest("a")?.getAttribute("href") === location.hash) follow();
});
follow();

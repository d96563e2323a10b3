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
  let best = -1;
  rows.forEach((row, i) => {
    const key = (place) => [votes.get(rows[place][6] ?? place), products[place], rows[place][2]];
    if (best < 0 || compare(key(i), key(best)) > 0) best = i;
  });
  if (best < 0) return null;
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

// The metric's overall score of a worth a question: InfoSeek's is the harmonic mean of two halves.
function overall(worths) {
  const mean = (rows) => rows.reduce((sum, [, worth]) => sum + worth, 0) / rows.length;
  const [first, second] = [1, 0].map((part) => worths.filter(([question]) => question.part === part));
  if (!first.length || !second.length) return mean(worths);
  const [x, y] = [mean(first), mean(second)];
  return x + y ? (2 * x * y) / (x + y) : 0;
}

function decideAll(wanted) {
  const run = (question) => question.traces[data.again.pipeline];
  const asked = data.questions.filter(run);
  decided = new Map();
  for (const question of asked) {
    const [now, then] = [decide(run(question), wanted), run(question)];
    if (now === null || now.answer !== then.answer || now.chosen !== then.chosen) decided.set(question, now);
  }
  const scored = asked.filter((question) => question.part !== null);
  const unknown = scored.filter((question) => decided.get(question) === null).length;
  const score = (otherwise) => overall(scored.map((question) =>
    [question, decided.has(question) ? decided.get(question)?.correct ?? otherwise : run(question).correct]));
  const gains = scored.filter((question) => decided.get(question))
    .map((question) => decided.get(question).correct - run(question).correct);
  const gated = asked.filter((question) => run(question).gate !== null && run(question).lookup !== null);
  const right = gated.filter((question) => (run(question).gate >= wanted.gamma) === run(question).lookup).length;
  return {
    before: overall(scored.map((question) => [question, run(question).correct])),
    least: score(0), most: score(1), unknown,
    gained: gains.filter((gain) => gain > 0).length, lost: gains.filter((gain) => gain < 0).length,
    gate: gated.length ? right / gated.length : null,
  };
}

function redecide() {
  const wanted = Object.fromEntries(SLIDERS.map((name) => [name, sliders.elements[name].valueAsNumber]));
  for (const name of SLIDERS) sliders.elements[name].nextElementSibling.value = wanted[name];
  const result = decideAll(wanted);
  const [before, least, most] = [result.before, result.least, result.most].map((value) => (100 * value).toFixed(1));
  document.getElementById("decided").textContent = "Score " + before + " → " + least
    + (result.unknown ? " to " + most : "") + " %. Answers that become right: " + result.gained
    + ", wrong: " + result.lost + (result.unknown ? ", not stored: " + result.unknown : "") + "."
    + (result.gate === null ? "" : " The gate is right on " + percent(result.gate) + " of the questions.");
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
  const range = { gamma: [0, 1, step, data.gamma], threshold: [data.again.least, 1, 0.01, data.again.threshold],
    entries: [1, data.again.entries, 1, data.again.entries] };
  for (const [name, [min, max, step, value]] of Object.entries(range)) {
    Object.assign(sliders.elements[name], { min, max, step, defaultValue: String(value) });
  }
  document.getElementById("sliders").hidden = false;
  document.getElementById("least").textContent = data.again.least ? "Passages below the run's threshold, "
    + data.again.threshold + ", were not answered from: it can't go lower." : "";
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
follow();

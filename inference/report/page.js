"use strict";
// The list of questions. Rows are built as they come into view; every text from the data goes in by textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("filters");
const list = document.getElementById("list");
const more = document.getElementById("more");
const PAGE = 40;
const CHANGED = "changed by the sliders";
const TRACE = { answer: "", outcome: "", gate: null, retrieved: false, hits: [], passages: [], chosen: null,
  confidence: null, kept: [], used: [], mct: null, fallback: "", error: "", steps: null };
const READ = { ret: null, rel: null, relevant: false, answer: null, ans: null, product: null };
const nameOf = new Map(data.pipelines ?? []);
let shown = [];
let built = 0;
let only = "";  // the one question that the address names

function element(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function image(index, name, alt) {
  if (index < 0) return element("div", name + " none", "no image");
  const node = element("img", name);
  node.src = data.images[index];
  node.alt = alt;
  node.loading = "lazy";
  return node;
}

const number = (value) => (value !== 0 && Math.abs(value) < 0.01 ? value.toPrecision(2) : value.toFixed(3));
const limit = (value) => String(Number(value.toPrecision(6)));
const percent = (value) => (100 * value).toFixed(1) + " %";

const readAt = (trace, position) => {
  const read = trace.passages[position];
  return { ...READ, ...(typeof read === "number" ? { passage: read } : read) };
};

function gateTrace(question, pipeline) {
  const own = question.traces[pipeline];
  if (own && own.gate !== null) return own;
  return Object.values(question.traces).find((trace) => trace.gate !== null) || null;
}

function gateWrong(question, pipeline) {
  const trace = gateTrace(question, pipeline);
  return trace !== null && trace.lookup !== null && trace.retrieved !== trace.lookup;
}

function gateBar(question, pipeline) {
  const trace = gateTrace(question, pipeline);
  if (trace === null) return element("div", "gate", "");
  const fill = element("i");
  fill.style.width = 100 * trace.gate + "%";
  const mark = element("b");
  mark.style.left = 100 * data.gamma + "%";
  const bar = element("div", "bar", fill, mark);
  const wrong = gateWrong(question, pipeline);
  const said = trace.retrieved ? "retrieves" : "answers from the image";
  return element("div", "gate", "retrieve " + percent(trace.gate), bar,
    element("span", wrong ? "wrong" : "", said + (wrong ? " – wrong" : "")));
}

function truth(question) {
  const accepted = question.answers.slice(0, 6).join(" | ") + (question.answers.length > 6 ? " | …" : "");
  if (!question.range) return accepted;
  return limit(question.range[0]) + " … " + limit(question.range[1]) + (accepted ? " (" + accepted + ")" : "");
}

function answerLine(trace) {
  if (trace.error) return element("span", "wrong", "failed: " + trace.error);
  const state = trace.correct >= 1 ? ["right", "✓ "] : trace.correct > 0 ? ["", "≈ "] : ["wrong", "✗ "];
  return element("span", state[0], state[1] + (trace.answer || "(no answer)"));
}

function row(question, pipeline) {
  const trace = question.traces[pipeline];
  const about = [question.id, question.split, question.type, question.knowledge === false ? "visual" : "",
    trace.fallback ? "nothing relevant → " + trace.fallback : "", data.outcomes[trace.outcome]];
  const middle = element("div", "",
    element("div", "asked", question.text),
    element("div", "outcome", answerLine(trace), " ", element("span", "truth", "truth: " + truth(question))),
    element("div", "again"),
    element("div", "meta", about.filter(Boolean).join(" · ")));
  const node = element("details", "question",
    element("summary", "", image(question.images[0] ?? -1, "thumb", ""), middle, gateBar(question, pipeline)));
  node.question = question;
  showAgain(node);
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(detail(question, pipeline));
  });
  return node;
}

function detail(question, pipeline) {
  const trace = question.traces[pipeline];
  const images = question.images.length ? question.images : [-1];
  const left = element("div", "side", ...images.map((index) => image(index, "image", "the question's image")),
    element("h3", "", "Every pipeline's answer"));
  for (const name of nameOf.keys()) {
    const of = question.traces[name];
    if (of) left.append(element("div", "outcome", nameOf.get(name) + ": ", answerLine(of)));
  }
  if (trace.confidence !== null) left.append(element("div", "meta", "S_ans of this answer " + number(trace.confidence)));
  if (pipeline === "mmkb_rag" && trace.gate !== null) {
    left.append(element("div", "meta", "Score_RET " + number(trace.gate)));
  }
  const link = element("a", "link", "Link to this question");
  link.href = "#" + new URLSearchParams({ question: question.id, pipeline });
  left.append(link);
  const right = element("div", "");
  const walked = [...nameOf.keys()].filter((name) => question.traces[name]?.steps);
  if (walked.length) {
    right.append(element("h3", "", "Trajectories"),
      element("div", "trajectories", ...walked.map((name) => trajectory(name, question.traces[name]))));
  }
  if (trace.hits.length) right.append(element("h3", "", "Retrieved entries"), hits(question, trace));
  if (trace.mct) right.append(element("h3", "", "MCT: which documents agree"), agreement(trace));
  if (pipeline === "mmkb_rag" && trace.passages.length) {
    right.append(element("h3", "", "Documents, by SRT"));
    for (const i of byRelevance(trace)) right.append(passage(question, trace, i));
  } else if (trace.passages.length) {
    right.append(element("h3", "", "Passages, by product"));
    const order = trace.passages.map((_, i) => i);
    const key = (i) => [i === trace.chosen ? 1 : 0, trace.passages[i].product ?? -1, trace.passages[i].rel ?? -1];
    order.sort((a, b) => compare(key(b), key(a)) || a - b);
    for (const i of order) right.append(passage(question, trace, i));
  }
  if (!trace.hits.length && !trace.passages.length) {
    right.append(element("p", "note", "Answered from the image and the question alone."));
  }
  return element("div", "detail", left, right);
}

function trajectory(name, trace) {
  const box = element("div", "trajectory", element("h4", "", nameOf.get(name) + " ", answerLine(trace)));
  const iterations = new Set(trace.steps.map((step) => step.iteration)).size;
  let iteration = -1;
  for (const step of trace.steps) {
    if (iterations > 1 && step.iteration > iteration) {
      iteration = step.iteration;
      box.append(element("div", "iteration", "iteration " + iteration));
    }
    box.append(stepLine(step));
    for (const query of step.queries) box.append(element("div", "query", query.trim()));
    if (step.text) box.append(element("div", "written", step.text + (step.finished ? "" : " … (cut off)")));
  }
  box.append(element("div", "meta", "ended: " + trace.ended));
  return box;
}

function stepLine(step) {
  const values = step.probability === null ? step.each : [step.probability];
  const likely = values.length ? " " + values.map(number).join(" · ") : "";
  const found = step.operator === "search" ? " · " + step.found + " found" : "";
  const line = element("div", "meta", element("b", "", step.operator), likely + found);
  if (step.right) line.append(element("span", "badge gold", "right entry"));
  return line;
}

function byRelevance(trace) {
  const place = (i) => (trace.kept.includes(i) ? trace.kept.indexOf(i) : trace.kept.length);
  const key = (i) => [-place(i), trace.passages[i].rel ?? -1];
  return trace.passages.map((_, i) => i).sort((a, b) => compare(key(b), key(a)) || a - b);
}

function agreement(trace) {
  const mct = trace.mct;
  const box = element("div", "mct", element("div", "", "“" + mct.reply + "”" + (mct.finished ? "" : " … (cut off)")));
  const kept = mct.keep.map((number) => number + " = " + documentTitle(trace, trace.kept[number - 1])).join("; ");
  box.append(mct.problem
    ? element("div", "wrong", "malformed: " + mct.problem.replaceAll("_", " ") + "; SRT's order holds")
    : element("div", "meta", "keeps " + kept + (mct.summary ? " · summary: " + mct.summary : "")));
  const read = mct.merged ? "the summary alone" : trace.used.map((i) => documentTitle(trace, i)).join("; ");
  box.append(element("div", "meta", "the answer was read from: " + read));
  return box;
}

function documentTitle(trace, position) {
  const text = data.passages[readAt(trace, position).passage];
  return data.entries[text.entry].title + (text.heading ? " – " + text.heading : "");
}

function relevanceBar(share) {
  const fill = element("i");
  fill.style.width = 100 * share + "%";
  return element("div", "bar", fill);
}

function compare(a, b) {
  for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return a[i] - b[i];
  return 0;
}

function hits(question, trace) {
  const box = element("div", "hits");
  trace.hits.forEach(([index, score], rank) => {
    const entry = data.entries[index];
    const gold = question.entities.includes(entry.id);
    box.append(element("div", gold ? "hit gold" : "hit", image(entry.image, "", ""),
      element("div", "", rank + 1 + ". " + entry.title, gold ? element("span", "badge gold", "right") : null),
      element("div", "meta", "S_ret " + number(score))));
  });
  return box;
}

function passage(question, trace, position) {
  const read = readAt(trace, position);
  const text = data.passages[read.passage];
  const gold = question.evidence.includes(text.place);
  const head = element("div", "", element("b", "", data.entries[text.entry].title + (text.heading ? " – " + text.heading : "")));
  if (position === trace.chosen) head.append(element("span", "badge", "chosen"));
  if (gold) head.append(element("span", "badge gold", "evidence"));
  if (read.relevant) head.append(element("span", "badge", "judged relevant"));
  if (trace.kept.includes(position)) head.append(element("span", "badge", "kept " + (trace.kept.indexOf(position) + 1)));
  if (trace.used.includes(position)) head.append(element("span", "badge", "read " + (trace.used.indexOf(position) + 1)));
  const node = element("div", read.relevant ? "passage relevant" : "passage", head, element("div", "", text.text));
  if (trace.kept.length && read.rel !== null) node.append(relevanceBar(read.rel));
  node.style.setProperty("--p", read.rel === null ? 0 : read.rel);
  const scores = element("div", "scores");
  const parts = [["S_ret", read.ret], ["S_rel", read.rel], ["S_ans", read.ans], ["product", read.product]];
  for (const [name, value] of parts) {
    if (value !== null) scores.append(element("span", "", name + " ", element("b", "", number(value))));
  }
  if (read.answer !== null) scores.append(element("span", "", "answer ", element("b", "", read.answer || "(empty)")));
  if (scores.childNodes.length) node.append(scores);
  return node;
}

function matches(question, wanted) {
  const trace = question.traces[wanted.pipeline];
  if (!trace) return false;
  if (wanted.split && question.split !== wanted.split) return false;
  if (wanted.kind && kind(question) !== wanted.kind) return false;
  if (only && question.id !== only) return false;
  const passes = filters[wanted.outcome] ?? (() => trace.outcome === wanted.outcome);
  if (!passes(trace, question, wanted.pipeline)) return false;
  return !wanted.search || haystack(question, trace).includes(wanted.search);
}

const filters = {
  "": () => true,
  wrong: (trace) => trace.correct < 1,
  "gate wrong": (_, question, pipeline) => gateWrong(question, pipeline),
  "nothing relevant": (trace) => trace.fallback !== "",
  [CHANGED]: (_, question, pipeline) => decided.has(question) && pipeline === data.again.pipeline,
};

function haystack(question, trace) {
  const titles = trace.hits.map(([index]) => data.entries[index].title);
  return [question.id, question.text, trace.answer, ...question.answers, ...titles].join("\n").toLowerCase();
}

function kind(question) {
  return question.knowledge === false ? "visual" : question.type;
}

function refresh() {
  const wanted = {
    pipeline: form.elements.pipeline.value, split: form.elements.split.value, kind: form.elements.kind.value,
    search: form.elements.search.value.trim().toLowerCase(), outcome: form.elements.outcome.value,
  };
  shown = data.questions.filter((question) => matches(question, wanted));
  built = 0;
  list.replaceChildren();
  document.getElementById("count").textContent = shown.length + " of " + data.questions.length + " questions";
  extend();
}

function extend() {
  const pipeline = form.elements.pipeline.value;
  const next = shown.slice(built, built + PAGE).map((question) => row(question, pipeline));
  built += next.length;
  list.append(...next);
  // The watcher fires on a change of visibility only: watch again, in case the end of the list is still in view.
  watcher.unobserve(more);
  if (built < shown.length) watcher.observe(more);
}

function options(name, values, all) {
  const select = form.elements[name];
  if (all) select.append(new Option(all, ""));
  for (const value of values) {
    select.append(Array.isArray(value) ? new Option(value[1], value[0]) : new Option(value, value));
  }
}

// The address after #: pipeline and outcome, as a chart's part names them, or one question.
function follow() {
  const named = new URLSearchParams(location.hash.slice(1));
  only = named.get("question") ?? "";
  if (!only && !named.has("outcome")) return refresh();
  form.reset();
  for (const name of ["pipeline", "outcome"]) {
    const select = form.elements[name];
    if ([...select.options].some((option) => option.value === named.get(name))) select.value = named.get(name);
  }
  refresh();
  if (only && list.firstChild) list.firstChild.open = true;
  form.scrollIntoView();
}

const watcher = new IntersectionObserver((seen) => {
  if (seen.some((item) => item.isIntersecting)) extend();
}, { rootMargin: "600px" });


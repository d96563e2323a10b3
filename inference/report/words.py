"""Explain as text how a question was answered."""

from __future__ import annotations

import textwrap

from reflectune.inference.reading.document_choice import by_relevance
from reflectune.inference.reading.ranking import product
from reflectune.inference.trace import PassageTrace, Step, Trace


def explain(trace: Trace) -> str:
    """Return the gate's decision, if there is a gate, the entries, the passages, best product first, and the answer."""
    decision = "retrieve" if trace.retrieved else "answer from the image"
    lines = [f"decision: {decision} (gate {trace.gate:.3f})"] if trace.gate is not None else []
    if trace.kept:
        return "\n".join([*lines, *_documents(trace), f"answer: {trace.answer or '(none)'}"])
    if trace.hits:
        lines += ["entries:", *(f"  {hit.rank}. {hit.entry_id}  S_ret {hit.score:.3f}" for hit in trace.hits)]
    if trace.passages:
        lines.append("passages:")
        scores = [passage.scores for passage in trace.passages]
        products = [None if it is None else product(it, exponents=trace.exponents) for it in scores]
        order = sorted(range(len(products)), key=lambda i: (i != trace.chosen, *_order(trace.passages[i], products[i])))
        for i in order:
            lines += _passage(trace.passages[i], products[i], chosen=i == trace.chosen)
    if trace.steps:
        lines += ["steps:", *map(_step, trace.steps), f"ended: {trace.ended}"]
    if trace.fallback:
        lines.append(f"{'' if trace.steps else 'no passage was judged relevant; '}fallback: {trace.fallback}")
    lines.append(f"answer: {trace.answer or '(none)'}")
    return "\n".join(lines)


def _step(step: Step) -> str:
    parts = [step.text, *(f"“{query}”" for query in step.queries)]
    parts += [f"found {', '.join(dict.fromkeys(hit.entry_id for hit in step.found))}"] if step.found else []
    parts += [f"P(yes) {step.probability:.3f}"] if step.probability is not None else []
    name = "P(yes)" if step.operator == "judge" else "scores"
    parts += [f"{name} {', '.join(f'{each:.3f}' for each in step.each)}"] if step.each else []
    line = f"{step.iteration}. {step.operator}: {'; '.join(filter(None, parts))}"
    return textwrap.indent(textwrap.shorten(line, 160, placeholder=" …"), "  ")


def _documents(trace: Trace) -> list[str]:
    """Return MMKB-RAG's documents in SRT's order, marked if the answer was generated from them, and MCT's reply."""
    order = list(dict.fromkeys([*trace.kept, *by_relevance([p.s_rel for p in trace.passages])]))
    order += [position for position in range(len(trace.passages)) if position not in order]
    lines = ["documents:"] if order else []
    for position in order:
        passage, mark = trace.passages[position], "*" if position in trace.used else " "
        status = f"kept {trace.kept.index(position) + 1}" if position in trace.kept else "left"
        lines.append(f"{mark} {status:<7} S_ret {_number(passage.s_ret)}  [Rel] {_number(passage.s_rel)}")
        lines.append(_text(passage))
    if trace.mct is not None:
        lines.append(f"agreement: {trace.mct.reply}")
        lines += [f"  malformed ({trace.mct.problem}): the order of SRT holds"] if trace.mct.problem else []
        lines += [f"  read: the summary “{trace.mct.summary}”"] if trace.mct.merged else []
    if trace.fallback:
        lines.append(f"no document was judged relevant; fallback: {trace.fallback}")
    return lines


def _order(passage: PassageTrace, product: float | None) -> tuple[float, float]:
    """Return a sort key: highest product first, then highest S_rel."""
    return (1.0 if product is None else -product, -(passage.s_rel or 0.0))


def _passage(passage: PassageTrace, product: float | None, *, chosen: bool) -> list[str]:
    total = "" if product is None else f"  product {product:.3f}"
    verdict = "not judged" if passage.s_rel is None else "relevant" if passage.relevant else "irrelevant"
    answer = f" → {passage.answer}" if passage.answer is not None else ""
    return [
        f"{'*' if chosen else ' '} {verdict:<10} S_ret {_number(passage.s_ret)}  S_rel {_number(passage.s_rel)}  "
        f"S_ans {_number(passage.s_ans)}{total}{answer}",
        _text(passage),
    ]


def _text(passage: PassageTrace) -> str:
    where = f"{passage.passage.title} – {passage.passage.heading}".rstrip("– ")
    return textwrap.indent(textwrap.shorten(f"{where}: {passage.passage.text}", 160, placeholder=" …"), " " * 4)


def _number(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"

"""HTML of the page: the answer with its gate, entries, passages, and the product. Every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reflectune.core.config import Settings
from reflectune.core.html import render
from reflectune.inference.pipelines.decisions import Alternatives, Controls, Decision, can_reweight, decide
from reflectune.inference.reading.ranking import product
from reflectune.inference.trace import Trace
from reflectune.models.schemes.registry import find_scheme

_SHOWN: Final = 8
"""Maximum candidates in the table of products."""


@dataclass(frozen=True)
class AskedQuestion:
    """A question that the page has asked, with everything that it shows.

    Attributes:
        id: Id of its permalink; "" while it is being answered.
        question: The question.
        image: The image, small, as a data URI.
        alternatives: Its traces with the gate open and closed.
        others: Traces of the pipelines to compare with, by plain name.
        entries: Title and image of each retrieved entry, by id; the image is a data URI or "".
    """

    id: str
    question: str
    image: str
    alternatives: Alternatives
    others: Mapping[str, Trace] = field(default_factory=dict)
    entries: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class PageView:
    """Parts of the page that depend on the decision, as HTML; `status` is a sentence for screen readers."""

    answer: str
    evidence: str
    status: str


def title_of(scheme: str) -> str:
    """Return a scheme's name as its paper writes it."""
    return find_scheme(scheme).title.split(" (")[0]


def view(asked: AskedQuestion, controls: Controls, settings: Settings) -> PageView:
    """Return the page's parts for a question under these settings, without running the model."""
    decision = decide(asked.alternatives, controls, settings)
    why, gate = _why(asked, decision, controls), _gate(asked.alternatives.opened.gate, controls.gamma)
    answer = part(
        "answer",
        question=asked.question,
        image=asked.image,
        name=title_of(asked.alternatives.scheme),
        answer=decision.answer,
        why=why,
        link=f"?trace={asked.id}",
        gate=gate,
        retrieved=decision.retrieved,
        others=[
            {
                "name": name,
                "answer": trace.answer,
                "note": trace.error or ("" if trace.confidence is None else f"S_ans {trace.confidence:.2f}"),
            }
            for name, trace in asked.others.items()
        ],
    )
    shown = "unknown without the model" if decision.answer is None else decision.answer or "no answer"
    status = f"Answer: {shown}. {why}" + (f" Gate: {gate['label']}." if gate else "")
    return PageView(answer, _evidence(asked, decision, controls), status)


def partial_view(asked: AskedQuestion, controls: Controls) -> PageView:
    """Return the page's parts while a question is being answered, from the gate and the entries so far."""
    opened, scheme = asked.alternatives.opened, asked.alternatives.scheme
    note = "Judging passages …" if opened.hits else "Searching …"
    shown = {"question": asked.question, "image": asked.image, "name": title_of(scheme), "answer": "…", "why": note}
    retrieved = opened.gate is None or find_scheme(scheme).retrieves(opened.gate, controls.gamma)
    answer = part("answer", **shown, link="", gate=_gate(opened.gate, controls.gamma), retrieved=retrieved, others=[])
    return PageView(answer, _evidence(asked, Decision(True, "", None, opened.hits), controls), note)


def part(template: str, **values: Any) -> str:
    """Return a part of the page, by the name of its template."""
    return str(render(f"inference/serving/templates/{template}.html", **values))


def _evidence(asked: AskedQuestion, decision: Decision, controls: Controls) -> str:
    """Return entries, the table of candidates, and passages: relevant or used ones first, then the others, folded."""
    opened, used = asked.alternatives.opened, decision.used
    hits = decision.hits or opened.hits[: controls.entries]
    shown = {hit.entry_id for hit in hits}
    shares = {
        k: (read.s_rel or 0.0) / ((read.s_rel or 0.0) + (read.s_irr or 0.0) or 1.0)
        for k, read in enumerate(opened.passages)
        if read.passage.entry_id in shown
    }
    order = sorted(shares, key=lambda k: (k not in used, -shares[k]))
    first = [k for k in order if shares[k] > controls.threshold or k in used or k in controls.without] or order[:1]
    products = {k: product(scores, exponents=opened.exponents) for k, scores in decision.scores.items()}
    by_product = sorted(products, key=lambda k: (k not in used, -products[k]))
    factors = zip(("S_ret", "S_rel", "S_ans"), opened.exponents, strict=True)
    return part(
        "evidence",
        notes=_notes(asked.alternatives, decision, controls),
        hits=hits,
        entries=asked.entries,
        sources={opened.passages[k].passage.entry_id for k in used},
        trace=opened,
        decision=decision,
        ranked=by_product[:_SHOWN] or used,
        products=products,
        factors=" · ".join(name if power == 1 else f"{name}^{power:g}" for name, power in factors),
        reply=opened.mct.reply if opened.mct and decision.retrieved and decision.answer is not None else "",
        groups=[first, [k for k in order if k not in first]],
        shares=shares,
        threshold=controls.threshold,
        without=controls.without,
    )


def _gate(value: float | None, gamma: float) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"value": value, "gamma": gamma, "label": f"retrieve {value:.2f}, threshold {gamma:.2f}"}


def _why(asked: AskedQuestion, decision: Decision, controls: Controls) -> str:
    """Return the reason for an answer, in a sentence."""
    passages = asked.alternatives.opened.passages
    if not decision.retrieved:
        return f"Answered from the image: the gate is below γ = {controls.gamma:.2f}."
    if decision.answer is None:
        return "These passages were not read together: the model's answer from them is unknown."
    if decision.fallback == "closed_book" or not decision.used:
        return "Retrieved, but answered from the image: no passage was found."
    titles = dict.fromkeys(passages[k].passage.title for k in decision.used)
    where = f"Retrieved from {', '.join(f'“{title}”' for title in titles)}"
    reason = "was drawn at random" if decision.fallback == "random" else "has the best score"
    return f"{where}; no passage is relevant, this one {reason}." if decision.fallback else f"{where}."


def _notes(alternatives: Alternatives, decision: Decision, controls: Controls) -> list[str]:
    notes = []
    opened = alternatives.opened
    if not decision.retrieved and opened.hits:
        notes.append("The gate is closed, so nothing below was used. It shows the passages as they would be judged.")
    if controls.title_weight not in (None, alternatives.title_weight) and can_reweight(opened):
        notes.append(
            f"This weight of titles ranks the {len(opened.hits)} judged entries, found with "
            f"{alternatives.title_weight:g}; ask again to search by it."
        )
    return notes

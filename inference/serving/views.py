"""HTML of the page: the answer with its gate, entries, passages, and the product. Every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from reflectune.core.config import Settings
from reflectune.core.html import render
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.decisions import Alternatives, Controls, Decision, can_weigh, decide
from reflectune.inference.pipelines.mr2ag import ChoiceSettings
from reflectune.inference.reading.ranking import PassageScores, product
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.models.schemes.registry import find_scheme

_EMPTY: Final[Any] = {"notes": (), "entries": (), "table": None, "reply": "", "passages": ()}
_SHOWN: Final = 8
"""Candidates in the table of products, and relevant passages shown at once."""


@dataclass(frozen=True)
class AskedQuestion:
    """A question that the page has asked, with everything that it shows.

    Attributes:
        id: Its permalink.
        question: The question.
        image: The picture, small, as a data URI.
        alternatives: Its traces with the gate open and closed.
        others: Traces of the pipelines to compare with, by plain name.
        entries: Title and picture of each retrieved entry, by id; the picture is a data URI or "".
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
    """Return the page's parts for a question by these settings. No model is read."""
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
            {"name": name, "answer": trace.answer, "note": trace.error or _sure(trace.confidence)}
            for name, trace in asked.others.items()
        ],
    )
    spoken = "unknown without the model" if decision.answer is None else decision.answer or "no answer"
    status = f"Answer: {spoken}. {why}" + (f" Gate: {gate['label']}." if gate else "")
    return PageView(answer, _evidence(asked, decision, controls, settings), status)


def partial_view(
    question: str, image: str, scheme: str, gate: float | None, controls: Controls, entries: list[dict[str, Any]]
) -> PageView:
    """Return the page's parts while the answer is being read."""
    note = "Judging passages …" if entries else "Searching …"
    shown = {"question": question, "image": image, "name": title_of(scheme), "answer": "…", "why": note, "link": ""}
    retrieved = gate is None or find_scheme(scheme).retrieves(gate, controls.gamma)
    answer = part("answer", **shown, gate=_gate(gate, controls.gamma), retrieved=retrieved, others=[])
    return PageView(answer, part("evidence", **{**_EMPTY, "entries": entries}), note)


def part(template: str, **values: Any) -> str:
    """Return a part of the page, by the name of its template."""
    return str(render(f"inference/serving/templates/{template}.html", **values))


def _evidence(asked: AskedQuestion, decision: Decision, controls: Controls, settings: Settings) -> str:
    opened = asked.alternatives.opened
    passages = opened.passages
    ids = {hit.entry_id for hit in decision.hits or opened.hits[: controls.entries]}
    positions = [k for k, passage in enumerate(passages) if passage.passage.entry_id in ids]
    used = {passages[k].passage.entry_id for k in decision.used}
    chooses = isinstance(settings, ChoiceSettings)
    shown = decision.hits or opened.hits[: controls.entries]
    return part(
        "evidence",
        notes=_notes(asked.alternatives, decision, controls),
        entries=entry_rows(shown, asked.entries, used),
        table=_products(opened, decision) if chooses else _documents(opened, decision),
        reply=opened.mct.reply if opened.mct and decision.answer is not None and decision.retrieved else "",
        passages=_groups(opened, positions, decision, controls),
    )


def _gate(value: float | None, gamma: float) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"value": value, "gamma": gamma, "label": f"retrieve {value:.2f}, threshold {gamma:.2f}"}


def _sure(confidence: float | None) -> str:
    return "" if confidence is None else f"S_ans {confidence:.2f}"


def _why(asked: AskedQuestion, decision: Decision, controls: Controls) -> str:
    """Return the reason for an answer, in a sentence."""
    passages = asked.alternatives.opened.passages
    if not decision.retrieved:
        return f"Answered by looking: the gate is below γ = {controls.gamma:.2f}."
    if decision.answer is None:
        return "These passages were not read together; ask again with these settings to get the model's answer."
    if decision.fallback == "closed_book" or not decision.used:
        return "Looked up, and answered by looking, without a passage to answer from."
    titles = dict.fromkeys(passages[k].passage.title for k in decision.used)
    where = f"Looked up in {', '.join(f'“{title}”' for title in titles)}"
    return f"{where}; no passage is relevant, this one has the best score." if decision.fallback else f"{where}."


def _notes(alternatives: Alternatives, decision: Decision, controls: Controls) -> list[str]:
    notes = []
    opened = alternatives.opened
    if not decision.retrieved and opened.hits:
        notes.append("The gate is closed, so nothing below was used. It shows the passages as they would be judged.")
    if controls.title_weight not in (None, alternatives.title_weight) and can_weigh(opened):
        notes.append(
            f"This weight of titles ranks the {len(opened.hits)} judged entries, found with "
            f"{alternatives.title_weight:g}; others that it would bring in need the model."
        )
    return notes


def entry_rows(hits: Sequence[Hit], entries: Mapping[str, tuple[str, str]], used: set[str]) -> list[dict[str, Any]]:
    """Return entries with titles, pictures and scores; `used` are those that the answer is from."""
    rows = []
    for hit in hits:
        title, image = entries.get(hit.entry_id, (hit.entry_id, ""))
        parts = " · ".join(f"{name} {value:.2f}" for name, value in hit.parts.items())
        score = f"{hit.score:.2f}"
        rows.append(
            {
                "rank": hit.rank,
                "title": title,
                "image": image,
                "score": score,
                "parts": parts,
                "used": hit.entry_id in used,
            }
        )
    return rows


def _products(opened: Trace, decision: Decision) -> dict[str, Any] | None:
    """Return mR²AG's table of candidates, best product first."""
    ranked = sorted(decision.scores, key=lambda k: (k not in decision.used, -product(decision.scores[k])))
    rows = [
        {
            "name": f"{k + 1}. {opened.passages[k].passage.title}",
            "cells": [*_numbers(decision.scores[k]), opened.passages[k].answer or ""],
            "chosen": k in decision.used,
        }
        for k in ranked[:_SHOWN]
    ]
    head = ("passage", "S_ret", "S_rel", "S_ans", "product", "answer")
    return {"title": "S_ret · S_rel · S_ans of each candidate", "head": head, "rows": rows} if rows else None


def _numbers(scores: PassageScores) -> list[str]:
    return [f"{value:.3f}" for value in (scores.ret, scores.rel, scores.ans, product(scores))]


def _documents(opened: Trace, decision: Decision) -> dict[str, Any] | None:
    """Return the table of passages that are answered from together, in their order."""
    rows = [
        {"name": f"{k + 1}. {read.passage.title}", "cells": [_number(read.s_ret), _number(read.s_rel)], "chosen": True}
        for k in decision.used
        for read in [opened.passages[k]]
    ]
    return (
        {"title": "Passages that are answered from", "head": ("passage", "S_ret", "S_rel"), "rows": rows}
        if rows
        else None
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _groups(opened: Trace, positions: Sequence[int], decision: Decision, controls: Controls) -> list[dict[str, Any]]:
    """Return passages in two groups: the relevant and the used ones, then the others, folded."""
    rows = sorted(positions, key=lambda k: (k not in decision.used, -(opened.passages[k].s_rel or 0.0)))
    shown = [_passage(k, opened.passages[k], decision, controls) for k in rows]
    first = [row for row in shown if row["relevant"] or row["used"] or not row["ticked"]] or shown[:1]
    others = [row for row in shown if row not in first]
    groups = [{"title": "", "open": True, "rows": first}]
    if others:
        groups.append(
            {
                "title": f"{len(others)} {'passage' if len(others) == 1 else 'passages'} judged irrelevant",
                "open": False,
                "rows": others,
            }
        )
    return groups if shown else []


def _passage(k: int, read: PassageTrace, decision: Decision, controls: Controls) -> dict[str, Any]:
    passage, s_rel, used = read.passage, read.s_rel, k in decision.used
    share = 0.0 if s_rel is None else s_rel / ((s_rel + (read.s_irr or 0.0)) or 1.0)
    relevant = s_rel is not None and share > controls.threshold
    verdict = "not judged" if s_rel is None else "relevant" if relevant else "irrelevant"
    return {
        "position": k,
        "number": k + 1,
        "title": f"{passage.title} – {passage.heading}".rstrip("– "),
        "lead": passage.lead,
        "text": passage.text,
        "s_rel": _number(s_rel),
        "strength": f"{share:.3f}",
        "relevant": relevant,
        "verdict": f"{verdict}, answered from" if used else verdict,
        "ticked": k not in controls.without,
        "answer": read.answer,
        "used": used,
    }

"""A page for proof-reading derived labels: what the model answered alone and from each document, coloured by label."""

from __future__ import annotations

import html
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from reflectune.core.paths import Roots
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.derivation import Labels
from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.probing.labels import RetLabel, SrtLabel
from reflectune.data_builders.probing.records import DocumentProbe, Probe, Reply
from reflectune.data_builders.proofreading.page import judged, marked, picture, write_articles
from reflectune.models.schemes.mct import write_reply


def write_label_page(
    path: Path,
    probes: Sequence[Probe],
    labels: Labels,
    questions: Mapping[str, Question],
    roots: Roots,
    title: str,
    count: int = 50,
    seed: int = 0,
) -> None:
    """Write one HTML file with random probed questions and their labels; it holds its images and needs no network.

    Args:
        path: The file to write.
        probes: The probes to draw from; those of questions that could not be asked are left out.
        labels: All labels that were derived.
        questions: By id.
        roots: The folders that image paths may lead into; relative ones start at the first.
        title: What they are, in a few words.
        count: How many to show.
        seed: Of the draw.
    """
    asked = [probe for probe in probes if not probe.problem]
    shown = asked if len(asked) <= count else random.Random(seed).sample(asked, count)
    ret = {label.question_id: label for label in labels.ret}
    srt = {(label.question_id, label.document.passage.id): label for label in labels.srt}
    mct = {label.question_id: label for label in labels.mct}
    articles = []
    for probe in shown:
        own = probe.question_id
        articles.append(_article(probe, questions[own], ret.get(own), srt, mct.get(own), roots))
    note = f"{len(shown)} of {len(asked):,} probed questions, drawn at random (seed {seed})."
    write_articles(path, articles, title, note)


def _article(
    probe: Probe,
    question: Question,
    ret: RetLabel | None,
    srt: Mapping[tuple[str, str], SrtLabel],
    mct: MctLabel | None,
    roots: Roots,
) -> str:
    token = "no label" if ret is None else "[Ret]" if ret.retrieve else "[NoRet]"
    alone = f"alone: {_said(probe.replies)}{_gold(probe.gold_log_prob)}"
    accepted = canonical_answer(question) or " / ".join(map(str, question.range or ()))
    body = [judged("none", f"{probe.question_id} {token}", token, alone, "")]
    body += [_document(probe, own, srt.get((probe.question_id, own.passage.id)), question) for own in probe.documents]
    if mct is not None:
        listed = ", ".join(passage.id for passage in mct.documents)
        reply = html.escape(write_reply(mct.keep, mct.summary))
        body.append(judged("none", f"{probe.question_id} MCT", "MCT", f"{html.escape(listed)} → <b>{reply}</b>", ""))
    return (
        f'<article><div class="picture">{picture(question.image, roots, question.id)}</div><div>'
        f"<h2>{html.escape(question.text)}</h2>"
        f'<p class="meta">{html.escape(question.id)} · accepted: <b>{html.escape(accepted)}</b></p>'
        f"{''.join(body)}</div></article>"
    )


def _document(probe: Probe, own: DocumentProbe, label: SrtLabel | None, question: Question) -> str:
    passage = own.passage
    place = html.escape(" › ".join(filter(None, [passage.title, passage.heading])))
    lead = f'<span class="lead">{html.escape(passage.lead)}</span> ' if passage.lead else ""
    cut = " · cut" if own.cut else ""
    said = (
        f"{_said(own.replies)}{_gold(own.gold_log_prob)} · {own.rank}. S_ret {own.score:.2f}{cut} · {place} · "
        f"{html.escape(passage.id)}"
    )
    text = f"<p>{lead}{marked(passage.text, question.answers)}</p>"
    if label is None:
        return f'<p class="said"><span class="token">no label</span> {said}</p>{text}'
    token, kind = ("[Rel]", "relevant") if label.relevant else ("[NoRel]", "irrelevant")
    return judged(kind, f"{probe.question_id} {passage.id} {token}", token, said, text)


def _said(replies: Sequence[Reply]) -> str:
    """The greedy answer and whether it is right; of drawn ones, how many are."""
    if not replies:
        return "nothing"
    first, drawn = replies[0], replies[1:]
    broken = "" if first.log_prob is not None else ", broken"
    rate = f", {sum(own.correctness for own in drawn):g} of {len(drawn)} drawn right" if drawn else ""
    return f"<b>{html.escape(first.text) or 'nothing'}</b> ({first.correctness:g} right{broken}{rate})"


def _gold(log_prob: float | None) -> str:
    return "" if log_prob is None else f" · log p(accepted) {log_prob:.1f}"

"""A page for proof-reading derived labels: what the model answered alone and from each document, coloured by label."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from reflectune.core.html import render
from reflectune.core.paths import Roots
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.derivation import Labels
from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.probing.labels import RetLabel, SrtLabel
from reflectune.data_builders.probing.records import Probe, Reply
from reflectune.data_builders.proofreading.page import marked, picture, write_articles
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
    probed = [probe for probe in probes if not probe.problem]
    shown = probed if len(probed) <= count else random.Random(seed).sample(probed, count)
    ret = {label.question_id: label for label in labels.ret}
    srt = {(label.question_id, label.document.passage.id): label for label in labels.srt}
    mct = {label.question_id: label for label in labels.mct}
    articles = []
    for probe in shown:
        question_id = probe.question_id
        articles.append(_article(probe, questions[question_id], ret.get(question_id), srt, mct.get(question_id), roots))
    note = f"{len(shown)} of {len(probed):,} probed questions, drawn at random (seed {seed})."
    write_articles(path, articles, title, note)


def _article(
    probe: Probe,
    question: Question,
    ret: RetLabel | None,
    srt: Mapping[tuple[str, str], SrtLabel],
    mct: MctLabel | None,
    roots: Roots,
) -> Markup:
    return render(
        "data_builders/mmkb/templates/probe.html",
        probe=probe,
        question=question,
        picture=picture(question.image, roots, question.id),
        accepted=canonical_answer(question) or " / ".join(map(str, question.range or ())),
        token="no label" if ret is None else "[Ret]" if ret.retrieve else "[NoRet]",
        documents=[
            (document, srt.get((question.id, document.passage.id)), marked(document.passage.text, question.answers))
            for document in probe.documents
        ],
        mct=mct,
        reply="" if mct is None else write_reply(mct.keep, mct.summary),
        verdict=_verdict,
    )


def _verdict(replies: Sequence[Reply]) -> str:
    """Whether the greedy answer is right; of drawn ones, how many are."""
    first, drawn = replies[0], replies[1:]
    broken = "" if first.log_prob is not None else ", broken"
    rate = f", {sum(reply.correctness for reply in drawn):g} of {len(drawn)} drawn right" if drawn else ""
    return f"{first.correctness:g} right{broken}{rate}"

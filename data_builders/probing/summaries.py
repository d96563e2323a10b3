"""Summaries of several documents by the model (Algorithm 3 of MMKB-RAG): in its own words, or chosen sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from reflectune.core.types import AnswerStyle, Passage
from reflectune.data_builders.probing.labels import Rule, is_right, srt_labels
from reflectune.data_builders.probing.records import Probe, finite_sum
from reflectune.formats.passages import sentences
from reflectune.models.prefix.engine import PrefixEngine, Prefixes
from reflectune.models.rendering.thoughts import without_thoughts
from reflectune.models.schemes.prompts import PromptScheme

_LONGEST: Final = 96
"""Maximum tokens of a summary in the model's own words."""


def add_words(engine: PrefixEngine, prefixes: Prefixes, probes: Sequence[Probe], lengths: Sequence[int]) -> list[Probe]:
    """Generate a summary of each question's relevant documents (by the default `Rule`), if there are several.

    If they exceed the context, the best ones that fit are summarised, at least two.

    Args:
        engine: Engine of the model.
        prefixes: Prefixes of the questions.
        probes: Probes of the questions.
        lengths: Number of tokens of each prefix.
    """
    renderer = engine.renderer
    passages_by_question: dict[int, list[Passage]] = {}
    branches: list[list[list[int]]] = [[] for _ in probes]
    for q, probe in enumerate(probes):
        passages = [label.document.passage for label in srt_labels(probe, Rule()) if label.relevant]
        room = engine.max_length - lengths[q] - _LONGEST
        while len(passages) > 1:
            ids = PromptScheme.of(renderer).prompt_branch(renderer, "summary", passages)
            if len(ids) <= room:
                passages_by_question[q], branches[q] = passages, [ids]
                break
            passages.pop()
    if not passages_by_question:
        return list(probes)
    state = engine.branch(prefixes, branches)
    generated = engine.generate(state, [(q, 0) for q in passages_by_question], max_new_tokens=_LONGEST)
    summarised = list(probes)
    for (q, passages), generation in zip(passages_by_question.items(), generated, strict=True):
        text = "" if finite_sum(generation.log_probs) is None else renderer.strip(without_thoughts(generation.text))
        summarised[q] = dataclasses.replace(probes[q], summary=text, summarised=tuple(p.id for p in passages))
    return summarised


def add_sentences(
    engine: PrefixEngine,
    prefixes: Prefixes,
    probes: Sequence[Probe],
    answers: Sequence[Sequence[int]],
    styles: Sequence[AnswerStyle],
) -> list[Probe]:
    """Choose a sentence of each document whose greedy answer is right.

    The model reads each sentence in place of the document. The one that makes the accepted answer most probable is
    chosen, the first one of equal ones.

    Args:
        engine: Engine of the model.
        prefixes: Prefixes of the questions.
        probes: Probes of the questions.
        answers: Token ids of each question's accepted answer; empty if it has none.
        styles: Answer style of each question.
    """
    renderer = engine.renderer
    choices: list[list[tuple[int, str]]] = [[] for _ in probes]  # (document, sentence)
    for q, probe in enumerate(probes):
        for k, document in enumerate(probe.documents):
            if answers[q] and is_right(document.reply):
                choices[q] += [(k, sentence) for sentence in dict.fromkeys(sentences(document.passage.text))]
    rows = [(q, i) for q, question_choices in enumerate(choices) for i in range(len(question_choices))]
    if not rows:
        return list(probes)

    def branch(q: int, k: int, sentence: str) -> list[int]:
        passage = dataclasses.replace(probes[q].documents[k].passage, text=sentence)
        return PromptScheme.of(renderer).prompt_branch(renderer, "vqa", [passage], styles[q])

    state = engine.branch(
        prefixes, [[branch(q, *choice) for choice in question_choices] for q, question_choices in enumerate(choices)]
    )
    answer_log_probs = engine.score(state, rows, [answers[q] for q, _ in rows])
    best: dict[tuple[int, int], tuple[float, str]] = {}
    for (q, i), log_probs in zip(rows, answer_log_probs, strict=True):
        k, sentence = choices[q][i]
        score = finite_sum(log_probs)
        if score is not None and ((q, k) not in best or score > best[q, k][0]):
            best[q, k] = (score, sentence)
    return [
        dataclasses.replace(
            probe,
            documents=tuple(
                dataclasses.replace(document, sentence=best[q, k][1]) if (q, k) in best else document
                for k, document in enumerate(probe.documents)
            ),
        )
        for q, probe in enumerate(probes)
    ]

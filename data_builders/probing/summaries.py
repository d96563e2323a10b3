"""What a model says of several documents (Algorithm 3 of MMKB-RAG): in its own words, or by choosing sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from reflectune.core.types import AnswerStyle, Passage
from reflectune.data_builders.probing.labels import Rule, is_right, srt_labels
from reflectune.data_builders.probing.records import Probe, finite_sum
from reflectune.models.prefix.engine import PrefixEngine, Prefixes
from reflectune.models.schemes.prompts import PromptScheme
from reflectune.retrieval.passages import sentences


def add_words(
    engine: PrefixEngine, prefixes: Prefixes, probes: Sequence[Probe], lengths: Sequence[int], max_new_tokens: int
) -> list[Probe]:
    """Ask for a summary of each question's documents that turn a wrong greedy answer right, where there are several.

    If the context doesn't hold all of them, the best that it holds are summed up, at least two.

    Args:
        engine: Of the model.
        prefixes: The questions, as the engine has read them.
        probes: Their probes so far.
        lengths: Tokens of each prefix.
        max_new_tokens: The longest summary.
    """
    renderer = engine.renderer
    asked: dict[int, list[Passage]] = {}
    branches: list[list[list[int]]] = [[] for _ in probes]
    for q, probe in enumerate(probes):
        passages = [label.document.passage for label in srt_labels(probe, Rule()) if label.relevant]
        room = engine.max_length - lengths[q] - max_new_tokens
        while (
            len(passages) > 1
            and len(ids := PromptScheme.of(renderer).prompt_branch(renderer, "summary", passages)) > room
        ):
            passages.pop()
        if len(passages) > 1:
            asked[q], branches[q] = passages, [ids]
    if not asked:
        return list(probes)
    state = engine.branch(prefixes, branches)
    found = engine.generate(state, [(q, 0) for q in asked], max_new_tokens=max_new_tokens)
    made = list(probes)
    for (q, passages), own in zip(asked.items(), found, strict=True):
        text = "" if finite_sum(own.log_probs) is None else renderer.strip(own.text)
        made[q] = dataclasses.replace(probes[q], summary=text, summarised=tuple(p.id for p in passages))
    return made


def add_sentences(
    engine: PrefixEngine,
    prefixes: Prefixes,
    probes: Sequence[Probe],
    answers: Sequence[Sequence[int]],
    styles: Sequence[AnswerStyle],
) -> list[Probe]:
    """Choose a sentence of each document from which the greedy answer is right: the most telling one for the model.

    It is the one from which the model finds the accepted answer most probable, reading it in the document's place; the
    first of equal ones. A document of one sentence has no other.

    Args:
        engine: Of the model.
        prefixes: The questions, as the engine has read them.
        probes: Their probes so far.
        answers: Token ids of each question's accepted answer; none for a question that has no answer.
        styles: How each question's answer is asked for.
    """
    renderer, rule = engine.renderer, Rule()
    choices: list[list[tuple[int, str]]] = [[] for _ in probes]  # (document, sentence) of each question
    for q, probe in enumerate(probes):
        for k, document in enumerate(probe.documents):
            if answers[q] and is_right(document.replies, rule):
                choices[q] += [(k, sentence) for sentence in dict.fromkeys(sentences(document.passage.text))]
    rows = [(q, i) for q, own in enumerate(choices) for i in range(len(own))]
    if not rows:
        return list(probes)

    def branch(q: int, k: int, sentence: str) -> list[int]:
        passage = dataclasses.replace(probes[q].documents[k].passage, text=sentence)
        return PromptScheme.of(renderer).prompt_branch(renderer, "vqa", [passage], styles[q])

    state = engine.branch(prefixes, [[branch(q, *choice) for choice in own] for q, own in enumerate(choices)])
    found = engine.score(state, rows, [answers[q] for q, _ in rows])
    best: dict[tuple[int, int], tuple[float, str]] = {}
    for (q, i), log_probs in zip(rows, found, strict=True):
        k, sentence = choices[q][i]
        score = finite_sum(log_probs)
        if score is not None and ((q, k) not in best or score > best[q, k][0]):
            best[q, k] = (score, sentence)
    return [
        dataclasses.replace(
            probe,
            documents=tuple(
                dataclasses.replace(own, sentence=best[q, k][1]) if (q, k) in best else own
                for k, own in enumerate(probe.documents)
            ),
        )
        for q, probe in enumerate(probes)
    ]

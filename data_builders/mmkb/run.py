"""Derive a folder of MMKB-RAG's training data from a folder of probes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.types import Metric, Question
from reflectune.data_builders.annotators.proofreading import PAGE_EXAMPLES, PageArticle, PageLabel, write_page
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mmkb.labels import Labels, LabelSettings, assemble, derive, sample_labels
from reflectune.data_builders.mmkb.mct import RelScores
from reflectune.data_builders.mmkb.statistics import label_statistics, truth_table, truth_text
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.data_builders.probing.statistics import probe_statistics, probe_table
from reflectune.data_builders.probing.store import probes_fingerprint, read_settings, stream_probes
from reflectune.formats.dataset import Dataset
from reflectune.formats.questions import is_held_out
from reflectune.formats.reflection_data import (
    add_split,
    add_statistics,
    earlier_manifest,
    write_examples,
)
from reflectune.metrics.judging.bem import Bem
from reflectune.metrics.scoring.scoring import Answered, score_answers
from reflectune.models.schemes.examples import PromptedExample
from reflectune.models.schemes.mct import write_reply

SCHEME = "mmkb_rag"
_PROBED = dict.fromkeys(("model", "prompts", "dataset", "knowledge", "split", "metric", "summary"), str) | {"seed": int}
"""Settings that the probes must have been made with, and their types."""


def run(config: DeriveConfig) -> str:
    """Derive the labels of one split, and return a summary in a few lines.

    Writes `{split}.parquet` (named after the probed split, usually `train`), `reflection.json`, `statistics.json` and
    `proofread_{split}.html`. Other splits of the folder stay in the manifest and in the statistics.

    Raises:
        UserError: The probes are of a different data set, the folder holds other data, or no label is found.
    """
    dataset = Dataset(Path(config.dataset))
    probed = _read_probed(config, dataset)
    split, output = str(probed["split"]), Path(config.output)
    manifest = earlier_manifest(output, SCHEME, dataset.root)
    probes = list(stream_probes(config.probes))
    questions = _questions(dataset, split, {probe.question_id for probe in probes})
    probes = [probe for probe in probes if not is_held_out(questions[probe.question_id], config.hold_out)]
    if config.metric:
        probes, probed["metric"] = _rescored(config, config.metric, probes, questions)
    settings = LabelSettings.of(config)
    scores = read_rel_scores(config.rel_scores) if config.rel_scores else None
    derived = derive(probes, questions, settings, summaries=probed["summary"] != "none", rel_scores=scores)
    taken = sample_labels(derived, settings)
    examples = assemble(taken, derived, questions, settings)
    if not examples:
        raise UserError(
            f"{config.probes}: the rule `{config.rule}` gives no label; try a different rule, or probe more questions"
        )
    numbers: dict[str, Any] = {
        "examples": len(examples),
        "branches": sum(len(example.branches) for example in examples),
        "taken": label_statistics(taken),
        "derived": label_statistics(derived),
        "probes": probe_statistics(probes, settings),
        "truth": truth_table(probes, derived.srt, questions),
        "settings": {"probes": probed, "labels": config.hashed()},
    }
    scores_hash = file_fingerprint(config.rel_scores) if config.rel_scores else ""
    key = fingerprint([config.hashed(), probed, probes_fingerprint(config.probes), scores_hash])
    write_examples(output / f"{split}.parquet", examples, PromptedExample)
    add_statistics(output, split, numbers)
    write_page(
        output / f"proofread_{split}.html",
        [probe for probe in probes if not probe.problem],
        ProbeArticles(derived, questions),
        dataset.image_roots,
        f"{split} of {dataset.root.name}",
        count=PAGE_EXAMPLES,
        seed=config.seed,
    )
    add_split(output, split, manifest, key)
    return summary(output / f"{split}.parquet", numbers)


def _read_probed(config: DeriveConfig, dataset: Dataset) -> dict[str, Any]:
    """Return the settings of the probes; raise UserError if they don't fit the data set or the config."""
    probed = read_settings(config.probes, **_PROBED)
    if probed["dataset"] != dataset.fingerprint:
        raise UserError(
            f"{config.probes} was probed on the data set {probed['about'].get('dataset')} (fingerprint "
            f"{probed['dataset']}), {config.dataset} has {dataset.fingerprint}; give the data set that was probed"
        )
    if config.min_relevant == 1 and probed["summary"] == "words":
        raise UserError(
            "`min_relevant: 1` needs probes with `summary: sentences` or `none`: `words` needs at least two documents"
        )
    return probed


def summary(target: Path, numbers: Mapping[str, Any]) -> str:
    """Return the statistics in a few lines."""
    lines = [f"{target}: {numbers['examples']:,} questions with {numbers['branches']:,} prompts"]
    for task, taken in numbers["taken"].items():
        total = numbers["derived"][task]["examples"]
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in list(taken.items())[1:])
        lines.append(f"  {task.upper()} {taken['examples']:,} of {total:,}: {counts}")
    lines += ["probes:", probe_table(numbers["probes"]), truth_text(numbers["truth"])]
    return "\n".join([*lines, *missing_labels(numbers["taken"], numbers["derived"])])


def missing_labels(taken: Mapping[str, Any], derived: Mapping[str, Any]) -> list[str]:
    """Return a warning for each task with only one label, and for MCT without an example."""
    lines = [
        f"warning: {task.upper()} has no {label}, so the model learns {other} alone; {fix}"
        for task, labels, fix in (
            ("ret", ("[Ret]", "[NoRet]"), "probe more questions, or a model that answers some of them right alone"),
            ("srt", ("[Rel]", "[NoRel]"), "probe more questions, or more documents"),
        )
        for label, other in (labels, labels[::-1])
        if taken[task]["examples"] and not taken[task][label]
    ]
    if not derived["mct"]["examples"]:
        lines.append("warning: MCT has no example; probe more questions, or evaluate with `mct: none`")
    return lines


def read_rel_scores(path: str | Path) -> RelScores:
    """Read a trained model's [Rel] probabilities from Parquet or JSONL.

    Raises:
        UserError: The file is damaged, or a row lacks a column.
    """
    try:
        if Path(path).suffix.lower() == ".parquet":
            rows = pq.read_table(path).to_pylist()
        else:
            lines = Path(path).read_text(encoding="utf-8").split("\n")  # an id may have other line separators
            rows = [json.loads(line) for line in lines if line.strip()]
        return {(row["question_id"], row["passage_id"]): float(row["score"]) for row in rows}
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"`rel_scores`: {path} can't be read: {error!r}; it needs the columns question_id, passage_id and score"
        ) from error


def _rescored(
    config: DeriveConfig, metric: Metric, probes: Sequence[Probe], questions: Mapping[str, Question]
) -> tuple[list[Probe], str]:
    """Return the probes scored by a metric, and the name of that metric."""
    bem = config.open_bem(config.device)
    scores = score_by_metric(answers_of(probes), questions, metric, bem)
    return rescore(probes, scores), f"{metric} (BEM {bem.fingerprint})" if bem else metric


def _questions(dataset: Dataset, split: str, ids: set[str]) -> dict[str, Question]:
    questions = {question.id: question for question in dataset.stream(split) if question.id in ids}
    if missing := sorted(ids - set(questions)):
        raise UserError(f"{dataset.root}: split {split} has no question {missing[0]}, which was probed; build it again")
    return questions


class ProbeArticles:
    """A function that converts a probe to an article of the proofreading page.

    Args:
        labels: All derived labels.
        questions: The questions by id.
    """

    def __init__(self, labels: Labels, questions: Mapping[str, Question]) -> None:
        self._questions = questions
        self._ret = {label.question_id: label for label in labels.ret}
        self._srt = {(label.question_id, label.document.passage.id): label.relevant for label in labels.srt}
        self._mct = {label.question_id: label for label in labels.mct}

    def __call__(self, probe: Probe) -> PageArticle:
        """Return the article of a question that could be asked."""
        question = self._questions[probe.question_id]
        accepted = canonical_answer(question) or " / ".join(map(str, question.range or ()))
        return PageArticle(
            question.id,
            question.image,
            question.text,
            [f"accepted: {accepted}"],
            [*self._labels(probe)],
            question.answers,
        )

    def _labels(self, probe: Probe) -> Iterator[PageLabel]:
        ret = self._ret.get(probe.question_id)
        token = "no label" if ret is None else "[Ret]" if ret.retrieve else "[NoRet]"
        yield PageLabel(token, answer=_answer(probe.reply), details=["alone", *_facts(probe)])
        for document in probe.documents:
            relevant = self._srt.get((probe.question_id, document.passage.id))
            yield PageLabel(
                "no label" if relevant is None else "[Rel]" if relevant else "[NoRel]",
                "relevant" if relevant else "irrelevant",
                _answer(document.reply),
                [*_facts(document), f"{document.rank}. S_ret {document.score:.2f}", "cut" if document.cut else ""],
                document.passage,
                is_judged=relevant is not None,
            )
        if mct := self._mct.get(probe.question_id):
            listed = ", ".join(passage.id for passage in mct.documents)
            yield PageLabel("MCT", answer=write_reply(mct.keep, mct.summary), details=[f"of {listed}"])


def _answer(reply: ProbedAnswer | None) -> str:
    return (reply.text if reply else "") or "nothing"


def _facts(probed: Probe | DocumentProbe) -> Iterator[str]:
    """Yield the correctness of the greedy answer, and the accepted answer's log-probability."""
    if reply := probed.reply:
        yield f"{reply.correctness:g} right" + (", broken" if reply.log_prob is None else "")
    if probed.gold_log_prob is not None:
        yield f"log p(accepted) {probed.gold_log_prob:.1f}"


QuestionAnswer = tuple[str, str]
"""A question's id and an answer to it."""


def rescore(probes: Sequence[Probe], scores: Mapping[QuestionAnswer, float]) -> list[Probe]:
    """Return the probes with new scores. An empty answer scores 0."""

    def rescored(question_id: str, reply: ProbedAnswer | None) -> ProbedAnswer | None:
        if reply is None:
            return None
        return dataclasses.replace(reply, correctness=scores[question_id, reply.text] if reply.text.strip() else 0.0)

    return [
        dataclasses.replace(
            probe,
            reply=rescored(probe.question_id, probe.reply),
            documents=tuple(
                dataclasses.replace(document, reply=rescored(probe.question_id, document.reply))
                for document in probe.documents
            ),
        )
        for probe in probes
    ]


def answers_of(probes: Sequence[Probe]) -> list[QuestionAnswer]:
    """Return the distinct pairs of question and answer, in order, without empty answers."""
    return list(
        dict.fromkeys(
            (probe.question_id, reply.text) for probe in probes for reply in probe.replies if reply.text.strip()
        )
    )


def score_by_metric(
    answers: Sequence[QuestionAnswer], questions: Mapping[str, Question], metric: Metric, bem: Bem | None = None
) -> dict[QuestionAnswer, float]:
    """Return the official scores of answers, in [0, 1]. An answer too long for BEM is wrong.

    Raises:
        UserError: A question lacks the reference that the metric needs, or `evqa` lacks `bem`.
    """
    answered = [Answered(questions[name], text, f"probe of {name}") for name, text in answers]
    values, _ = score_answers(answered, metric, "official", bem, too_long="wrong")
    return dict(zip(answers, values.tolist(), strict=True))

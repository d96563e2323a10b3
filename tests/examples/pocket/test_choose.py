import json
import math
import random
import sys

import pytest
from PIL import Image

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.rows import to_row
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.data_builders.probing.store import begin, seal
from reflectune.examples.pocket import choose
from reflectune.examples.pocket.choice_fit import DocumentChoice, JudgedDocument, fit_choice
from reflectune.formats.dataset import write_questions
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.inference.reading.document_choice import fuse, keep_relevant
from reflectune.inference.reading.ranking import document_shares
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample


def test_fusion_adds_log_odds_and_shares_are_of_the_documents_entries() -> None:
    assert fuse(0.3, 0.5, (1, 0, 0)) == pytest.approx(0.3)
    assert fuse(0.5, 0.25, (1, 1, 0)) == pytest.approx(0.2)  # odds of 1 times a quarter
    assert 0 <= fuse(0.0, 0.0, (1e9, 1e9, 0)) < 1e-9
    assert document_shares(["a", "b", "a"], [0.8, 0.7, 0.8], 0.1) == pytest.approx([0.731, 0.269, 0.731], abs=1e-3)


def drawn(count: int, weights: tuple[float, float, float], temperature: float) -> list[list[JudgedDocument]]:
    """Draw questions whose documents are right with the probability that the weights give."""
    rng, questions = random.Random(0), []
    for _ in range(count):
        similarities = [rng.uniform(0.7, 0.8) for _ in range(4)]
        scores, entries = [rng.uniform(0.05, 0.95) for _ in range(4)], list("abcd")
        shares = document_shares(entries, similarities, temperature)
        chances = [fuse(s, share, weights) for s, share in zip(scores, shares, strict=True)]
        rows = zip(entries, similarities, scores, [rng.random() < p for p in chances], strict=True)
        questions.append([JudgedDocument(*row) for row in rows])
    return questions


def test_the_fit_recovers_the_weights_and_beats_srt_alone() -> None:
    weights = (0.8, 1.5, 0.6)
    questions = drawn(3000, weights, 0.02)
    choice = fit_choice(questions)
    assert choice.s_ret_temperature == 0.02
    assert choice.srt_fusion == pytest.approx(weights, abs=0.15)
    alone = [q[keep_relevant([d.score for d in q], 1, 0.5)[0][0]].right for q in questions]
    assert choice.f1 > sum(alone) / len(alone)
    assert not choice.k or choice.threshold == 0.5


def test_a_choice_is_printed_as_options_and_needs_both_kinds() -> None:
    choice = DocumentChoice(0.02, (1.0, 0.5, -1.25), 0, 0.35, 0.6)
    assert choice.flags == "--s_ret_temperature 0.02 --srt_fusion 1 0.5 -1.25 --k auto --threshold 0.35"
    separable = fit_choice([[JudgedDocument("a", 0.9, 0.9, True), JudgedDocument("b", 0.5, 0.1, False)]] * 5)
    assert (separable.f1, all(map(math.isfinite, separable.srt_fusion))) == (1.0, True)
    with pytest.raises(UserError, match="of one kind"):
        fit_choice([[JudgedDocument("a", 0.9, 0.9, True)]])


def test_all_documents_are_judged_and_the_choice_is_fitted_on_held_out_questions(tmp_path, monkeypatch, capsys) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    write_json(tmp_path / "dataset.json", {"name": "w", "fingerprint": "d"})
    write_questions(tmp_path, "train", [Question(name, "a.png", "What?", ("oak",), split="train") for name in "abc"])
    with begin(tmp_path / "probes", {"split": "train"}).open() as log:
        for name in "abc":
            passages = [Passage(f"e{k}", 0, 0, "T", "", "H", f"It is made of {k}.") for k in range(2)]
            documents = tuple(
                DocumentProbe(p, 0.8, k, ProbedAnswer("oak", float(k == 1), -1.0))
                for k, p in enumerate(passages, start=1)
            )
            log.append(name, to_row(Probe(name, ProbedAnswer("elm", 0.0, -1.0), documents)))
    seal(tmp_path / "probes")
    write_examples(tmp_path / "train.parquet", [PromptedExample("a", "a.png", "?", (PromptedBranch("ret", role="x"),))])
    write_manifest(tmp_path, Manifest("mmkb_rag", tmp_path, {"train": "0"}))

    paths = {"probes": tmp_path / "probes", "dataset": tmp_path, "labels": tmp_path, "output": tmp_path / "choice"}
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    monkeypatch.setattr(sys, "argv", ["choose", "--model", "miniature/llava", "--dtype", "float32", "--all", *options])
    choose.main()

    assert capsys.readouterr().out.startswith("--s_ret_temperature")
    assert json.loads((tmp_path / "choice/choice.json").read_text())["questions"] == 2
    rows = [json.loads(line) for line in (tmp_path / "choice/rel_scores.jsonl").read_text().splitlines()]
    assert [(row["question_id"], row["passage_id"]) for row in rows[:3]] == [
        ("a", "e0#0.0"),
        ("a", "e1#0.0"),
        ("b", "e0#0.0"),
    ]
    assert all(0 < row["score"] < 1 for row in rows)

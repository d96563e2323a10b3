import json
import sys

from PIL import Image

from reflectune.core.durable import write_json
from reflectune.core.rows import to_row
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.data_builders.probing.store import begin, seal
from reflectune.examples.pocket import choose
from reflectune.formats.dataset import write_questions
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample


def answer(right: bool) -> tuple[ProbedAnswer]:
    return (ProbedAnswer("oak", float(right), -1.0),)


def test_all_documents_are_judged_and_the_choice_is_fitted_on_held_out_questions(tmp_path, monkeypatch, capsys) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    write_json(tmp_path / "dataset.json", {"name": "w", "fingerprint": "d"})
    write_questions(tmp_path, "train", [Question(name, "a.png", "What?", ("oak",), split="train") for name in "abc"])
    with begin(tmp_path / "probes", {"split": "train"}).open() as log:
        for name in "abc":
            passages = [Passage(f"e{k}", 0, 0, "T", "", "H", f"It is made of {k}.") for k in range(2)]
            documents = tuple(DocumentProbe(p, 0.8, k, answer(k == 1)) for k, p in enumerate(passages, start=1))
            log.append(name, to_row(Probe(name, answer(False), documents)))
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

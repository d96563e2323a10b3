import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.core.rows import to_row
from reflectune.core.types import Passage, Question
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mmkb.run import read_rel_scores, run
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.data_builders.probing.store import begin, seal
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.reflection_data import Manifest, read_examples, read_manifest, write_manifest
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.mct import read_reply

Make = Callable[..., DeriveConfig]
SETTINGS = {"model": "m123", "prompts": "p123", "knowledge": "k123", "dataset": "d123", "metric": "infoseek"}
SETTINGS |= {"seed": 7, "split": "train", "summary": "sentences"}


def answers(right: bool) -> ProbedAnswer:
    return ProbedAnswer("oak" if right else "elm", float(right), -1.0)


def document(number: int, right: bool, text: str = "It is made of elm.") -> DocumentProbe:
    passage = Passage(f"e{number % 2}", 0, number, "Title", "A lead.", "Nature", text)
    return DocumentProbe(passage, 0.9 - number / 10, number, answers(right), -5.0, text if right else "")


STATED = "It is made of oak."
LOOKED_UP = (document(1, True, STATED), document(2, True, "Oak was used."), document(3, False))
PROBES = [
    Probe("known", answers(True), (document(1, True, STATED), document(2, False)), gold="oak", gold_log_prob=-1.0),
    Probe("looked_up", answers(False), LOOKED_UP, gold="oak", gold_log_prob=-9.0),
    Probe("lost", answers(False), (document(2, False),), gold="oak", gold_log_prob=-9.0),
    Probe("alone", answers(False)),
    Probe("bad", problem="image not found"),
]


@pytest.fixture
def config(tmp_path: Path) -> Make:
    """Return a function that makes the config of five probed questions about one image."""
    world, probes = tmp_path / "world", tmp_path / "probes"
    world.mkdir()
    (world / "dataset.json").write_text(json.dumps({"name": "w", "fingerprint": "d123"}))
    Image.new("RGB", (40, 30), "red").save(world / "a.png")
    questions = [
        Question(p.question_id, "a.png", "What is it made of?", ("oak",), split="train", entity_ids=("e1",))
        for p in PROBES
    ]
    write_questions(world, "train", questions)
    with begin(probes, SETTINGS).open() as log:
        for probe in PROBES:
            log.append(probe.question_id, to_row(probe))
    seal(probes, {"model": "some/model", "dataset": "w"})

    def make(output: str = "out", **more: Any) -> DeriveConfig:
        more = {"rule": "paper", **more}
        made = DeriveConfig(dataset=str(world), probes=str(probes), output=str(tmp_path / output), **more)
        assert made.problems() == []
        return made

    return make


def branches(config: DeriveConfig) -> dict[str, list[PromptedBranch]]:
    run(config)
    return {e.id: list(e.branches) for e in read_examples(Path(config.output, "train.parquet"), PromptedExample)}


def numbers_of(config: DeriveConfig) -> dict[str, Any]:
    return json.loads(Path(config.output, "statistics.json").read_text())["train"]


def prompt_and_reply(branch: PromptedBranch) -> tuple[str, str]:
    return branch.prompt, branch.role or branch.reply


def test_a_question_has_the_branches_of_all_three_tasks(config: Make) -> None:
    by_question = branches(config())
    tasks = {"alone": ["ret"], "known": ["ret", "srt"], "looked_up": ["ret", "srt", "srt", "mct"], "lost": ["ret"]}
    assert {key: [branch.prompt for branch in made] for key, made in by_question.items()} == tasks
    assert prompt_and_reply(by_question["known"][0]) == ("ret", "no_retrieve")
    assert prompt_and_reply(by_question["known"][1]) == ("srt", "irrelevant")
    assert prompt_and_reply(by_question["looked_up"][0]) == ("ret", "retrieve")
    assert [prompt_and_reply(branch) for branch in by_question["looked_up"][1:3]] == [("srt", "relevant")] * 2
    mct = by_question["looked_up"][3]
    reply = read_reply(mct.reply, len(mct.documents))
    assert [mct.documents[n - 1] for n in reply.keep] == [document.passage for document in PROBES[1].documents[:2]]
    assert reply.summary == f"{STATED} Oak was used."
    assert len(mct.documents) == 3  # one irrelevant one where two are asked for


def test_a_shared_model_learns_to_answer_too(config: Make) -> None:
    last = {key: made[-1] for key, made in branches(config(answer_model="shared")).items() if made[-1].prompt == "vqa"}
    answered = {key: (len(branch.documents), branch.reply) for key, branch in last.items()}
    assert answered == {"known": (0, "oak"), "looked_up": (2, "oak")}


def test_an_external_labeller_labels_all_documents_in_the_same_form(config: Make) -> None:
    by_question = branches(config(labeller="string"))
    roles = {key: [branch.role for branch in made if branch.prompt == "srt"] for key, made in by_question.items()}
    assert roles["known"] == ["relevant", "irrelevant"]
    assert roles["looked_up"] == ["relevant", "relevant", "irrelevant"]
    assert [made[0].role for made in by_question.values()] == ["retrieve", "no_retrieve", "retrieve", "retrieve"]


def test_documents_of_visual_questions_can_be_left_unlabelled(config: Make) -> None:
    made = config(srt_visual=False)
    known = next(q for q in Dataset(Path(made.dataset)).questions("train") if q.id == "known")
    others = [q for q in Dataset(Path(made.dataset)).questions("train") if q.id != "known"]
    write_questions(made.dataset, "train", [dataclasses.replace(known, requires_retrieval=False), *others])
    by_question = branches(made)
    assert [branch.prompt for branch in by_question["known"]] == ["ret"]
    assert [branch.prompt for branch in by_question["looked_up"]] == ["ret", "srt", "srt", "mct"]


def test_manifest_and_statistics_describe_the_labels(config: Make) -> None:
    made = config()
    text, output = run(made), Path(made.output)
    numbers = numbers_of(made)
    assert read_manifest(output) == Manifest("mmkb_rag", Path(made.dataset), read_manifest(output).fingerprints)
    assert numbers["derived"]["ret"] == {"examples": 4, "[Ret]": 3, "[NoRet]": 1}
    assert numbers["derived"]["srt"]["[Rel]"] == 2
    assert numbers["derived"]["mct"]["with_fewer_than_wanted"] == 1
    assert numbers["probes"]["bad_questions"] == [{"id": "bad", "problem": "image not found"}]
    assert numbers["truth"]["table"]["[Rel]"] == {"states": 1, "states_not": 1}
    assert "RET 4 of 4: [Ret] 3, [NoRet] 1" in text
    assert "questions with both labels 0" in text
    assert "precision 50.0 %" in text
    assert numbers["settings"]["probes"] == {**SETTINGS, "about": {"model": "some/model", "dataset": "w"}}
    labels = numbers["settings"]["labels"]
    assert (labels["rule"], labels["seed"]) == ("paper", 0)


def test_the_page_shows_the_questions_that_were_asked(config: Make) -> None:
    made = config()
    run(made)
    page = Path(made.output, "proofread_train.html").read_text()
    assert page.count("<article>") == 4
    assert page.count('class="label relevant"') == 2


def test_the_same_settings_give_the_same_files(config: Make) -> None:
    first, again, other = config("first"), config("again"), config("other", tau=0.0)
    for made in (first, again, other):
        run(made)
    for name in ("train.parquet", "reflection.json", "statistics.json", "proofread_train.html"):
        assert Path(first.output, name).read_bytes() == Path(again.output, name).read_bytes()
    assert read_manifest(first.output).fingerprints != read_manifest(other.output).fingerprints


def test_balance_and_limits_are_applied(config: Make) -> None:
    by_question = branches(config(srt_balance=1, ret_limit=2, mct_limit=1))
    every = [prompt_and_reply(branch) for question_branches in by_question.values() for branch in question_branches]
    assert [prompt for prompt, _ in every].count("ret") == 2
    assert every.count(("srt", "relevant")) == every.count(("srt", "irrelevant")) == 1


def test_held_out_entities_give_no_labels(config: Make) -> None:
    assert len(branches(config("few", hold_out=1e-9))) == 4
    with pytest.raises(UserError, match="gives no label"):
        run(config("all", hold_out=1))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_trained_scores_order_the_reply(config: Make, tmp_path: Path, suffix: str) -> None:
    rows = [{"question_id": "looked_up", "passage_id": d.passage.id, "score": d.rank / 10} for d in PROBES[1].documents]
    path = tmp_path / f"scores.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    mct = branches(config(rel_scores=str(path)))["looked_up"][-1]
    ordered = [mct.documents[number - 1].index for number in read_reply(mct.reply, len(mct.documents)).keep]
    assert ordered == [2, 1]


def test_unreadable_scores_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text('{"question_id": "q", "score": 0.5}\n')
    with pytest.raises(UserError, match="question_id, passage_id and score"):
        read_rel_scores(path)


def test_other_data_is_refused(config: Make, tmp_path: Path) -> None:
    made = config()
    manifest = Path(made.dataset, "dataset.json")
    manifest.write_text(json.dumps({"name": "v", "fingerprint": "else"}))
    with pytest.raises(UserError, match="was probed on the data set w"):
        run(made)
    manifest.write_text(json.dumps({"name": "w", "fingerprint": "d123"}))
    write_manifest(made.output, Manifest("mr2ag", Path(made.dataset), {}))
    with pytest.raises(UserError, match=r"holds reflection data of mr2ag with"):
        run(made)


def test_a_second_split_is_added_to_the_folder(config: Make, tmp_path: Path) -> None:
    first = config()
    run(first)
    train = {name: Path(first.output, name).read_bytes() for name in ("train.parquet", "reflection.json")}
    statistics = json.loads(Path(first.output, "statistics.json").read_text())
    questions = Dataset(Path(first.dataset)).questions("train")
    write_questions(first.dataset, "val", [dataclasses.replace(question, split="val") for question in questions])
    with begin(tmp_path / "val_probes", {**SETTINGS, "split": "val"}).open() as log:
        for probe in PROBES:
            log.append(probe.question_id, to_row(probe))
    seal(tmp_path / "val_probes", {"model": "some/model", "dataset": "w"})

    run(first.model_copy(update={"probes": str(tmp_path / "val_probes")}))

    fingerprints = read_manifest(first.output).fingerprints
    assert list(fingerprints) == ["train", "val"]
    assert fingerprints["train"] == json.loads(train["reflection.json"])["fingerprints"]["train"]
    assert Path(first.output, "train.parquet").read_bytes() == train["train.parquet"]
    both = json.loads(Path(first.output, "statistics.json").read_text())
    assert both["train"] == statistics["train"]
    assert both["val"]["examples"] == statistics["train"]["examples"]
    run(first)  # once more: nothing is lost or doubled
    assert read_manifest(first.output).fingerprints == fingerprints


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    argv = ["--probes", str(tmp_path), "--tau", "100", "--srt_balance", "0.5", "--rel_scores", "x"]
    with pytest.raises(UserError) as caught:
        parse_config(DeriveConfig, argv=argv)
    keys = ("`output` is", "`tau` is a", "`srt_balance` must", "`rel_scores`")
    for part in ("no probes.json", *keys):
        assert part in str(caught.value)


def test_paths_do_not_determine_the_labels(config: Make) -> None:
    made = config()
    assert made.model_copy(update={"output": "x"}).hashed() == made.hashed()
    assert made.model_copy(update={"answer_model": "shared"}).hashed() != made.hashed()


def test_another_metric_changes_labels_without_the_target_model(config: Make) -> None:
    again, as_probed = config("again", metric="vqa"), config("as_probed")
    run(again), run(as_probed)
    derived = [numbers_of(made)["derived"] for made in (again, as_probed)]
    # By VQA's soft accuracy nothing is right: one annotator is not enough.
    assert [task_counts["ret"]["[NoRet]"] for task_counts in derived] == [0, 1]
    assert [task_counts["srt"]["examples"] > 0 for task_counts in derived] == [False, True]
    assert '"metric": "vqa"' in Path(again.output, "statistics.json").read_text()


def test_a_metric_and_what_it_needs_go_together(config: Make) -> None:
    with pytest.raises(AssertionError, match="`bem`"):
        config(metric="evqa")


def test_no_model_library_is_needed() -> None:
    code = "import sys, reflectune.data_builders.mmkb.run; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, origin_of
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.data_builders.probing.labels import Rule
from reflectune.data_builders.probing.run import run
from reflectune.data_builders.probing.statistics import probe_statistics
from reflectune.data_builders.probing.store import read_settings, stream_probes
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.retrieval.encoders import base

from .conftest import SETTINGS

Make = Callable[..., ProbeConfig]


def content(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(scope="session")
def straight(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the probes of twelve questions, made without interruption by one process."""
    folder = tmp_path_factory.mktemp("straight")
    run(ProbeConfig(**{**SETTINGS, "dataset": str(world), "index": str(world / "index"), "output": str(folder)}))
    return folder


def test_every_question_is_probed_with_its_documents(straight: Path, world: Path) -> None:
    probes = list(stream_probes(straight))
    assert len(probes) == 12
    assert [probe.question_id for probe in probes] == sorted(probe.question_id for probe in probes)
    assert all([document.rank for document in probe.documents] == [1, 2, 3] for probe in probes)
    assert all(probe.gold and probe.gold_log_prob is not None for probe in probes)
    assert {path.suffix for path in straight.iterdir()} == {".json", ".parquet"}
    about = {"model": "miniature/llava", "dataset": Dataset(world).manifest["name"], "encoder": "miniature/clip"}
    assert read_settings(straight)["about"] == {**about, "limit": 12}


def test_a_finished_folder_is_not_probed_again(straight: Path, config: Make, capsys: pytest.CaptureFixture) -> None:
    again = config("again")
    shutil.copytree(straight, again.output)
    run(again)
    assert content(again.output) == content(straight)
    assert "12 questions probed" in capsys.readouterr().out


def test_questions_that_the_model_was_trained_on_are_not_asked(straight, config, world, tmp_path) -> None:
    data, trained = tmp_path / "data", [probe.question_id for probe in stream_probes(straight)][:5]
    examples = [ReflectionExample(question_id, "i.png", "What?", False, "it") for question_id in trained]
    write_examples(data / "train.parquet", examples)
    write_manifest(data, Manifest("plain", world, {"train": "of these five"}))
    asking = config("untrained", trained_on=str(data))
    run(asking)
    asked = {probe.question_id for probe in stream_probes(asking.output)}
    assert len(asked) == 12
    assert not asked & {*trained}
    assert read_settings(asking.output)["trained_on"] == "of these five"
    assert read_settings(asking.output)["leave_out_facts"] is False
    with pytest.raises(UserError, match="`leave_out_facts` was False, is now True"):
        run(asking.model_copy(update={"leave_out_facts": True}))
    with pytest.raises(UserError, match="no data of the split val"):
        run(config("other", trained_on=str(data), split="val_unseen_entity"))


def test_a_higher_limit_adds_questions(straight: Path, config: Make) -> None:
    more = config("more", limit=16)
    shutil.copytree(straight, more.output)
    run(more)
    before = {probe.question_id: probe for probe in stream_probes(straight)}
    after = {probe.question_id: probe for probe in stream_probes(more.output)}
    assert len(after) == 16
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"metric": "evqa_exact", "max_new_tokens": 9}, ["`metric` was 'infoseek', is now 'evqa_exact'", "`max_new_"]),
        ({"documents": 2, "documents_of": "own", "seed": 1}, ["`documents`", "`documents_of`", "`seed`"]),
        ({"part": "1/2"}, ["`part` was '', is now '1/2'"]),
        ({"model": "miniature/qwen2_vl"}, ["`model`"]),
        ({"image_fit": "pad"}, ["`model`"]),  # the model would see different images
    ],
    ids=["answers", "documents", "part", "model", "image_fit"],
)
def test_other_settings_are_refused(straight: Path, config: Make, changes: dict[str, Any], problems: list[str]) -> None:
    changed = config("changed", **changes)
    shutil.copytree(straight, changed.output)
    with pytest.raises(UserError, match="begun with other settings") as caught:
        run(changed)
    assert all(problem in str(caught.value) for problem in problems)
    assert content(changed.output) == content(straight)


@pytest.mark.parametrize("key", ["dataset", "questions"])
def test_a_changed_data_set_and_edited_questions_are_refused(
    straight: Path, config: Make, world: Path, tmp_path: Path, key: str
) -> None:
    copied = shutil.copytree(world, tmp_path / "world")
    if key == "dataset":
        write_json(copied / "dataset.json", {**Dataset(world).manifest, "fingerprint": "another"})
    else:
        first, *others = Dataset(world).questions("train")
        write_questions(copied, "train", [dataclasses.replace(first, text="What is it?"), *others])
    changed = config("changed", dataset=str(copied))
    shutil.copytree(straight, changed.output)
    with pytest.raises(UserError, match=f"`{key}` was"):
        run(changed)


def test_a_dry_run_shows_prompts_and_writes_nothing(config: Make, capsys: pytest.CaptureFixture) -> None:
    made = config("dry", dry_run=True)
    run(made)
    printed = capsys.readouterr().out
    assert "12 questions of train" in printed
    assert "<image> × 16" in printed
    assert "Based on the retrieved document" in printed
    assert not Path(made.output).exists()


def test_bad_questions_stop_or_are_listed(config: Make, world: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(world, tmp_path / "world")
    questions = Dataset(broken).questions("train")[:5]
    bad = [{"image": "images/none.png"}, {"image": ""}, {"text": " "}, {"answers": (), "answer_type": "string"}]
    made = [dataclasses.replace(q, **changes) for q, changes in zip(questions, [*bad, {}], strict=True)]
    write_questions(broken, "train", made)
    with pytest.raises(UserError, match=r"on_error: skip"):
        run(config("stopped", dataset=str(broken)))
    skipping = config("skipped", dataset=str(broken), on_error="skip")
    run(skipping)
    problems = {probe.question_id: probe.problem for probe in stream_probes(skipping.output)}
    assert [bool(problems[q.id]) for q in made] == [True, True, True, True, False]
    for question, problem in zip(made, ("image not found", "no image", "no text", "no answers", ""), strict=True):
        assert problem in problems[question.id]
    numbers = probe_statistics(stream_probes(skipping.output), Rule())
    assert (numbers["questions"], numbers["bad"], len(numbers["bad_questions"])) == (5, 4, 4)


def test_an_image_that_the_encoder_refuses_is_listed(config: Make, world: Path, monkeypatch) -> None:
    call, asked = base.call_processor, {question.id: question for question in Dataset(world).questions("train")}
    image_of_bad = asked["world_train_000003"].image

    def picky(processor: Any, image: Image.Image, *fitted: Image.Image) -> Any:
        if image_of_bad in origin_of(image):
            raise BadImage("image refused by the encoder")
        return call(processor, image, *fitted)

    monkeypatch.setattr(base, "call_processor", picky)
    with pytest.raises(
        UserError, match=r"question world_train_000003 .*: image refused by the encoder; .*on_error: skip"
    ):
        run(config("stopped"))
    run(skipping := config("skipped", on_error="skip"))
    problems = {probe.question_id: probe.problem for probe in stream_probes(skipping.output)}
    refused = {name for name in problems if asked[name].image == image_of_bad}
    assert {name for name, problem in problems.items() if problem == "image refused by the encoder"} == refused
    assert len(refused) < len(problems)


@pytest.mark.slow
def test_killed_runs_end_as_one_that_was_not(straight, config, start_program, start_launch) -> None:
    """Kill twice as soon as rows appear: the first start has two processes, the second one, the last two again."""
    made = config("killed")
    kill_after(1, made, start_launch("data_builders/probe.py", flags(made)))
    kill_after(5, made, start_program(["-m", "reflectune", "probe", *flags(made)]))
    assert start_launch("data_builders/probe.py", flags(made)).wait() == 0
    assert content(made.output) == content(straight)


def kill_after(rows: int, made: ProbeConfig, process: Any) -> None:
    """Kill a launcher or program and its processes once this number of rows is on the disk."""
    deadline = time.monotonic() + 120
    while sum(log.read_bytes().count(b"\n") - 1 for log in Path(made.output).glob("log-*.jsonl")) < rows:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()


def flags(made: ProbeConfig) -> list[str]:
    """Return a config as flags."""
    default = ProbeConfig()
    values = {name: value for name, value in made.model_dump().items() if value != getattr(default, name)}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]

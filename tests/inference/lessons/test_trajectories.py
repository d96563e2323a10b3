"""Trajectories for SFT: training reads the tokens that inference reads, and only right, well-formed ones are kept."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of
from reflectune.core.types import FollowUp, Question
from reflectune.examples.lessons import trajectories
from reflectune.examples.lessons.keep_trajectories import TrajectoriesConfig, keep_trajectories
from reflectune.examples.lessons.trajectories import also_held_out, choose, replay
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import read_examples, read_statistics
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import Prompt
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.promsa import SYSTEM, Promsa, PromsaSettings
from reflectune.inference.trace import Trace, to_row
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.train.data.examples import load_examples
from reflectune.train.data.mixture import DataSource

IMAGE = '<thinking>Which one?</thinking>\n<tool_call>{"name": "image_search", "arguments": {}}</tool_call>'
TEXT = '<thinking>An oak.</thinking>\n<tool_call>{"name": "text_search", "arguments": {"query": "oak"}}</tool_call>'
RIGHT = "<thinking>Of wood.</thinking>\n<answer>oak</answer>"
WRONG = "<thinking>Of stone.</thinking>\n<answer>stone</answer>"
SETTINGS = PromsaSettings(call_passages=1, max_record_tokens=32, max_new_tokens=8)


def asked(number: int, text: str = "What is it made of?", image: str = "a.png", **more: Any) -> Question:
    return Question(f"q{number}", image, text, ("oak",), split=more.pop("split", "train"), **more)


def trace(
    scripting: type[Any], number: int, *replies: str, retries: bool = False, budget: Budget | None = None
) -> Trace:
    said, passages = iter(replies), ["tower", "oak", "elm"]
    script = scripting(say=lambda prompt: next(said), find=lambda query, base: passages, retries=retries)
    tools = dataclasses.replace(script.tools, budget=budget or Budget())
    pipeline = TrajectoryPipeline("promsa", Promsa(SETTINGS, "texts"), tools)
    return pipeline.run([asked(number)], [Image.new("RGB", (8, 8))])[0]


def test_training_reads_the_tokens_that_inference_reads(checkpoints, images) -> None:
    engine = PrefixEngine(load(checkpoints.base))
    rounds = ((IMAGE, "Title e1: made of <image> oak. "), (TEXT, "two\n\nlines"))
    prompt = Prompt("{question}", {"question": "What is it made of?"}, system=SYSTEM, rounds=rounds)
    _, rendered = LocalModel(engine, 1).fit(images[0], prompt, 8)
    follow_ups = (FollowUp(rounds[0][1], TEXT), FollowUp(rounds[1][1], RIGHT))
    branches = (PromptedBranch("vqa", reply=IMAGE),)
    example = PromptedExample(
        "q", "q.png", "What is it made of?", branches, template="{question}", system=SYSTEM, follow_ups=follow_ups
    )
    assert not PLAIN.problem(example)
    tree, renderer = PLAIN.encode(engine.renderer, example, images[0]), engine.renderer
    (branch,) = tree.branches
    assert [*tree.prefix.ids, *branch.ids] == [*rendered.ids, *renderer.reply_ids(RIGHT)]
    supervised = [label for label in branch.labels if label != -100]
    assert supervised == [token for reply in (IMAGE, TEXT, RIGHT) for token in renderer.reply_ids(reply)]


def test_one_right_and_short_trajectory_a_question_is_kept(scripting: type[Any]) -> None:
    traces = [
        trace(scripting, 0, IMAGE, TEXT, RIGHT),
        trace(scripting, 0, IMAGE, RIGHT),
        trace(scripting, 1, IMAGE, WRONG),
        trace(scripting, 2, IMAGE, "<answer>oak</answer>"),
        trace(scripting, 3, '<thinking>x</thinking><tool_call>{"name": "web"}</tool_call>', RIGHT),
        trace(scripting, 4, "oak?", RIGHT, retries=True),
        trace(scripting, 5, IMAGE, IMAGE, TEXT, RIGHT),
        trace(scripting, 9, RIGHT),
        dataclasses.replace(trace(scripting, 5, IMAGE, RIGHT), question_hash="of other words"),
        Trace("q5", "promsa", error="no image"),
        trace(scripting, 5, IMAGE, RIGHT, budget=Budget(question_tokens=1)),
    ]
    questions = {f"q{number}": asked(number) for number in range(6)}
    chosen = choose(traces, questions, [Path()], SETTINGS, lambda answer, asked: float(answer in asked.answers), 2)
    assert [trajectory.replies for trajectory in chosen.kept.values()] == [[IMAGE, RIGHT]]
    assert chosen.left_out == {
        "a further trajectory of its question": 1,
        "wrong answer": 1,
        "not in the format": 1,
        "an unreadable call": 2,
        "more than 2 calls": 1,
        "no question to train on": 1,
        "question edited since": 1,
        "failed": 1,
        "ended by a budget": 1,
    }
    example = chosen.kept["q0"].example()
    assert example.follow_ups == (FollowUp("- tower: tower", RIGHT),)
    assert not PLAIN.problem(example)


def test_traces_of_other_settings_are_refused(scripting: type[Any]) -> None:
    written = trace(scripting, 0, IMAGE, RIGHT)
    with pytest.raises(UserError, match="trace of question q0 doesn't follow from these settings of promsa"):
        replay(asked(0), written, PromsaSettings(image_calls=0))


def test_a_question_is_held_out_if_its_id_or_its_words_and_image_are(tmp_path: Path, make, monkeypatch) -> None:
    """No image is read for each pair of questions: those of InfoSeek have few words, and there are a million."""
    read: list[Path] = []
    monkeypatch.setattr(trajectories, "sha256_of", lambda path: read.append(path) or sha256_of(path))
    for name, colour in (("a", "red"), ("b", "red"), ("c", "blue"), ("d", "green")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    held_out = [asked(0, "Other?", split="val"), asked(7, "what is it  made of?", "b.png", split="val")]
    held_out += [asked(number, image="c.png", split="val") for number in (8, 9)]
    make.data_set(tmp_path, [make.entry(1, "a.png")], held_out, image_root=".")
    training = [asked(0, "Who?"), asked(1), asked(2, image="c.png"), asked(3, "Who made it?"), asked(4, image="d.png")]
    assert also_held_out(training, Dataset(tmp_path), ["val"]) == dict.fromkeys(["q0", "q1", "q2"], "val")
    assert len(read) <= len(training) + len(held_out)


def test_kept_trajectories_are_training_data(tmp_path: Path, make, scripting: type[Any], capsys) -> None:
    world = tmp_path / "world"
    world.mkdir()
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (8, 8), colour).save(world / f"{name}.png")
    questions = [asked(0), asked(1, image="b.png"), asked(8, image="b.png", split="val")]
    make.data_set(world, [make.entry(1, "a.png")], questions, image_root=".")
    traces = tmp_path / "run" / "traces" / "promsa.jsonl"
    traces.parent.mkdir(parents=True)
    rows = [to_row(trace(scripting, 0, IMAGE, TEXT, RIGHT)), to_row(trace(scripting, 1, RIGHT))]
    traces.write_text("".join(json.dumps(row) + "\n" for row in ({"fingerprint": "f"}, *rows)))
    config = TrajectoriesConfig(
        dataset=str(world),
        evaluations=[str(tmp_path / "run")],
        output=str(tmp_path / "out"),
        held_out=["val"],
        **SETTINGS.model_dump(),
    )
    keep_trajectories(config)
    assert "2 trajectories, 1 kept" in capsys.readouterr().out
    (example,) = read_examples(tmp_path / "out/train.parquet", PromptedExample, PLAIN.problem)
    assert [later.answer for later in example.follow_ups] == [TEXT, RIGHT]
    assert list(load_examples(DataSource(str(tmp_path / "out"), "train"), "plain")[0]) == [example]
    statistics = read_statistics(tmp_path / "out")["train"]
    assert (statistics["by_calls"], statistics["also_evaluated"]) == ({"2": 1}, {"q1": "val"})
    page = (tmp_path / "out/proofread_train.html").read_text()
    assert "&lt;tool_call&gt;" in page
    assert "<tool_call>" not in page

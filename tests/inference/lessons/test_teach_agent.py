"""A scripted teacher's calls search the indexes, and its trajectories become training data as any other's."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.examples.lessons.keep_trajectories import TrajectoriesConfig, keep_trajectories
from reflectune.examples.lessons.teach_agent import TeachingConfig, teach_agent
from reflectune.formats.reflection_data import read_examples
from reflectune.inference.trace_files.reading import read_traces
from reflectune.models.schemes.examples import PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN

OAK = Entry(
    "oak",
    "Vik Oak",
    summary="A green oak.",
    images=("oak.png",),
    sections=(Section("Size", "It is 9 m tall."), Section("Neighbours", "Beside it stands the Ulm Tower.")),
)
TOWER = Entry(
    "tower",
    "Ulm Tower",
    summary="A red tower.",
    images=("tower.png",),
    sections=(Section("Size", "It is 70 m tall."), Section("People", "Ben Roth built it.")),
)
ELM = Entry("elm", "Elm Oak", summary="A blue oak.", images=("elm.png",), sections=OAK.sections)
SEARCHED = {"device": "cpu", "call_passages": 2}


@pytest.fixture
def config(tmp_path: Path, encoder: str, make) -> TeachingConfig:
    world = tmp_path / "world"
    world.mkdir()
    for name, colour in (("oak", "green"), ("tower", "red"), ("elm", "blue")):
        Image.new("RGB", (8, 8), colour).save(world / f"{name}.png")
    known: dict[str, Any] = {"split": "train", "evidence": (Evidence("oak", 1), Evidence("tower", 1))}
    asked = [Question(f"q{n}", "oak.png", "Who built the tower beside it?", ("Ben Roth",), **known) for n in range(2)]
    bare = Question("bare", "oak.png", "Who?", ("Ben",), split="train")
    val = Question("v", "elm.png", "Who?", ("Ben",), split="val")
    make.data_set(world, [OAK, TOWER, ELM], [*asked, bare, val], encoder, image_root=".")
    where = {"dataset": str(world), "index": str(world / "index"), "output": str(tmp_path / "teacher")}
    return TeachingConfig(**SEARCHED, **where)


def test_the_teachers_trajectories_search_and_are_kept(config: TeachingConfig, tmp_path: Path) -> None:
    teach_agent(config)
    teach_agent(config)  # resumes: nothing is left
    traces = list(read_traces(Path(config.output, "traces/promsa.jsonl")))
    assert [trace.question_id for trace in traces] == ["q0", "q1"]
    assert {trace.answer for trace in traces} == {"Ben Roth"}
    steps = [step.operator for step in traces[0].steps]
    assert steps[:3] == ["rewrite", "search", "rewrite"]
    assert all(found.base == "pairs" for step in traces[0].steps for found in step.found)
    keys = {"call_passages": 2, "held_out": ["val"], "evaluations": [config.output], "dataset": config.dataset}
    keep_trajectories(TrajectoriesConfig(**keys, renamed=3, output=str(tmp_path / "data")))
    examples = read_examples(tmp_path / "data/train.parquet", PromptedExample, PLAIN.problem)
    assert len(examples) > 2  # the tower, alone of its kind, keeps its name
    assert all("Ulm Tower: Ben Roth built it." in example.follow_ups[-1].answer for example in examples)


def test_the_teacher_searches_an_index_or_lists_with_an_index_of_passages(config: TeachingConfig) -> None:
    values = config.model_dump()
    assert any("`index` is needed by the teacher" in it for it in find_problems(TeachingConfig, values | {"index": ""}))

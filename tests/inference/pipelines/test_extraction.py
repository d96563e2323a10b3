"""From a detailed answer to a short one: the prompt, its examples, and what the trace keeps."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.formats.dataset import write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.extraction import sample_shots, shortener
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.trajectories import answers_right
from reflectune.inference.trace import Trace, from_row, to_row
from reflectune.metrics.judging.extraction import Shot, extraction_template, extraction_texts

ASKED = Question("q", "bird.png", "What does it eat?", ("mice",))
SHOTS = (Shot("What is it?", "A kestrel is a {falcon}.", answer="falcon"),)
LONG = "It eats mice, and now and then beetles."
DETAILED: dict[str, Any] = {"iterations": 1, "max_new_tokens": 32, "max_record_tokens": 32, "detailed_answer": True}
PIPELINES: dict[str, Any] = {
    "mi_rag": MiRag(MiRagSettings(**DETAILED), {"texts": 2}),
    "pmsr": Pmsr(PmsrSettings(**DETAILED, saturation=2.0), {"texts": 2}),
}


def say(short: str) -> Any:
    def reply(prompt: str) -> str:
        if "##Best Answer:" in prompt:
            return short
        return LONG if prompt.endswith("provide a detailed answer to the question.") else "A RECORD."

    return reply


def run(name: str, script: Any) -> Trace:
    steps = dataclasses.replace(PIPELINES[name], shorten=shortener(lambda _: SHOTS, 8))
    (trace,) = TrajectoryPipeline(name, steps, script.tools).run([ASKED], [Image.new("RGB", (8, 8))])
    assert from_row(to_row(trace)) == trace
    return trace


@pytest.mark.parametrize("name", PIPELINES)
def test_the_short_answer_is_scored_and_the_detailed_one_stays_in_the_trace(name: str, scripting: type[Any]) -> None:
    script = scripting(say=say("##Best Answer: mice\nIt says so."), find=lambda query, base: ["found"])
    trace = run(name, script)
    assert [step.operator for step in trace.steps][-2:] == ["answer", "extract"]
    assert [step.text for step in trace.steps][-2:] == [LONG, "##Best Answer: mice\nIt says so."]
    assert trace.steps[-1].iteration == 1
    assert (trace.answer, trace.tokens["replies_unread"]) == ("mice", 1)  # the record is no query
    context = f"{LONG}\nA RECORD.\nA RECORD."
    texts = extraction_texts(Shot(ASKED.text, context), SHOTS)
    prompt = re.sub(r"\{(\w+)\}", lambda slot: texts[slot[1]], extraction_template(len(SHOTS)))
    assert script.asked[-1] == ("write", prompt)
    assert trace.tokens["calls"] == len([asked for asked in script.asked if asked[0] == "write"])


@pytest.mark.parametrize("name", PIPELINES)
def test_every_answer_is_shortened_if_each_iteration_has_one(name: str, scripting: type[Any]) -> None:
    script = scripting(say=say("##Best Answer: mice"), find=lambda query, base: ["found"])
    one = PIPELINES[name]
    steps = dataclasses.replace(
        one, settings=one.settings.model_copy(update={"answer_each": True}), shorten=shortener(lambda _: SHOTS, 8)
    )
    (trace,) = TrajectoryPipeline(name, steps, script.tools).run([ASKED], [Image.new("RGB", (8, 8))])
    made = [(step.operator, step.iteration) for step in trace.steps if step.operator in ("answer", "extract")]
    assert made == [("answer", 0), ("extract", 0), ("answer", 1), ("extract", 1)]
    assert trace.answer == "mice"
    assert answers_right([ASKED], {ASKED.id: trace}, 1, TraceScorer("exact_match")) == {ASKED.id: [1.0, 1.0]}


@pytest.mark.parametrize("reply", ["<think>mice</think>", "##Best Answer:"], ids=["thoughts", "a cue"])
def test_a_reply_without_an_answer_leaves_the_detailed_one_and_is_counted(reply: str, scripting: type[Any]) -> None:
    trace = run("mi_rag", scripting(say=say(reply)))
    assert (trace.answer, trace.tokens["replies_unread"]) == (LONG, 2)


def test_extraction_changes_no_earlier_step(scripting: type[Any]) -> None:
    script, alone = (scripting(say=say("mice"), find=lambda query, base: ["found"]) for _ in range(2))
    trace = run("mi_rag", script)
    pipeline = TrajectoryPipeline("mi_rag", PIPELINES["mi_rag"], alone.tools)
    (expected,) = pipeline.run([ASKED], [Image.new("RGB", (8, 8))])
    assert expected.answer == LONG
    assert script.asked[:-1] == alone.asked
    assert (trace.passages, trace.ended) == (expected.passages, expected.ended)


# The examples.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sections = (Section("Diet", "It eats mice."), Section("Range", "It lives on moors."))
    entries = [Entry("kestrel", "Kestrel", sections=sections), Entry("rook", "Rook", sections=sections)]
    write_knowledge_base(tmp_path / "knowledge", entries, name="kb", image_root="..", shard_size=4)
    questions = [
        Question("a", "1.png", "What does it eat?", ("mice",), evidence=(Evidence("kestrel", 0),)),
        Question("b", "2.png", "Where does it live?", ("moors", "a moor"), entity_ids=("rook",)),
        Question("c", "3.png", "What does it eat most?", ("worms",), entity_ids=("rook",)),  # nothing states it
        Question("d", "4.png", "What is it?", ("bird",)),  # no entry
        Question("f", "4.png", "What does it eat now?", ("mice",), entity_ids=("crow",)),  # an entry that isn't there
        Question("e", "5.png", "What does it eat?", (), entity_ids=("rook",)),  # no answer
    ]
    write_questions(tmp_path, "train", questions)
    (tmp_path / "dataset.json").write_text('{"fingerprint": "0"}', encoding="utf-8")
    return tmp_path


def test_examples_are_the_nearest_questions_with_the_passage_that_answers_them(folder: Path) -> None:
    draw = sample_shots(folder, "train", KnowledgeBase(folder / "knowledge"), "none")
    assert [(shot.question, shot.context, shot.answer) for shot in draw(ASKED)] == [
        ("What does it eat?", "Kestrel: Diet. It eats mice.", "mice"),
        ("Where does it live?", "Rook: Range. It lives on moors.", "moors"),
    ]
    same = Question("other", "1.png", "What does it eat?")
    assert [shot.answer for shot in draw(same)] == ["moors"]  # never the question itself
    assert list(sample_shots(folder, "", KnowledgeBase(folder / "knowledge"), "none")(ASKED)) == []


def test_a_split_without_usable_questions_is_refused(folder: Path) -> None:
    write_questions(folder, "val", [Question("d", "4.png", "What is it?", ("bird",))])
    with pytest.raises(UserError, match=r"`extract_split`: .* no question of the split `val`"):
        sample_shots(folder, "val", KnowledgeBase(folder / "knowledge"), "none")

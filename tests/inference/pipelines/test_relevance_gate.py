"""The relevance gate in MI-RAG and PMSR: which passages a record reads, when to stop, and what a trace keeps of it."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.gate_model import GateModel
from reflectune.inference.operators.requests import JudgeEachReply, JudgeReply, Prompt
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.operators.vocabulary import texts_of
from reflectune.inference.pipelines.mi_rag import REPEATS, MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrFixed, PmsrFixedSettings, PmsrSettings
from reflectune.inference.pipelines.relevance_gate import SUPPORTED
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.inference.report.trajectories import browsed
from reflectune.inference.report.words import explain
from reflectune.inference.trace import Trace, from_row, to_row
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.calibration import GateScaling
from tests.inference.families import ONE_FAMILY

ASKED = Question("q", "image.png", "Who built it?")
IMAGE = Image.new("RGB", (8, 8))
BUDGETS = {"texts": 4}


class Speaker:
    """Writes a record that names its iteration, and two queries that no earlier one is."""

    def __init__(self) -> None:
        self.records = self.queries = 0

    def __call__(self, prompt: str) -> str:
        if "## Queries" in prompt or "## Output" in prompt:
            self.queries += 1
            return f"## Queries\n1. What of {self.queries} a?\n2. What of {self.queries} b?"
        if "summarize correct and relevant information" in prompt:
            self.records += 1
            return f"record {self.records}"
        return "An owl."


RELEVANT = {"oak 1": 0.7, "oak 2": 0.5, "elm 1": 0.2, "elm 2": 0.3}
"""p([Relevant]) of the passages, by their text; a record has half of its number."""


def probability(prompt: str) -> float:
    text = prompt.removeprefix(f"{ASKED.text} ")
    return RELEVANT[text.split(": ")[0]] if ":" in text else int(text.removeprefix("record ")) / 2


def find(query: str, base: str) -> list[str]:
    return ["elm 1", "oak 1", "elm 2", "oak 2"] if "Question: Who" in query else ["oak 2", "elm 2"]


@pytest.fixture
def script(scripting: type[Any]) -> Any:
    return scripting(say=Speaker(), find=find, probability=probability)


def run(script: Any, kind: Any = MiRag, of: Any = MiRagSettings, **settings: Any) -> Trace:
    trajectory = kind(of(iterations=2, max_new_tokens=8, **settings), BUDGETS)
    return TrajectoryPipeline("mi_rag", trajectory, script.tools).run([ASKED], [IMAGE])[0]


def shown(script: Any) -> list[list[str]]:
    """The passages that each record was written from."""
    reasons = [text for kind, text, *_ in script.asked if kind == "write" and "summarize correct" in text]
    return [[name for name in ("elm 1", "oak 1", "elm 2", "oak 2") if name in reason] for reason in reasons]


def judgements(trace: Trace) -> list[tuple[int, tuple[float, ...]]]:
    return [(step.iteration, step.each) for step in trace.steps if step.operator == "judge"]


@pytest.mark.parametrize(
    ("least", "kept"),
    [
        (0.0, ["elm 1", "oak 1", "elm 2", "oak 2"]),
        (0.2, ["elm 1", "oak 1", "elm 2", "oak 2"]),
        (0.5, ["oak 1", "oak 2"]),
        (0.51, ["oak 1"]),
        (0.9, ["oak 1"]),
    ],
    ids=["off", "all reach it", "one equals it", "one is just below", "none reaches it, so the best one"],
)
def test_a_record_is_written_from_the_passages_that_reach_the_threshold(least, kept, script) -> None:
    trace = run(script, gate_filter=least)
    assert shown(script)[0] == kept
    assert judgements(trace) == ([(0, (0.2, 0.7, 0.3, 0.5))] if least else [])  # later ones find no other passage
    assert trace.tokens["calls"] == (4 if least else 0) + 1 + 3 + 2 + 1  # judgements, caption, records, queries, answer
    assert [p.s_rel for p in trace.passages] == ([0.2, 0.7, 0.3, 0.5] if least else [None] * 4)


def test_each_iteration_has_its_best_passage_and_the_trace_tells_which_were_read(script) -> None:
    trace = run(script, gate_filter=0.6, query_sources="generation")
    assert shown(script) == [["oak 1"], ["oak 2"], ["oak 2"]]  # later searches find oak 2 and elm 2
    names = [read.passage.title for read in trace.passages]
    assert [names[place] for place in trace.used] == ["oak 1", "oak 2"]
    assert from_row(to_row(trace)) == trace
    text = explain(trace)
    assert "judge: P(yes) 0.200, 0.700, 0.300, 0.500" in text
    assert "S_rel 0.700" in text
    assert browsed(trace, ())[2]["each"] == [0.2, 0.7, 0.3, 0.5]


@pytest.mark.parametrize("kind", [(MiRag, MiRagSettings), (Pmsr, PmsrSettings)], ids=["mi_rag", "pmsr"])
@pytest.mark.parametrize(
    ("least", "records", "judged"),
    [(0.0, 3, []), (0.5, 1, [0.5]), (0.6, 2, [0.5, 1.0])],
    ids=["off", "at once", "later"],
)
def test_a_record_that_reaches_the_threshold_ends_the_trajectory(kind, least, records, judged, script) -> None:
    trace = run(script, *kind, gate_stop=least)
    assert [step.operator for step in trace.steps].count("reason") == records
    assert [each for _, (each,) in judgements(trace)] == judged
    assert trace.ended == (SUPPORTED if judged else "after 2 iterations")
    assert trace.steps[-1].operator == "answer"
    assert trace.steps[-2].operator == ("judge" if judged else "reason")


def test_the_last_record_is_not_judged_and_an_empty_one_neither(scripting) -> None:
    never = scripting(say=Speaker(), find=find, probability=lambda prompt: 0.1)
    assert [iteration for iteration, _ in judgements(run(never, gate_stop=0.5))] == [0, 1]
    empty = scripting(say=lambda prompt: "", find=find, probability=lambda prompt: 1.0)
    assert judgements(run(empty, gate_stop=0.5)) == []


def test_both_stops_work_together(scripting) -> None:
    alike = scripting(say=Speaker(), find=find, vector=lambda text: [1.0], probability=lambda prompt: 0.1)
    trace = run(alike, Pmsr, PmsrSettings, gate_stop=0.5)
    assert (trace.ended, len(judgements(trace))) == (REPEATS, 1)
    fixed = scripting(say=Speaker(), find=find, vector=lambda text: [1.0])
    assert run(fixed, PmsrFixed, PmsrFixedSettings).ended == "after 2 iterations"


def test_a_question_without_an_image_is_refused_by_name(script) -> None:
    pipeline = TrajectoryPipeline(
        "mi_rag", MiRag(MiRagSettings(gate_stop=0.5), BUDGETS), script.tools, takes_texts=True
    )
    with pytest.raises(UnusableInput, match="question q has no image"):
        pipeline.run([dataclasses.replace(ASKED, image="")], [None])


# A real model


def passage(text: str) -> Passage:
    return Passage("e1", 0, 0, title="Title e1", lead="", heading="H0", text=text)


PASSAGES = [passage("It is made of oak."), passage("oak " * 30), passage("What is it made of?")]


def asked(style: str) -> Prompt:
    return Prompt("", {"question": "What is it made of?", "style": style}, tuple(texts_of(PASSAGES)))


@pytest.mark.parametrize(
    ("style", "is_calibrated", "family"),
    [("short", False, "llava"), ("list", True, "qwen2_vl"), ("short", True, "qwen2_vl")],
    indirect=["family"],
    scope="session",
)
def test_documents_are_judged_as_mr2ag_judges_passages(
    style: str, is_calibrated: bool, checkpoints: SimpleNamespace, images: list[Image.Image]
) -> None:
    loaded = load(checkpoints.tuned, scheme="mr2ag")
    loaded = dataclasses.replace(loaded, calibration={"relevance": GateScaling(0.5, 0.7, 1.0)} if is_calibrated else {})
    answer_type = "multi_answer" if style == "list" else "string"
    question = Question("q", "image.png", "What is it made of?", answer_type=answer_type)
    reader = PassageReader(PrefixEngine(loaded, token_budget=256), 4)
    expected = reader.judge(reader.open([question] * 3, images), [PASSAGES] * 3).relevance
    gate = GateModel(PrefixEngine(loaded, token_budget=256), batch_size=4)
    found = gate.judge_each([(image, asked(style)) for image in images], "relevant", "irrelevant")
    for judged, pairs in zip(found, expected, strict=True):
        assert [each.yes for each in judged.each] == pytest.approx([yes for yes, _ in pairs], rel=1e-4)
        assert [each.no for each in judged.each] == pytest.approx([no for _, no in pairs], rel=1e-4)
        assert judged.read - sum(each.read for each in judged.each) > 0  # the question's prefix, once


@ONE_FAMILY
def test_a_passage_that_the_context_does_not_hold_is_not_judged(checkpoints, images) -> None:
    gate = GateModel(PrefixEngine(load(checkpoints.tuned, scheme="mr2ag"), token_budget=256), batch_size=4)
    prompt = dataclasses.replace(asked("short"), documents=("oak", "oak " * 5000))
    (judged,) = gate.judge_each([(images[0], prompt)], "relevant", "irrelevant")
    assert isinstance(judged, JudgeEachReply)
    assert judged.each[0].shown == 1
    assert judged.each[1] == JudgeReply(0.0, 0.0)


@ONE_FAMILY
def test_a_checkpoint_without_relevance_tokens_is_refused(checkpoints) -> None:
    with pytest.raises(UserError, match="reflects turn by turn"):
        GateModel(PrefixEngine(load(checkpoints.plain, scheme="plain"), token_budget=256), batch_size=4)

"""PMSR, replayed from its equations: queries of two scopes, records of what is new, and a stop that costs no search."""

from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.mi_rag import REPEATS
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.trace import Trace

ASKED = Question("q", "image.png", "Who built it?")
DESCRIPTION = "A red bridge."
RECORDS = ("It is Kirk Bridge.", "Kirk Bridge is old.", "Ann Kirk built it.")
OF_TRAJECTORY = ("Where is it?", "How old is it?", "Whose is it?")


class Speaker:
    """Gives the next record and the next query whenever it is asked for one."""

    def __init__(self) -> None:
        self.records, self.queries = iter(RECORDS), iter(OF_TRAJECTORY)

    def __call__(self, prompt: str) -> str:
        if "Concisely describe image" in prompt:
            return DESCRIPTION
        if "## Output" in prompt:
            return f"## Analysis\nSomething is missing.\n## Output\nQuestion: {next(self.queries)}"
        if "summarize correct and relevant information" in prompt:
            return next(self.records)
        return "Ann Kirk"


def find(query: str, base: str) -> list[str]:
    return [f"{base} {query.split()[-1]} {n}" for n in range(9)]


@pytest.fixture
def script(scripting: type[Any]) -> Any:
    return scripting(say=Speaker(), find=find)


def run(script: Any, **settings: Any) -> Trace:
    asked_for = {"iterations": 2, "saturation": 0.9, "max_new_tokens": 8, "max_record_tokens": 64}
    trajectory = Pmsr(PmsrSettings(**{**asked_for, **settings}), {"texts": 4, "pairs": 2})
    (trace,) = TrajectoryPipeline("pmsr", trajectory, script.tools).run([ASKED], [Image.new("RGB", (8, 8))])
    return trace


def searches(script: Any) -> list[tuple[str, str, int]]:
    return [entry[1:] for entry in script.asked if entry[0] == "search"]


def expanded(record: str) -> str:
    return f"Question: Who built it?\n{record}\n"


def test_the_equations_step_by_step(script: Any) -> None:
    trace = run(script)
    assert searches(script) == [
        *((expanded(DESCRIPTION), "texts", 4), (expanded(DESCRIPTION), "pairs", 2)),
        *((expanded(RECORDS[0]), "texts", 2), (expanded(RECORDS[0]), "pairs", 1)),
        *((OF_TRAJECTORY[0], "texts", 2), (OF_TRAJECTORY[0], "pairs", 1)),
        *((expanded(RECORDS[1]), "texts", 2), (expanded(RECORDS[1]), "pairs", 1)),
        *((OF_TRAJECTORY[1], "texts", 2), (OF_TRAJECTORY[1], "pairs", 1)),
    ]
    reasons = [text for kind, text, *_ in script.asked if kind == "write" and "summarize correct" in text]
    assert [RECORDS[n] in reasons[n + 1] for n in range(2)] == [False, False]  # equation 8
    assert [DESCRIPTION in reason for reason in reasons] == [True, False, False]
    asked_of = [text for kind, text, *_ in script.asked if kind == "write" and "## Output" in text]
    assert [text.count("Kirk Bridge") for text in asked_of] == [1, 2]  # all records so far
    assert script.asked[-1][1].startswith("Please answer the following question")
    assert "Relevant Knowledge: It is Kirk Bridge.\nKirk Bridge is old.\nAnn Kirk built it.\n" in script.asked[-1][1]
    assert (trace.answer, trace.ended) == ("Ann Kirk", "after 2 iterations")
    operators = [step.operator for step in trace.steps]
    assert operators == ["caption", "search", "reason", *["rewrite", "liken", "search", "reason"] * 2, "answer"]


@pytest.mark.parametrize("like", ["an earlier query of the same scope", "the first query"])
def test_a_repeated_query_ends_the_trajectory_before_it_is_searched(scripting: type[Any], like: str) -> None:
    first = expanded(DESCRIPTION) if like == "the first query" else OF_TRAJECTORY[0]

    def vector(text: str) -> list[float]:
        names = [expanded(DESCRIPTION), expanded(RECORDS[0]), OF_TRAJECTORY[0], expanded(RECORDS[1])]
        place = names.index(first if text == OF_TRAJECTORY[1] else text)
        return [float(place == n) for n in range(4)]

    script = scripting(say=Speaker(), find=find, vector=vector)
    trace = run(script, iterations=4)
    assert trace.ended == REPEATS
    assert len(searches(script)) == 2 + 4  # the third round asks for nothing
    assert [step.operator for step in trace.steps][-3:] == ["rewrite", "liken", "answer"]
    assert trace.steps[-2].probability == 1.0
    assert "Relevant Knowledge: It is Kirk Bridge.\nKirk Bridge is old.\n" in script.asked[-1][1]


@pytest.mark.parametrize(("tau", "rounds"), [(2.0, 3), (1.0, 3), (-1.0, 1)], ids=["never", "at 1", "at once"])
def test_the_threshold_tau_bounds_the_number_of_searches(script: Any, tau: float, rounds: int) -> None:
    trace = run(script, saturation=tau)
    assert sum(step.operator == "search" for step in trace.steps) == rounds


def test_a_single_scope_has_the_whole_budget(scripting: type[Any], share_asked) -> None:
    asked = {}
    for scope, share in (("record", 0.0), ("trajectory", 1.0), ("both", 1.0)):
        script = scripting(say=Speaker(), find=find)
        assert share_asked(run(script, scopes=scope, iterations=1)) == share
        asked[scope] = searches(script)[2:]
    assert asked["record"] == [(expanded(RECORDS[0]), "texts", 4), (expanded(RECORDS[0]), "pairs", 2)]
    assert asked["trajectory"] == [(OF_TRAJECTORY[0], "texts", 4), (OF_TRAJECTORY[0], "pairs", 2)]


@pytest.mark.parametrize("scopes", ["both", "trajectory"])
def test_a_reply_without_a_query_leaves_the_records_own(scopes: str, scripting: type[Any], share_asked) -> None:
    speaker = Speaker()
    script = scripting(say=lambda text: "I can't." if "## Output" in text else speaker(text), find=find)
    assert share_asked(run(script, iterations=1, scopes=scopes)) == 0.0
    assert searches(script)[2:] == [(expanded(RECORDS[0]), "texts", 4), (expanded(RECORDS[0]), "pairs", 2)]

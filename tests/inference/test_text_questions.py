"""Questions without an image: HotpotQA from its file to scores, prompts without an image, and who refuses them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.base import answer
from reflectune.inference.pipelines.extraction import shortener
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.running import experiment
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.trace import Trace, by_question
from reflectune.inference.trace_files.reading import read_traces, trace_files
from reflectune.models.loading import load
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint
from tests.inference.families import ONE_FAMILY

ASKED = Question("q", "", "What position did the woman in Kiss and Tell hold?", ("Chief of Protocol",))
BOTH = {"texts": 2, "pairs": 1}
PIPELINES: dict[str, Any] = {
    "mi_rag": MiRag(MiRagSettings(iterations=1, max_new_tokens=8, max_record_tokens=32), BOTH),
    "pmsr": Pmsr(PmsrSettings(iterations=1, saturation=2.0, max_new_tokens=8, max_record_tokens=32), BOTH),
}
READ = "Based on the retrieved document, answer the question with a single word or phrase."
FOLLOWED = {"mi_rag": "## Queries\nQuestion 1: Who is she?", "pmsr": "## Output\nQuestion: Who is she?"}


def say(name: str) -> Callable[[str], str]:
    def reply(prompt: str) -> str:
        if "##Best Answer:" in prompt:
            return "Chief of Protocol"
        return FOLLOWED[name] if "Analysis" in prompt else "It was Shirley Temple."

    return reply


def run(name: str, tools: Tools, steps: Any = None, question: Question = ASKED) -> Trace:
    (trace,) = TrajectoryPipeline(name, steps or PIPELINES[name], tools).run([question], [None])
    return trace


@pytest.mark.parametrize("name", PIPELINES)
def test_a_question_without_an_image_is_searched_by_text_alone_and_not_described(name: str, scripting) -> None:
    script = scripting(say=say(name), find=lambda query, base: [f"{base} {n}" for n in range(3)])
    trace = run(name, script.tools)
    first, reason = script.asked[:2]
    assert first == ("search", ASKED.text, "texts", 2)
    assert reason == (
        "write",
        f"[no image] Question: {ASKED.text}\nKnowledge: texts 0: texts 0\ntexts 1: texts 1\n\n"
        "Based on knowledge, summarize correct and relevant information with question.\n",
    )
    again = f"Question: {ASKED.text}\nIt was Shirley Temple.\n"
    searches = [asked for asked in script.asked if asked[0] == "search"]
    assert searches[1:] == [("search", again, "texts", 1), ("search", "Who is she?", "texts", 1)]
    assert script.asked[-1] == (
        "write",
        "[no image] Please answer the following question using the provided information.\n\n"
        f"Question: {ASKED.text}\nRelevant Knowledge: It was Shirley Temple.\nIt was Shirley Temple.\n\n{READ}",
    )
    assert all(asked[1].startswith("[no image] ") for asked in script.asked if asked[0] == "write")
    assert "caption" not in [step.operator for step in trace.steps]


@pytest.mark.parametrize("name", PIPELINES)
def test_an_image_changes_nothing_for_other_questions_of_the_batch(name: str, scripting: type[Any]) -> None:
    with_images, image = Question("p", "image.png", "Who built it?"), Image.new("RGB", (8, 8))

    def said(trace: Trace) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(step.operator, step.text, step.queries) for step in trace.steps]

    script = scripting(say=say(name), find=lambda query, base: [f"{base} {query}"])
    pipeline = TrajectoryPipeline(name, PIPELINES[name], script.tools)
    mixed = pipeline.run([with_images, ASKED], [image, None])
    alone = [*pipeline.run([with_images], [image]), *pipeline.run([ASKED], [None])]
    assert [said(trace) for trace in mixed] == [said(trace) for trace in alone]
    assert mixed[0].steps[0].operator == "caption"


def test_an_image_without_its_path_is_an_image(scripting: type[Any]) -> None:
    pipeline = TrajectoryPipeline("mi_rag", PIPELINES["mi_rag"], scripting(say=say("mi_rag")).tools)
    trace = answer(pipeline, "Who built it?", Image.new("RGB", (8, 8)))
    assert trace.steps[0].operator == "caption"


@pytest.mark.parametrize("name", PIPELINES)
def test_where_only_pairs_can_be_searched_the_question_is_refused_by_name(name: str, scripting: type[Any]) -> None:
    steps = dataclasses.replace(PIPELINES[name], budgets={"pairs": 3})
    with pytest.raises(
        UserError, match="question q has no image, and the only knowledge base, of image-text pairs, needs one"
    ):
        run(name, scripting().tools, steps)


def test_a_server_is_sent_no_image(stub_server: Callable[..., Any], scripting: type[Any], tmp_path: Path) -> None:
    server = stub_server(say("mi_rag"))
    script = scripting(find=lambda query, base: [f"{base} {len(query)}"])
    with RemoteModel(Endpoint(server.url, "stub"), tmp_path / "replies.jsonl") as remote:
        model = ServedModel(remote)
        detailed = MiRagSettings(iterations=1, max_new_tokens=8, max_record_tokens=32, detailed_answer=True)
        steps = MiRag(detailed, BOTH, shortener(lambda _: (), 8))
        trace = run("mi_rag", Tools({"reader": model, "answerer": model}, script.search, script.embed), steps)
    kinds = {part["type"] for _, body in server.requests for part in body["messages"][-1]["content"]}
    assert kinds == {"text"}
    assert trace.answer == "Chief of Protocol"
    assert trace.tokens["calls"] == len(server.requests) == 5


def test_a_local_model_reads_no_image(checkpoints, scripting, watched) -> None:
    loaded = load(checkpoints.base)
    engine = watched(loaded, 4096)
    model = LocalModel(engine, batch_size=2)
    script = scripting(find=lambda query, base: [f"{base} oak"])
    trace = run("mi_rag", Tools({"reader": model, "answerer": model}, script.search, script.embed))
    assert len(engine.seen) == trace.tokens["calls"]
    assert all(loaded.renderer.image_token_id not in ids for ids in engine.seen)
    assert trace.tokens["read"] == sum(map(len, engine.seen)) == trace.tokens["computed"]


def test_a_pipeline_that_needs_an_image_refuses_the_question_in_one_line(scripting: type[Any], tmp_path: Path) -> None:
    def answered(on_error: Any, *, takes_texts: bool) -> list[str]:
        script = scripting(find=lambda query, base: ["oak"])
        traces = run_pipeline(
            "p",
            lambda: TrajectoryPipeline("p", PIPELINES["mi_rag"], script.tools, takes_texts=takes_texts),
            [ASKED],
            image_root=tmp_path,
            folder=tmp_path / f"{on_error} {takes_texts}",
            fingerprint="f",
            batch_questions=2,
            on_error=on_error,
        )
        return [trace.error for trace in traces.values()]

    told = "question q has no image; fix or remove the row, set on_error: skip, or run mi_rag or pmsr"
    with pytest.raises(UserError, match=told):
        answered("stop", takes_texts=False)
    assert answered("skip", takes_texts=False) == [told]
    assert answered("stop", takes_texts=True) == [""]


# From HotpotQA's own file to scores.

DERRICKSON = ["Scott Derrickson", ["Scott Derrickson is an American director."]]
TEMPLE = ["Shirley Temple", ["Shirley Temple was an actress.", " She was Chief of Protocol."]]
TELL = ["Kiss and Tell", ["Kiss and Tell is a film of 1945 with Shirley Temple."]]
ROWS = [
    {
        "_id": "5a8c7595554299585d9e36b6",
        "answer": "Chief of Protocol",
        "question": ASKED.text,
        "supporting_facts": [["Kiss and Tell", 0], ["Shirley Temple", 1]],
        "context": [TELL, TEMPLE, DERRICKSON],
        "type": "bridge",
        "level": "hard",
    },
]


@pytest.fixture
def hotpotqa(tmp_path: Path, make) -> dict[str, Any]:
    """The data set and its index of passages, as `convert` and `build_index` make them of a file."""
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(ROWS))
    source: dict[str, Any] = {"knowledge": "hotpotqa", "knowledge_source": "hotpot_dev_distractor_v1.json"}
    source |= {"questions": "hotpotqa", "splits": {"dev": "hotpot_dev_distractor_v1.json"}, "root": str(tmp_path)}
    convert(ConvertConfig(output=str(tmp_path / "set"), **source))
    make.text_index(KnowledgeBase(tmp_path / "set/knowledge"), tmp_path / "texts", "paragraphs")
    return {"dataset": str(tmp_path / "set"), "text_index": str(tmp_path / "texts"), "splits": ["dev"]}


def config(hotpotqa: dict[str, Any], *pipelines: str, **more: Any) -> EvaluateConfig:
    settings = {"iterations": 1, "text_passages": 2, "max_record_tokens": 6, "max_new_tokens": 6, "device": "cpu"}
    output = str(Path(hotpotqa["dataset"]).parent / "out")
    return EvaluateConfig(**{**hotpotqa, **settings, "pipelines": [*pipelines], "output": output, **more})


@ONE_FAMILY
def test_hotpotqa_from_its_file_to_scores(hotpotqa: dict[str, Any], checkpoints: SimpleNamespace) -> None:
    made = config(hotpotqa, "mi_rag", "pmsr", base_model=str(checkpoints.base))
    assert made.problems() == []
    metrics = experiment.run(made)
    assert metrics["metric"]["name"] == "exact_match"
    allowed = {"iterations": 1, "text_passages": 2, "pair_passages": 0, "text_weight": 0.5, "max_record_tokens": 6}
    assert metrics["budgets"] == {"mi_rag": allowed, "pmsr": allowed}  # without an index of entries there are no pairs
    for name in ("mi_rag", "pmsr"):
        traces = by_question(read_traces(trace_files(Path(made.output, "traces"))[name]))
        assert sorted(traces) == [row["_id"] for row in ROWS]
        for trace in traces.values():
            found = {hit.base for step in trace.steps for hit in step.found}
            assert found == {"texts"}
            assert "caption" not in [step.operator for step in trace.steps]
    assert Path(made.output, "report.html").is_file()


def test_an_index_of_entries_is_needed_without_a_text_index(hotpotqa: dict[str, Any]) -> None:
    def issues(*pipelines: str, **more: Any) -> list[str]:
        return config(hotpotqa, *pipelines, base_model="miniature/llava", **more).problems()

    assert issues("mi_rag", "pmsr", "pmsr_fixed") == []
    assert issues("pmsr", "pmsr_web") == ["`index` is needed by pmsr_web"]
    assert issues("pmsr", text_index="") == ["`index` or `text_index` is needed by pmsr"]

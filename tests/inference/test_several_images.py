"""Questions with several images: prompts locally and behind servers, searches by the first, and who refuses them."""

import dataclasses
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Question
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
from reflectune.data_builders.mr2ag.examples import question_problem
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.operators.pair_images import PairImages
from reflectune.inference.operators.requests import Prompt, SearchRequest
from reflectune.inference.operators.searching import KnowledgeBases
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr import PmsrFixed, PmsrFixedSettings
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import all_recipes, find_recipe
from reflectune.inference.running import experiment, planning
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.costs import forecast
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import by_question
from reflectune.inference.trace_files.reading import read_traces
from reflectune.metrics.official.mrag_bench import accuracy
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.images import ImageUrls
from reflectune.retrieval.retrievers.joint import JointSearch
from tests.inference.families import ONE_FAMILY

SEVERAL = Question("q", "images/e0.png", "Which one eats?", ("mice",), entity_ids=("e0",))
SEVERAL = dataclasses.replace(SEVERAL, more_images=("images/e1.png", "images/e2.png"), split="several")
BUDGETS = {"texts": 2, "pairs": 1}
SHORT: dict[str, Any] = {"iterations": 1, "max_new_tokens": 8, "max_record_tokens": 32}
PIPELINES: dict[str, Any] = {
    "mi_rag": MiRag(MiRagSettings(**SHORT), BUDGETS),
    "pmsr_fixed": PmsrFixed(PmsrFixedSettings(**SHORT), BUDGETS),
}
PROMPT = Prompt("Question: {question}\nKnowledge: {documents}\n", {"question": "Who?"}, ("Oak.", "Elm."))


@pytest.fixture(scope="module")
def several(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world with a split of two questions, one with three images."""
    folder = shutil.copytree(world, tmp_path_factory.mktemp("several") / "world")
    (plain, *_) = Dataset(folder).questions("val_unseen_entity")
    write_questions(folder, "several", [SEVERAL, dataclasses.replace(plain, id="one", split="several")])
    return folder


@pytest.mark.parametrize("name", PIPELINES)
def test_a_server_gets_all_images_in_order_in_every_prompt(name, stub_server, scripting, images, tmp_path) -> None:
    server, script = stub_server(lambda text: "It is red."), scripting(find=lambda query, base: [f"{base} oak"])
    with RemoteModel(Endpoint(server.url, "stub"), tmp_path / "replies.jsonl") as remote:
        model = ServedModel(remote)
        tools = Tools({"reader": model, "answerer": model}, script.search, script.embed)
        pipeline = TrajectoryPipeline(name, PIPELINES[name], tools)
        (trace,) = pipeline.run([SEVERAL], [tuple(images)])
        assert trace.tokens["calls"] == len(server.requests) >= 4
    urls = [ImageUrls().of(image) for image in images]
    assert trace.answer == "It is red."
    for _, body in server.requests:
        first, label, second, other, third, words = body["messages"][-1]["content"]
        assert [part["image_url"]["url"] for part in (first, second, third)] == urls
        assert (label["text"], other["text"]) == ("Picture 2: ", "\nPicture 3: ")
        assert words["text"].startswith("\n")
        assert SEVERAL.text in words["text"]


def test_a_local_model_shows_a_questions_images_and_those_of_pairs(make, world, checkpoints, images) -> None:
    knowledge = KnowledgeBase(world / "knowledge")
    shown = PairImages(knowledge)
    loaded = load(checkpoints.base)
    model, prompt = LocalModel(PrefixEngine(loaded), 2, shown), dataclasses.replace(PROMPT, more_images=2)
    path = shown.path_of("e1")
    for asked, seen in (
        (prompt, images),
        (dataclasses.replace(prompt, images={1: path}), [*images, shown.load(path)]),
    ):
        labels = ["Picture 2: ", "\nPicture 3: ", "\nQuestion: Who?\nKnowledge: Oak.\nPicture 4: "]
        content = [{"type": "image"}]
        for label in labels[: len(seen) - 1]:
            content += [{"type": "text", "text": label}, {"type": "image"}]
        last = "Elm.\n" if asked.images else "\nQuestion: Who?\nKnowledge: Oak.\nElm.\n"
        messages = [{"role": "user", "content": [*content, {"type": "text", "text": last}]}]
        processor = loaded.processor
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=[text], images=list(seen), return_tensors="pt")
        _, rendered = model.fit(tuple(images), asked, 4)
        assert rendered.ids == inputs["input_ids"][0].tolist()
        written = loaded.model.generate(**inputs, max_new_tokens=4, do_sample=False)[0, len(rendered.ids) :].tolist()
        (reply,) = model.write([(tuple(images), asked)], 4)
        assert reply.tokens == len(written)
        ended = written[-1] == loaded.renderer.end_token_id
        assert reply.text.split() == loaded.renderer.decode(written[:-1] if ended else written).split()


@pytest.mark.parametrize("name", PIPELINES)
def test_every_local_prompt_shows_all_images_in_any_batch(name, checkpoints, scripting, watched, images):
    loaded = load(checkpoints.base)
    engine, script = watched(loaded, 4096), scripting(find=lambda query, base: [f"{base} oak"])
    model = LocalModel(engine, batch_size=2)
    tools = Tools({"reader": model, "answerer": model}, script.search, script.embed)
    pipeline, one = TrajectoryPipeline(name, PIPELINES[name], tools), dataclasses.replace(SEVERAL, more_images=())
    (alone,) = pipeline.run([SEVERAL], [tuple(images)])
    token = loaded.renderer.image_token_id
    of_all = sum(end - start for _, start, end in loaded.renderer.plain("Who?", images).images)
    assert {ids.count(token) for ids in engine.seen} == {of_all}
    mixed = pipeline.run([one, SEVERAL], [images[0], tuple(images)])
    assert [step.text for step in mixed[1].steps] == [step.text for step in alone.steps]
    assert mixed[1].tokens["computed"] == alone.tokens["computed"] < alone.tokens["read"]


def test_searches_use_the_first_image(images) -> None:
    asked: list[Any] = []

    class Base:
        name = "pairs"

        def search(self, queries: Any, top: int) -> list[list[Any]]:
            asked.extend(queries)
            return [[] for _ in queries]

    search = KnowledgeBases(JointSearch([Base()]), embed=lambda texts: None)  # type: ignore[arg-type]
    search.search([(tuple(images), SearchRequest(0, ("oak",), {"pairs": (1,)}))])
    assert [query.image for query in asked] == [images[0]]


def test_the_forecast_counts_every_image(world) -> None:
    indexed: Any = SimpleNamespace(knowledge=KnowledgeBase(world / "knowledge"))
    served = ModelUse(None, is_served=True)
    parts = PipelineParts(indexed.knowledge, world, retriever=indexed, texts=indexed, use=served)
    recipe = find_recipe("mi_rag")
    settings = recipe.settings(**SHORT)
    one = forecast(recipe, settings, parts, [dataclasses.replace(SEVERAL, more_images=())])
    three = forecast(recipe, settings, parts, [SEVERAL])
    assert one is not None
    assert three is not None
    assert three.requests == one.requests
    assert 2 * 576 * one.requests <= three.read - one.read <= (2 * 576 + 10) * one.requests


# From a config to scores, and refusals.


def encoded(colour: str) -> dict[str, Any]:
    Image.new("RGB", (64, 64), colour).save(buffer := io.BytesIO(), "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@ONE_FAMILY
def test_mrag_bench_from_its_file_to_its_score(checkpoints, tmp_path) -> None:
    row = {"id": "1", "image": encoded("red"), "gt_images": [encoded("blue"), encoded("green")], "answer_choice": "B"}
    row |= {"question": "Which is it?", "A": "an owl", "B": "a cat", "C": "an elk", "D": "a hen", "scenario": "Angle"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test.parquet")
    (tmp_path / "knowledge.jsonl").write_text('{"id": "cat", "title": "Cat", "text": "A cat eats mice."}')
    source: dict[str, Any] = {"questions": "mrag_bench", "splits": {"test": "test.parquet"}, "root": str(tmp_path)}
    source |= {"knowledge": "own", "knowledge_source": "knowledge.jsonl"}
    manifest, _ = convert(ConvertConfig(output=str(tmp_path / "set"), **source))
    assert (manifest["metric"], manifest["images"]["found"]) == ("choice", 3)
    values = {"dataset": str(tmp_path / "set"), "splits": ["test"], "output": str(tmp_path / "run"), "device": "cpu"}
    config = EvaluateConfig(pipelines=["closed_book"], base_model=checkpoints.base, max_new_tokens=4, **values)
    assert config.problems() == []
    scores = experiment.run(config)["pipelines"]["closed_book"]
    (trace,) = read_traces(tmp_path / "run" / "traces" / "closed_book.jsonl")
    assert not trace.error
    assert scores["overall"]["value"] == accuracy(trace.answer, ["B"])  # an untrained model writes no letter
    (question,) = Dataset(tmp_path / "set").questions("test")
    assert TraceScorer("choice").correctness(question, dataclasses.replace(trace, answer="(B)")) == 1.0


@pytest.fixture
def config(several, checkpoints, make, tmp_path) -> Callable[..., EvaluateConfig]:
    def build(*pipelines: str, **more: Any) -> EvaluateConfig:
        values = make.keys(several, checkpoints, output=str(tmp_path / "run"), splits=["several"], **more)
        made = EvaluateConfig(pipelines=list(pipelines), **values)
        assert made.problems() == []
        return made

    return build


@ONE_FAMILY
def test_baselines_and_mi_rag_answer_questions_with_several_images(config, tmp_path) -> None:
    metrics = experiment.run(config("closed_book", "naive_rag", "oracle", "mi_rag", **SHORT))
    folder = tmp_path / "run"
    names = {"closed_book", "naive_rag_article", "oracle_article", "mi_rag"}
    assert names <= {*metrics["pipelines"]}
    for name in names:
        traces = by_question(read_traces(folder / "traces" / f"{name}.jsonl"))
        assert not traces["q"].error
        assert traces["q"].tokens["read"] > traces["one"].tokens["read"]
    page = (folder / "report.html").read_text()
    assert [len(set(shown.split(","))) for shown in re.findall(r'"images":\[([\d,]+)\]', page)] == [1, 3]


@ONE_FAMILY
def test_a_pipeline_with_a_trained_template_refuses_several_images_by_name(config) -> None:
    told = "question q has 3 images, and the pipeline mr2ag reads one; leave it out"
    with pytest.raises(UserError, match=told):
        planning.describe(config("mr2ag"))
    with pytest.raises(UserError, match=told):
        experiment.run(config("closed_book", "mr2ag"))


@ONE_FAMILY
def test_with_on_error_skip_questions_with_several_images_are_listed(config, tmp_path) -> None:
    experiment.run(config("mr2ag", on_error="skip"))
    traces = by_question(read_traces(tmp_path / "run" / "traces" / "mr2ag.jsonl"))
    assert not traces["one"].error
    assert "question q has 3 images, and the pipeline mr2ag reads one" in traces["q"].error


def test_pipelines_with_a_trained_template_take_one_image() -> None:
    reading_one = {name for name, recipe in all_recipes().items() if not recipe.takes_images}
    iterative = {name for name, recipe in all_recipes().items() if recipe.is_iterative}
    assert not reading_one & {"closed_book", "naive_rag_passages_tuned", "oracle_passage", "text_rag", *iterative}
    assert {"mr2ag", "mr2ag_oracle", "mmkb_rag", "reflectiva", "relevance"} <= reading_one


def test_other_readers_of_one_image_refuse_several(scripting, images) -> None:
    assert question_problem(SEVERAL) == "the question has several images, and training reads one"
    gated = MiRag(MiRagSettings(gate_filter=0.5), BUDGETS)
    with pytest.raises(UnusableInput, match=r"3 images, and the relevance gate \(`gate_filter`, `gate_stop`\) reads"):
        TrajectoryPipeline("mi_rag", gated, scripting().tools).run([SEVERAL], [tuple(images)])

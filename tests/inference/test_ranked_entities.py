"""Whatever retrieves, over ranked entities: what a file lists is read, and an image without a list is answered too."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import TextIndexSettings
from reflectune.inference.operators.requests import SearchRequest
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.promsa import PromsaSettings
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import all_recipes, build_pipeline, find_recipe
from reflectune.inference.running import experiment
from reflectune.inference.running.agent_search import agent_search
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.loading import open_engine, open_entries
from reflectune.models.loading import Loaded, load
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.text_retriever import open_text_retriever
from tests.inference.families import ONE_FAMILY

RETRIEVING = [
    name
    for name, recipe in all_recipes().items()
    if recipe.needs("entries") and not recipe.is_iterative and recipe.model != "plain_model"
]
"""Pipelines that search entries once, without tuned baselines, which search as untuned ones do."""
ITERATIVE = [name for name, recipe in all_recipes().items() if recipe.is_iterative and name != "promsa"]
"""Pipelines that search entries with texts; ProMSA searches them by images alone if there is an index of passages."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, make) -> Path:
    """Two entries and two questions about them; of the second one's image nobody ranked anything."""
    folder = tmp_path_factory.mktemp("world")
    questions = []
    for number, colour in enumerate(("red", "green")):
        Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
        gold = {"entity_ids": (f"e{number}",), "evidence": make.evidence(f"e{number}")}
        questions.append(make.question(number, "val", "mice", image=f"{colour}.png", text="What does it eat?", **gold))
    make.data_set(folder, [make.entry(0), make.entry(1)], questions, metric="exact_match")
    rows = [{"image": "red.png", "entities": ["e1", "elsewhere", "e0"]}, {"image": "gone.png", "entities": ["e0"]}]
    (folder / "ranked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def settings(world: Path, ranked: Path | None = None, **more: Any) -> EvaluateConfig:
    where = {"dataset": str(world), "ranked_entities": str(ranked or world / "ranked.jsonl"), "splits": ["val"]}
    return EvaluateConfig(**{**where, "device": "cpu", "gamma": 0.0, "max_new_tokens": 4, **more})


@pytest.fixture(scope="module")
def models(checkpoints: SimpleNamespace, prompted: SimpleNamespace) -> dict[str, Loaded]:
    return {
        "base_model": load(checkpoints.base),
        "mr2ag": load(checkpoints.tuned),
        "mmkb_rag": load(prompted.tuned),
        "reflectiva": load(checkpoints.base, scheme="reflectiva"),
    }


@ONE_FAMILY  # no model reads the list
@pytest.mark.parametrize("name", RETRIEVING)
def test_every_pipeline_reads_what_is_listed_and_survives_what_is_not(name: str, world, models, checkpoints) -> None:
    recipe = find_recipe(name)
    tuned = "mmkb_rag" if name in ("mmkb_rag", "reflection") else "reflectiva" if name == "reflectiva" else "mr2ag"
    config = settings(world, base_model=checkpoints.base, max_reply_tokens=4)
    dataset = Dataset(world)
    parts = PipelineParts(
        dataset.knowledge,
        probes=DiagnosticPassages(dataset.root, dataset.manifest, dataset.knowledge, "first_sentence", seed=0),
        engine=open_engine(config, models[tuned if recipe.model == "model" else recipe.model or "base_model"]),
        retriever=open_entries(RetrieverConfig.of(config), dataset, "cpu"),
        base=open_engine(config, models["base_model"]),
        reranker=WordReranker(),
    )
    questions = dataset.questions("val")
    images = [load_image(question.image, root=world) for question in questions]
    listed, unlisted = build_pipeline(name, config, parts).run(questions, images)
    assert not unlisted.error
    assert unlisted.hits == ()
    assert {hit.entry_id for hit in listed.hits} == {"e0", "e1"}
    assert [hit.score for hit in listed.hits] == [1.0, 0.5]


@pytest.mark.parametrize("name", ITERATIVE)
def test_what_searches_with_texts_refuses_ranked_entities(name: str, world: Path, tmp_path: Path) -> None:
    config = settings(world, base_model="base", pipelines=[name], output=str(tmp_path / "out"))
    problem, *others = config.problems()
    assert all(name == "pmsr_web" and "`text_index` is needed" in other for other in others)
    assert problem.startswith("`index`")
    assert problem.endswith(f" is needed by {name}: ranked entities can't be searched with texts")
    dataset = Dataset(world)
    retriever = open_entries(RetrieverConfig.of(config), dataset, "cpu")
    parts = PipelineParts(dataset.knowledge, retriever=retriever, reranker=WordReranker())
    with pytest.raises(UserError, match=f"{name} searches with texts, too: give it an `index`"):
        build_pipeline(name, config, parts)


@pytest.mark.parametrize("name", ["mi_rag", "pmsr"])
def test_pairs_are_of_the_list_where_texts_are_searched_in_passages(name, world, make, tmp_path, scripting) -> None:
    """MI-RAG's rows with Google Lens: pairs of an image are its listed entries in every iteration."""
    dataset = Dataset(world)
    make.text_index(dataset.knowledge, tmp_path / "texts")
    where = {"text_index": str(tmp_path / "texts"), "output": str(tmp_path / "out")}
    config = settings(world, base_model="base", pipelines=[name], **where)
    assert config.problems() == []
    texts = TextIndexSettings.of(config)
    parts = PipelineParts(
        dataset.knowledge,
        retriever=open_entries(RetrieverConfig.of(config), dataset, "cpu"),
        texts=open_text_retriever(texts.text_index, dataset.knowledge, device="cpu"),
        remote=MagicMock(),
        use=ModelUse(None, is_served=True),
    )
    pipeline = build_pipeline(name, find_recipe(name).settings_of(config), parts)
    found = [
        pipeline.tools.search([(load_image("red.png", root=world), SearchRequest(0, (query,), {"pairs": (2,)}))])  # type: ignore[attr-defined]
        for query in ("Who built it?", "What does it eat?")
    ]
    assert [[hit.passage.entry_id for hit in reply.hits[0]["pairs"]] for (reply,) in found] == [["e1", "e0"]] * 2


def test_an_agents_image_search_reads_the_list_and_its_text_search_the_passages(world, make, tmp_path) -> None:
    config = settings(world, base_model="base", pipelines=["promsa"], output=str(tmp_path / "out"))
    assert config.problems() == ["`text_index` is needed by promsa: ranked entities can't be searched with texts"]
    dataset = Dataset(world)
    make.text_index(dataset.knowledge, tmp_path / "texts")
    texts = TextIndexSettings(text_index=str(tmp_path / "texts"))
    search, base = agent_search(dataset, PromsaSettings(), RetrieverConfig.of(config), texts, "cpu")
    image = load_image("red.png", root=world)
    by_image = SearchRequest(0, ("",), {"pairs": (2,)}, question="What does it eat?")
    by_text = SearchRequest(0, ("mice",), {base: (1,)})
    (listed,), (found,) = (search([(image, request)])[0].hits for request in (by_image, by_text))
    assert [(hit.passage.entry_id, hit.score) for hit in listed["pairs"]] == [("e1", 1.0), ("e0", 0.5)]
    assert (base, len(found["texts"])) == ("texts", 1)


@ONE_FAMILY
def test_an_evaluation_says_what_it_read_and_for_how_many_nothing_was_found(world, checkpoints, tmp_path) -> None:
    def evaluate(folder: Path, ranked: Path) -> dict[str, list[str]]:
        """The lines of the traces' files."""
        models = {"model": checkpoints.tuned, "base_model": checkpoints.base, "output": str(folder)}
        config = settings(world, ranked, pipelines=["naive_rag", "mr2ag"], **models)
        assert config.problems() == []
        experiment.run(config)
        return {path.name: path.read_text().splitlines() for path in (folder / "traces").glob("*.jsonl")}

    first = evaluate(tmp_path / "out", world / "ranked.jsonl")
    rows = {row["question_id"]: row for row in map(json.loads, first["retrieval.jsonl"][1:])}
    assert [(hit["entry_id"], hit["score"]) for hit in rows["q000"]["hits"]] == [("e1", 1.0), ("e0", 0.5)]
    assert rows["q001"]["hits"] == []
    report = (tmp_path / "out/report.html").read_text()
    assert "For 1 of 2 questions no entry was found." in report
    assert "ranked.jsonl, fingerprint" in report
    other = tmp_path / "ranked.jsonl"
    other.write_text(json.dumps({"image": "red.png", "entities": ["e0"]}))
    second = evaluate(tmp_path / "other", other)
    assert second["mr2ag.jsonl"][0] != first["mr2ag.jsonl"][0]  # the fingerprint of everything that traces depend on

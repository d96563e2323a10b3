"""Whatever retrieves, over ranked entities: what a file lists is read, and a picture without a list is answered too."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import all_recipes, build_pipeline, find_recipe
from reflectune.inference.running import experiment
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.loading import open_engine, open_entries
from reflectune.models.loading import Loaded, load
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.words import WordReranker

RETRIEVING = [name for name, recipe in all_recipes().items() if recipe.needs("entries") and not recipe.is_iterative]
ITERATIVE = [name for name, recipe in all_recipes().items() if recipe.is_iterative]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two entries and two questions about them; of the second one's picture nobody ranked anything."""
    folder = tmp_path_factory.mktemp("world")
    sections = (Section("Diet", "It eats mice."), Section("Home", "It lives in an oak."))
    entries = [Entry(f"e{n}", f"Title {n}", summary="A drawing.", sections=sections) for n in range(2)]
    write_knowledge_base(folder / "knowledge", entries, name="kb")
    questions = []
    for number, colour in enumerate(("red", "green")):
        Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
        gold = {"entity_ids": (f"e{number}",), "evidence": (Evidence(f"e{number}", 0),), "answers": ("mice",)}
        questions.append(
            Question(f"q{number}", f"{colour}.png", "What does it eat?", split="val", requires_retrieval=True, **gold)
        )
    write_questions(folder, "val", questions)
    manifest = {"name": "test", "metric": "exact_match", "seed": 0, "fingerprint": "f" * 16, "counts": {}}
    (folder / "dataset.json").write_text(json.dumps(manifest))
    rows = [{"image": "red.png", "entities": ["e1", "elsewhere", "e0"]}, {"image": "gone.png", "entities": ["e0"]}]
    (folder / "ranked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def models(checkpoints: SimpleNamespace, prompted: SimpleNamespace) -> dict[str, Loaded]:
    return {
        "base_model": load(checkpoints.base),
        "plain_model": load(checkpoints.base, scheme="plain"),
        "mr2ag": load(checkpoints.tuned),
        "mmkb_rag": load(prompted.tuned),
        "reflectiva": load(checkpoints.base, scheme="reflectiva"),
    }


@pytest.mark.parametrize("name", RETRIEVING)
def test_every_pipeline_reads_what_is_listed_and_survives_what_is_not(name: str, world, models, checkpoints) -> None:
    recipe = find_recipe(name)
    tuned = "mmkb_rag" if name in ("mmkb_rag", "reflection") else "reflectiva" if name == "reflectiva" else "mr2ag"
    config = EvaluateConfig(
        dataset=str(world),
        ranked_entities=str(world / "ranked.jsonl"),
        base_model=checkpoints.base,
        gamma=0.0,
        max_new_tokens=4,
        max_reply_tokens=4,
        device="cpu",
    )
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
    config = EvaluateConfig(
        dataset=str(world),
        ranked_entities=str(world / "ranked.jsonl"),
        base_model="base",
        pipelines=[name],
        splits=["val"],
        output=str(tmp_path / "out"),
        device="cpu",
    )
    problem, *others = config.problems()
    assert all(name == "pmsr_web" and "`text_index` is needed" in other for other in others)
    assert problem == f"`index` is needed by {name}: ranked entities can't be searched with texts"
    dataset = Dataset(world)
    retriever = open_entries(RetrieverConfig.of(config), dataset, "cpu")
    parts = PipelineParts(dataset.knowledge, retriever=retriever, reranker=WordReranker())
    with pytest.raises(UserError, match=f"{name} searches with texts, too: give it an `index`"):
        build_pipeline(name, config, parts)


def test_an_evaluation_says_what_it_read_and_for_how_many_nothing_was_found(world, checkpoints, tmp_path) -> None:
    def evaluate(folder: Path, ranked: Path) -> dict[str, list[str]]:
        """The lines of the traces' files."""
        config = EvaluateConfig(
            dataset=str(world),
            ranked_entities=str(ranked),
            base_model=checkpoints.base,
            model=checkpoints.tuned,
            pipelines=["naive_rag", "mr2ag"],
            splits=["val"],
            output=str(folder),
            gamma=0.0,
            max_new_tokens=4,
            device="cpu",
        )
        assert config.problems() == []
        experiment.run(config)
        return {path.name: path.read_text().splitlines() for path in (folder / "traces").glob("*.jsonl")}

    first = evaluate(tmp_path / "out", world / "ranked.jsonl")
    rows = {row["question_id"]: row for row in map(json.loads, first["retrieval.jsonl"][1:])}
    assert [(hit["entry_id"], hit["score"]) for hit in rows["q0"]["hits"]] == [("e1", 1.0), ("e0", 0.5)]
    assert rows["q1"]["hits"] == []
    report = (tmp_path / "out/report.html").read_text()
    assert "For 1 of 2 questions no entry was found." in report
    assert "ranked.jsonl, fingerprint" in report
    other = tmp_path / "ranked.jsonl"
    other.write_text(json.dumps({"image": "red.png", "entities": ["e0"]}))
    second = evaluate(tmp_path / "other", other)
    assert second["mr2ag.jsonl"][0] != first["mr2ag.jsonl"][0]  # the fingerprint of everything that traces depend on

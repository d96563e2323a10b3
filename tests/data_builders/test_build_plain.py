"""The baselines' data: mR²AG-IT's questions with the contexts of naive RAG."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Passage, Question, Section
from reflectune.data_builders.mr2ag import plain as build
from reflectune.data_builders.mr2ag.plain_config import PlainConfig
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.formats.questions import is_held_out
from reflectune.formats.reflection_data import Manifest, read_examples, read_manifest, write_examples, write_manifest
from reflectune.inference.pipelines.naive_rag import naive_rag
from reflectune.inference.pipelines.oracle import GoldRetriever
from reflectune.inference.reading.reader import ReaderAnswer
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import Branch, PromptedExample, ReflectionExample
from reflectune.retrieval.build_index import IndexConfig, build_index
from reflectune.retrieval.contexts import ContextBuilder
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query

Make = Callable[..., PlainConfig]
COLOURS = ("red", "green", "blue", "black")


def article(number: int) -> Entry:
    texts = {"History": f"It was founded in {1500 + number}.", "Size": f"It is {20 + number} m tall."}
    lead, sections = f"A {COLOURS[number]} tower.", tuple(Section(title, text) for title, text in texts.items())
    return Entry(f"e{number}", f"Tower {number}", "", lead, (f"{number}.png",), sections)


def example(number: int) -> ReflectionExample:
    gold = Passage(f"e{number}", 0, 0, f"Tower {number}", "", "History", f"It was founded in {1500 + number}.")
    branches = (Branch(gold, False, "", "random"), Branch(gold, True, str(1500 + number), "gold"))
    return ReflectionExample(f"k{number}", f"{number}.png", "When was it founded?", True, branches=branches)


def examples_of(tmp_path: Path) -> list[PromptedExample]:
    return read_examples(tmp_path / "plain" / "train.parquet", PromptedExample)


SEEN = ReflectionExample("v0", "0.png", "Which colour?", False, answer="red", source="train")


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory, encoder: str) -> Path:
    """Return a folder with the world and its index, which tests copy."""
    folder = tmp_path_factory.mktemp("towers")
    root = folder / "world"
    write_json(root / "dataset.json", {"name": "towers", "fingerprint": "f1"})
    for number, colour in enumerate(COLOURS):
        Image.new("RGB", (8, 8), colour).save(root / f"{number}.png")
    entries = [article(number) for number in range(len(COLOURS))]
    write_knowledge_base(root / "knowledge", entries, name="towers", image_root="..")
    to = str(folder / "index")
    build_index(IndexConfig(knowledge=str(root / "knowledge"), output=to, encoder=encoder, device="cpu"))
    return folder


@pytest.fixture
def config(tmp_path: Path, towers: Path) -> Make:
    shutil.copytree(towers, tmp_path, dirs_exist_ok=True)
    root, index = tmp_path / "world", str(tmp_path / "index")
    write_examples(tmp_path / "reflection" / "train.parquet", [example(0), SEEN, example(3)])
    write_manifest(tmp_path / "reflection", Manifest("mr2ag", root, {"train": "k"}))

    def make(**changes: Any) -> PlainConfig:
        values: dict[str, Any] = {"dataset": str(root), "top_n": 3, "passages": 2, "device": "cpu"}
        values |= {"index": index, "reflection": str(tmp_path / "reflection"), "output": str(tmp_path / "plain")}
        values |= {"evidence": ["none", "gold", "articles", "passages"]}
        return PlainConfig(**{**values, **changes})

    return make


def test_a_rerankers_defaults_are_hashed_by_their_values(config: Make) -> None:
    miniature = {"reranker": "embedding", "reranker_model": "miniature/text"}
    explicit = config(**miniature, reranker_similarity="cosine", reranker_max_length=512)
    assert config(**miniature).hashed() == explicit.hashed()
    preset = {"reranker": "embedding", "reranker_model": "facebook/contriever"}
    assert config(**preset).hashed() == config(**preset, reranker_similarity="dot").hashed()


def test_each_question_is_answered_once_from_each_context(config: Make, tmp_path: Path) -> None:
    build.run(config())
    first, seen, last = examples_of(tmp_path)
    assert [len(branch.documents) for branch in first.branches] == [0, 1, 6, 2]
    assert {branch.prompt for branch in first.branches} == {"vqa"}
    assert [branch.reply for branch in (*first.branches, *last.branches)] == ["1500"] * 4 + ["1503"] * 4
    assert [(branch.documents, branch.reply) for branch in seen.branches] == [((), "red")]
    assert all(passage.heading == "History" for passage in first.branches[3].documents)
    assert read_manifest(tmp_path / "plain").scheme == "plain"


def test_training_reads_the_contexts_of_naive_rag(config, tmp_path, encoder) -> None:
    settings = config(evidence=["articles", "passages"])
    build.run(settings)
    dataset = Dataset(Path(settings.dataset))
    loaded = load_encoder(encoder)
    retriever = EntryRetriever(load_index(tmp_path / "index", dataset.knowledge, loaded), loaded)
    contexts = ContextBuilder(dataset.knowledge, WordReranker(), top_n=3, passages=2)
    hits = retriever.search([Query(Image.open(tmp_path / "world" / "3.png").convert("RGB"))], 3)
    trained = examples_of(tmp_path)[2]
    for branch, form in zip(trained.branches, ("articles", "passages"), strict=True):
        assert [list(branch.documents)] == contexts.build(form, [trained.question], hits)


class Recording:
    """A reader that answers nothing and keeps what it is given to read."""

    def answer_plainly(self, questions: Any, images: Any, contexts: Any) -> list[ReaderAnswer]:
        (self.read,) = contexts
        return [ReaderAnswer("", 0.0, 0, len(self.read))]


@pytest.mark.parametrize(("evidence", "form"), [("article", "article"), ("gold", "passages")])
def test_gold_contexts_are_those_of_naive_rag_over_gold_entries(config, tmp_path, evidence, form) -> None:
    """Equal passages and styles are equal prompts: test_p_vqa_is_what_a_plain_model_reads."""
    settings = config(evidence=[evidence], index="")  # nothing is retrieved
    assert settings.problems() == []
    build.run(settings)
    contexts = ContextBuilder(Dataset(tmp_path / "world").knowledge, WordReranker(), top_n=1, passages=1)
    for number, trained in zip((0, 3), examples_of(tmp_path)[::2], strict=True):
        question, reader = Question("q", "", trained.question, entity_ids=(f"e{number}",)), Recording()
        rag = naive_rag("rag", reader, GoldRetriever(), contexts, form)
        rag.run([question], [Image.new("RGB", (8, 8))])
        assert [list(branch.documents) for branch in trained.branches] == [list(reader.read)]
        assert trained.style == question.answer_style


def test_the_contexts_that_state_the_answer_are_counted(config, tmp_path) -> None:
    forms = ["none", "gold", "article", "articles"]

    def counts(**changes: Any) -> dict[str, Any]:
        build.run(config(**changes))
        return read_json(tmp_path / "plain" / "statistics.json", "statistics")["train"]

    second = Passage("e1", 1, 0, "Tower 1", "A green tower.", "Size", "It is 21 m tall.")
    unknown = replace(second, section=7)
    rows = [replace(example(1), id=p.id, branches=(Branch(p, True, "21", "gold"),)) for p in (second, unknown)]
    bare = replace(example(2), branches=example(2).branches[:1])
    write_examples(tmp_path / "reflection" / "train.parquet", [example(0), SEEN, *rows, bare])
    whole = counts(evidence=forms, top_n=1)
    assert whole["states_the_answer"] == {"none": 0, "gold": 1, "article": 1, "articles": 1}
    assert (whole["questions"], whole["prompts"], whole["questions_left_out"]) == (3, 9, 2)
    cut = counts(evidence=["article"], context_words=12)  # the first passage of each article
    assert (cut["states_the_answer"], cut["questions_left_out"]) == ({"article": 1}, 3)
    assert counts(evidence=["gold"], context_words=12)["questions_left_out"] == 2


def test_a_context_is_cut_at_whole_passages(config: Make, tmp_path: Path) -> None:
    build.run(config(evidence=["articles"], context_words=25))
    (branch,) = examples_of(tmp_path)[0].branches
    lengths = [len(passage_text(passage).split()) for passage in branch.documents]
    assert 1 <= len(lengths) < 6
    assert sum(lengths) <= 25


def test_questions_of_held_out_entities_are_left_out(config: Make, tmp_path: Path) -> None:
    made = config(hold_out=0.5, evidence=["none"])
    asked = [Question(f"k{i}", f"{i}.png", "When?", ("1",), entity_ids=(f"e{i}",), split="train") for i in (0, 3)]
    write_questions(made.dataset, "train", asked)
    held_out = {question.id for question in asked if is_held_out(question, 0.5)}
    assert len(held_out) == 1
    build.run(made)
    assert {example.id for example in examples_of(tmp_path)} == {"k0", "v0", "k3"} - held_out
    write_questions(made.dataset, "train", [question for question in asked if question.id not in held_out])
    build.run(made)
    assert {example.id for example in examples_of(tmp_path)} == {"k0", "v0", "k3"}


def test_a_built_split_is_not_built_again(config, tmp_path, capsys) -> None:
    build.run(config())
    build.run(config())
    assert "nothing to do" in capsys.readouterr().out
    build.run(config(top_n=2))
    assert len(examples_of(tmp_path)[0].branches[2].documents) == 4


def test_data_of_another_data_set_is_refused(config: Make, tmp_path: Path) -> None:
    write_manifest(tmp_path / "reflection", Manifest("mr2ag", tmp_path / "elsewhere", {"train": "k"}))
    with pytest.raises(UserError, match="was not built from"):
        build.run(config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evidence": ["entry"]}, "`evidence`"),
        ({"evidence": []}, "at least one context"),
        ({"index": ""}, "`index` is needed"),
        ({"top_n": 0}, "`top_n` must be at least 1"),
        ({"reranker": "embedding"}, "needs `reranker_model`"),
    ],
)
def test_a_bad_config_is_refused(config: Make, changes: dict[str, Any], message: str) -> None:
    problems = find_problems(PlainConfig, {**config().model_dump(), **changes})
    assert any(message in problem for problem in problems)


def test_a_missing_index_matters_only_if_it_is_read(config: Make) -> None:
    values = config().model_dump() | {"index": "missing"}
    assert "`index`: missing has no manifest.json" in find_problems(PlainConfig, values)[0]
    assert not find_problems(PlainConfig, values | {"evidence": ["none", "gold", "article"]})


def test_a_folder_of_other_data_is_not_written_over(config: Make, tmp_path: Path) -> None:
    file = tmp_path / "reflection" / "train.parquet"
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"holds reflection data of mr2ag with"):
        build.run(config(output=str(tmp_path / "reflection")))
    assert file.read_bytes() == before


BARE = replace(example(1), branches=example(1).branches[:1])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], r"train\.parquet has no questions; build it again"),
        ([BARE], "example k1 has no relevant passage"),
        ([replace(BARE, branches=()), example(3)], "k1: a question with retrieval needs a passage"),
    ],
)
def test_unfit_examples_are_refused(config: Make, tmp_path: Path, examples, message: str) -> None:
    write_examples(tmp_path / "reflection" / "train.parquet", examples, ReflectionExample)
    with pytest.raises(UserError, match=message):
        build.run(config(evidence=["none"]))

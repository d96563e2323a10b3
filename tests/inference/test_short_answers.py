"""A model that answers in a sentence unless it is asked for a word: every path that wants a word asks for one.

Models, prompts, pipelines and the engine's reading are real. Only what the model says is scripted, by the text of the
ids that it has read.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.probing.config import GenerationSettings
from reflectune.data_builders.probing.labels import Rule, ret_label
from reflectune.data_builders.probing.probe import Prober
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.inference.config import ModelSettings
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.mmkb_rag import MmkbRagSettings
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import all_forms, all_recipes, build_pipeline, find_recipe
from reflectune.inference.running import single
from reflectune.inference.running.config import AnswerConfig, EvaluateConfig
from reflectune.inference.running.loading import open_engine, open_entries
from reflectune.inference.running.rollout import GateRewardRollout
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.service import AnswerService
from reflectune.inference.trace import Trace
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import Loaded, load, save_checkpoint
from reflectune.models.prefix.engine import Branches, Generation, PrefixEngine, Prefixes
from reflectune.models.schemes.examples import (
    Branch,
    PromptedBranch,
    PromptedExample,
    ReflectionExample,
    TrainingExample,
)
from reflectune.models.schemes.registry import find_scheme
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.contexts import Document
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.text_retriever import open_text_retriever
from reflectune.train.runs.answers import AnswerReader
from tests.inference.families import ONE_FAMILY

WORD, LIST = "oak", "oak && elm"
SENTENCE = "The answer is oak, as everyone knows."
SAID = {"short": WORD, "list": LIST, "free": SENTENCE}
"""What the model says to the question of each style, by the question's id."""


class Chatty:
    """Answer as an instruction-tuned model: with a word or a list if asked for one, else with a sentence.

    Attributes:
        yes: Probability of the first of any two tokens that are compared: of [Retrieval], [Relevant] and the like.
        read: The text that each answer goes on from.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.yes = 0.9
        self.read: list[str] = []
        self._prefixes: list[tuple[Prefixes, list[list[int]]]] = []
        read = PrefixEngine.read

        def remember(engine: PrefixEngine, prefixes: Sequence[Any]) -> Prefixes:
            made = read(engine, prefixes)
            self._prefixes.append((made, [prefix.ids for prefix in prefixes]))
            return made

        def generate(
            engine: PrefixEngine, state: Prefixes | Branches, rows: Any, forced: Any = (), *_: Any, **__: Any
        ) -> list[Generation]:
            return [self._say(engine, [*self._ids(state, *row), *forced]) for row in rows]

        def probabilities(engine: PrefixEngine, state: Prefixes | Branches, tokens: Any) -> torch.Tensor:
            return torch.tensor([[self.yes, 1 - self.yes]]).repeat(len(state.rows), 1)

        monkeypatch.setattr(PrefixEngine, "read", remember)
        monkeypatch.setattr(PrefixEngine, "generate", generate)
        monkeypatch.setattr(PrefixEngine, "probabilities", probabilities)

    def _ids(self, state: Prefixes | Branches, question: int, branch: int) -> list[int]:
        prefixes = state if isinstance(state, Prefixes) else state.prefixes
        ids = next(token_ids for made, token_ids in self._prefixes if made is prefixes)[question]
        return ids if isinstance(state, Prefixes) else [*ids, *state.ids[question][branch]]

    def _say(self, engine: PrefixEngine, ids: list[int]) -> Generation:
        text = engine.renderer.decode(ids)
        self.read.append(text)
        wants_word, wants_list = "with a single word or phrase." in text, "using '&&' to connect" in text
        assert not (wants_word and wants_list), text
        said = WORD if wants_word else LIST if wants_list else SENTENCE
        token_ids = engine.renderer.reply_ids(said)
        return Generation(token_ids, said, [-0.1] * len(token_ids), True)


@pytest.fixture
def chatty(monkeypatch: pytest.MonkeyPatch) -> Chatty:
    return Chatty(monkeypatch)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, encoder: str, make) -> Path:
    """Two entries of two sections with an index, and three questions: for a word, for a list, for sentences."""
    folder = tmp_path_factory.mktemp("world")
    sections = (Section("Home", "It lives in an oak and in an elm."), Section("Diet", "It eats mice."))
    entries = []
    for name, colour in (("e0", "red"), ("e1", "blue")):
        Image.new("RGB", (64, 64), colour).save(folder / f"{name}.png")
        entries.append(Entry(id=name, title=f"Title {name}", images=(f"{name}.png",), sections=sections))
    make.text_index(make.data_set(folder, entries, QUESTIONS, encoder), folder / "text_index")
    return folder


ABOUT: dict[str, Any] = {"split": "train", "requires_retrieval": True, "entity_ids": ("e0",)}
QUESTIONS = [
    Question(style, "e0.png", "What does it live in?", (answer,), None, kind, evidence=(Evidence("e0", 0),), **ABOUT)
    for style, answer, kind in (
        ("short", WORD, "string"),
        ("list", LIST, "multi_answer"),
        ("free", "In an oak.", "free_form"),
    )
]


@pytest.fixture
def settings(world: Path) -> Callable[..., dict[str, Any]]:
    def make(**more: Any) -> dict[str, Any]:
        where = {"dataset": str(world), "index": str(world / "index")}
        return {**where, "top_n": 2, "max_new_tokens": 8, "token_budget": 2048, "device": "cpu", **more}

    return make


# Pipelines.


class Route(NamedTuple):
    """The gates' probability of yes and the settings that lead a pipeline to one way of answering."""

    pipeline: str
    yes: float = 0.9
    settings: tuple[tuple[str, Any], ...] = ()


BASELINES = [name for name, recipe in all_recipes().items() if recipe.model == "base_model"]
TUNED = ["closed_book_tuned", "naive_rag_passages_tuned"]
"""Without and with documents; the other tuned baselines ask as their untuned ones do."""
ROUTES = {
    **{name: Route(name) for name in (*BASELINES, *TUNED)},
    "reag: nothing kept": Route("reag", 0.05),
    "wikiseeker: the inspector fails": Route("wikiseeker", 0.1),
    "mr2ag: from passages": Route("mr2ag"),
    "mr2ag: [No Retrieval]": Route("mr2ag", 0.1),
    "mr2ag: nothing relevant, closed book": Route("mr2ag", 0.1, (("gamma", 0.0), ("fallback", "closed_book"))),
    "mr2ag: nothing relevant, best product": Route("mr2ag", 0.1, (("gamma", 0.0),)),
    **{name: Route(name) for name in all_forms()["controls"]},
    "mr2ag_oracle": Route("mr2ag_oracle"),
    "mr2ag_oracle: [No Retrieval]": Route("mr2ag_oracle", 0.1),
    "relevance": Route("relevance"),
    **{
        f"mmkb_rag: {model} answers {how}": Route("mmkb_rag", yes, (("answer_model", model), ("mct", "none")))
        for model in ("tuned", "base")
        for how, yes in (("from documents", 0.9), ("without documents", 0.1))
    },
}


@pytest.fixture(scope="module")
def models(checkpoints: SimpleNamespace, prompted: SimpleNamespace) -> dict[str, Loaded]:
    return {
        "base_model": load(checkpoints.base),
        "plain_model": load(checkpoints.base, scheme="plain"),
        "mr2ag": load(checkpoints.tuned),
        "mmkb_rag": load(prompted.tuned),
    }


@pytest.fixture
def parts(models, settings, world) -> Callable[..., tuple[EvaluateConfig, PipelineParts]]:
    def make(name: str, **more: Any) -> tuple[EvaluateConfig, PipelineParts]:
        config, dataset = EvaluateConfig(**settings(**more)), Dataset(world)
        role = find_recipe(name).model or ""
        measures_prompts = name in ("mmkb_rag", "reflection")
        loaded = models[role if role != "model" else "mmkb_rag" if measures_prompts else "mr2ag"]
        made = PipelineParts(
            dataset.knowledge,
            probes=DiagnosticPassages(dataset.root, dataset.manifest, dataset.knowledge, "first_sentence", seed=0),
            engine=open_engine(config, loaded),
            retriever=open_entries(RetrieverConfig.of(config), dataset, "cpu"),
            base=open_engine(config, models["base_model"]),
            reranker=WordReranker(),
            texts=open_text_retriever(world / "text_index", dataset.knowledge, device="cpu"),
        )
        return config, made

    return make


def test_no_pipeline_that_answers_is_forgotten_here() -> None:
    """But ReflectiVA's, which asks in its own published words, whatever the style."""
    others = {"retrieval", "reflection", "reflectiva", *(f"{name}_tuned" for name in BASELINES)} - {*TUNED}
    assert {route.pipeline for route in ROUTES.values()} == set(all_recipes()) - others


@ONE_FAMILY  # each family's prompts: test_rendering.py
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_every_pipeline_asks_for_what_the_question_wants(route: Route, chatty, parts, world) -> None:
    chatty.yes = route.yes
    pipeline = build_pipeline(route.pipeline, *parts(route.pipeline, **dict(route.settings)))
    traces = pipeline.run(QUESTIONS, images(world))
    assert [trace.answer for trace in traces] == list(SAID.values())
    for trace in traces:
        assert all(passage.answer in (None, trace.answer) for passage in trace.passages)


@ONE_FAMILY
def test_the_routes_are_taken_as_they_are_called(chatty, parts, world) -> None:
    def traces(name: str) -> list[Trace]:
        route = ROUTES[name]
        chatty.yes = route.yes
        return build_pipeline(route.pipeline, *parts(route.pipeline, **dict(route.settings))).run(
            QUESTIONS, images(world)
        )

    assert all(trace.chosen is not None and not trace.fallback for trace in traces("mr2ag: from passages"))
    assert not any(trace.retrieved for trace in traces("mr2ag: [No Retrieval]"))
    for fallback in ("closed book", "best product"):
        expected = fallback.replace(" ", "_")
        assert {trace.fallback for trace in traces(f"mr2ag: nothing relevant, {fallback}")} == {expected}
    assert all(trace.used for trace in traces("mmkb_rag: tuned answers from documents"))
    assert not any(trace.retrieved for trace in traces("mmkb_rag: base answers without documents"))


@ONE_FAMILY
def test_each_document_alone_is_asked_for_the_same(chatty, parts, world) -> None:
    answer_each = find_recipe("mmkb_rag").answer_each
    assert answer_each is not None
    for answer_model in ("tuned", "base"):
        config, made = parts("mmkb_rag", answer_model=answer_model)
        for trace in answer_each(MmkbRagSettings.of(config), made).run(QUESTIONS, images(world)):
            assert {passage.answer for passage in trace.passages} == {SAID[trace.question_id]}


@ONE_FAMILY
@pytest.mark.parametrize(
    ("scheme", "yes", "answer_type", "said"),
    [  # any two of scheme, gate and form in all combinations
        ("mr2ag", 0.1, "", WORD),
        ("mr2ag", 0.9, "multi_answer", LIST),
        ("mr2ag", 0.1, "free_form", SENTENCE),
        ("mmkb_rag", 0.9, "", WORD),
        ("mmkb_rag", 0.1, "multi_answer", LIST),
        ("mmkb_rag", 0.9, "free_form", SENTENCE),
    ],
)
def test_a_single_question_is_answered_in_the_form_that_is_asked_for(
    scheme: str,
    yes: float,
    answer_type: str,
    said: str,
    chatty: Chatty,
    checkpoints: SimpleNamespace,
    prompted: SimpleNamespace,
    settings: Callable[..., dict[str, Any]],
    world: Path,
) -> None:
    chatty.yes = yes
    more = {"answer_model": "tuned", "mct": "none"} if scheme == "mmkb_rag" else {}
    model = (prompted if scheme == "mmkb_rag" else checkpoints).tuned
    more |= {"answer_type": answer_type} if answer_type else {}
    where = {"model": model, "image": str(world / "e0.png"), "question": "What does it live in?"}
    trace = single.answer(AnswerConfig(**settings(**where, **more)))
    assert trace.retrieved is (yes > 0.5)
    assert trace.answer == said


@ONE_FAMILY
def test_a_server_asks_for_the_form_of_its_config(chatty, checkpoints, settings, world: Path) -> None:
    config = settings(model=checkpoints.tuned, pipelines=["mr2ag"], answer_type="free_form")
    with AnswerService(ServeConfig(**config)) as service:
        assert service.submit("What does it live in?", load_image(world / "e0.png")).result(60).answer == SENTENCE


@ONE_FAMILY
def test_a_model_that_does_not_reflect_has_nothing_to_show(models, settings, world, tmp_path) -> None:
    plain = models["plain_model"]
    save_checkpoint(tmp_path, plain.model, plain.processor, find_scheme("plain"), {"base_model": plain.name})
    where = {"model": str(tmp_path), "image": str(world / "e0.png"), "question": "What does it live in?"}
    with pytest.raises(UserError, match="fine-tuned with the scheme plain, which doesn't reflect"):
        single.answer(AnswerConfig(**settings(**where)))


# Probing, rewards, validation.


@ONE_FAMILY
@pytest.mark.parametrize("summary", ["none", "sentences"])
def test_probing_finds_what_the_model_knows(summary: str, chatty, models, world) -> None:
    """So that not every question is labelled [Ret], and not every document [Rel]."""
    engine = PrefixEngine(models["mmkb_rag"], 2048)
    prober = Prober(engine, find_metric("infoseek"), GenerationSettings(max_new_tokens=8, summary=summary))
    passages = split_passages(Dataset(world).knowledge.get("e0"), lead="first_sentence")
    documents = [Document(passage, 0.5, rank) for rank, passage in enumerate(passages, start=1)]
    ready = [prober.prepare(question, load_image(question.image, root=world), documents) for question in QUESTIONS[:2]]
    for probe in prober.probe(ready):
        replies = probe.replies
        assert len(replies) == 1 + len(passages)
        assert {reply.text for reply in replies} == {SAID[probe.question_id]}
        assert {reply.correctness for reply in replies} == {1.0}
        label = ret_label(probe, Rule())
        assert label is not None
        assert not label.retrieve


@ONE_FAMILY
@pytest.mark.parametrize(("scheme", "model"), [("mr2ag", "tuned"), ("mmkb_rag", "tuned"), ("mmkb_rag", "base")])
def test_rewards_are_of_short_answers_both_ways(
    scheme: str,
    model: str,
    chatty: Chatty,
    checkpoints: SimpleNamespace,
    models: dict[str, Loaded],
    settings: Callable[..., dict[str, Any]],
    world: Path,
    tmp_path: Path,
) -> None:
    config = EvaluateConfig(**settings(answer_model=model, base_model=checkpoints.base, mct="none"))
    both = GateRewardRollout(
        config,
        ModelSettings.of(config),
        RetrieverConfig.of(config),
        models[scheme],
        Dataset(world),
        QUESTIONS[:2],
        folder=tmp_path,
        correctness=find_metric("infoseek"),
        relevance=True,
    )
    for outcome in both(0):
        assert (outcome.direct, outcome.retrieved) == (1.0, 1.0)
        assert outcome.passages
        assert all(passage.right == 1.0 for passage in outcome.passages)


@ONE_FAMILY
@pytest.mark.parametrize("scheme", ["mr2ag", "mmkb_rag", "plain"])
def test_validation_reads_short_answers(scheme: str, chatty: Chatty, models: dict[str, Loaded], world: Path) -> None:
    loaded = models["plain_model" if scheme == "plain" else scheme]
    examples = list(_examples(scheme, Dataset(world)))
    reader = AnswerReader(loaded, examples, world, count=99, seed=0, batch_size=3)
    assert len(reader.sample) == 4  # those that want sentences have no right answer
    assert reader.read(0, 1) == [True] * 4


def _examples(scheme: str, dataset: Dataset) -> Sequence[TrainingExample]:
    """Each question answered from nothing and from a passage."""
    passage = split_passages(dataset.knowledge.get("e0"), lead="first_sentence")[0]
    made: list[TrainingExample] = []
    for question in QUESTIONS:
        start = ("", question.image, question.text)
        style, answer = question.answer_style, SAID[question.id]
        if scheme == "mr2ag":
            looked_up = (Branch(passage, True, answer),)
            made.append(ReflectionExample(*start, False, answer, style=style))
            made.append(ReflectionExample(*start, True, branches=looked_up, style=style))
        else:
            made += [
                PromptedExample(*start, (PromptedBranch("vqa", documents, reply=answer),), style)
                for documents in ((), (passage,))
            ]
    return [dataclasses.replace(example, id=str(number)) for number, example in enumerate(made)]


def images(world: Path) -> list[Image.Image]:
    return [load_image(question.image, root=world) for question in QUESTIONS]

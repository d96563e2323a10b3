"""Small things that the inference tests are built from, as the fixture `make`, and a model that follows a script."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reflectune.core.images import Images
from reflectune.core.types import Entry, Evidence, Passage, Question, Section
from reflectune.examples.miniature.models.architecture import Family, build_model, build_processor, train_tokenizer
from reflectune.formats.dataset import write_questions
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeReply,
    Prompt,
    RerankReply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    WriteReply,
)
from reflectune.inference.operators.trajectory import Tools
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.models.loading import save_checkpoint
from reflectune.models.prefix.engine import PrefixEngine, Prefixes
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.rendering.turns import ANSWER_PROMPTS, prompt_parts
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.weights.tokens import add_reflection_tokens
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.text_index import Cutting, build_text_index

SPLITS = ("val_unseen_question", "val_unseen_entity")


def question(number: int, split: str = "val_unseen_entity", answer: str = "oak", **more: Any) -> Question:
    values = {"image": "images/a.png", "text": "What is it made of?", "requires_retrieval": True, **more}
    return Question(id=f"q{number:03d}", answers=(answer,), split=split, **values)


def passage(entry_id: str = "e1", section: int = 0, text: str = "It is made of oak.", index: int = 0) -> Passage:
    return Passage(entry_id, section, index, title=f"Title {entry_id}", lead="", heading=f"H{section}", text=text)


def read(
    entry_id: str = "e1",
    section: int = 0,
    *,
    ret: float | None = 0.5,
    rel: float = 0.9,
    answer: str | None = None,
    ans: float | None = None,
    source: str = "",
) -> PassageTrace:
    return PassageTrace(
        passage(entry_id, section), s_ret=ret, s_rel=rel, s_irr=1 - rel, answer=answer, s_ans=ans, source=source
    )


def trace(number: int, pipeline: str = "mr2ag", answer: str = "oak", **more: Any) -> Trace:
    return Trace(question_id=f"q{number:03d}", pipeline=pipeline, answer=answer, **more)


def hit(entry_id: str, rank: int, score: float = 0.5) -> Hit:
    return Hit(entry_id=entry_id, score=score, rank=rank, query="q", kb="kb", parts={"image": score, "title": score})


def evidence(entry_id: str = "e1", section: int = 0) -> tuple[Evidence, ...]:
    return (Evidence(entry_id, section),)


def entry(number: int, *images: str) -> Entry:
    sections = (Section("Diet", "It eats mice."), Section("Home", "It lives in an oak."))
    return Entry(f"e{number}", f"Title e{number}", summary="A drawing.", images=images, sections=sections)


def data_set(
    folder: Path, entries: Sequence[Entry], questions: Sequence[Question], encoder: str = "", **manifest: object
) -> KnowledgeBase:
    """Write a data set folder, and an index if an encoder is given, as `convert` and `build_index` leave them."""
    knowledge = write_knowledge_base(folder / "knowledge", entries, name="kb", image_root="..", shard_size=10)
    for split in {question.split for question in questions}:
        write_questions(folder, split, [question for question in questions if question.split == split])
    record = {"name": "test", "metric": "infoseek", "seed": 0, "fingerprint": "f" * 16, "counts": {}, **manifest}
    (folder / "dataset.json").write_text(json.dumps(record))
    if encoder:
        build_index(knowledge, load_encoder(encoder), folder / "index")
    return knowledge


def text_index(knowledge: KnowledgeBase, folder: Path, *cutting: Any) -> None:
    """Build an index of texts with the miniature's encoder."""
    encoder = TextEncoder(find_checkpoint("miniature/text"), TextSettings(), torch.device("cpu"), "")
    build_text_index(knowledge, encoder, folder, Cutting(*cutting))


def keys(world: Path, models: SimpleNamespace, **more: object) -> dict[str, Any]:
    """Return the keys of a config that is run on a data set with its index and two models."""
    where = {"dataset": str(world), "index": str(world / "index"), "device": "cpu"}
    return {**where, "model": models.tuned, "base_model": models.base, "max_new_tokens": 4, **more}


def filled(prompt: Prompt, room: int = 99) -> str:
    """Render a prompt as a model reads it whose context holds `room` documents.

    The system prompt comes first; a prompt without an image says so.
    """
    texts = prompt.text(min(room, prompt.droppable))
    words = "".join(part if isinstance(part, str) else texts[part.name] for part in prompt_parts(prompt.template))
    for n in range(len(prompt.rounds)):
        words += f" [assistant] {texts[f'reply_{n}']} [tool] {texts[f'result_{n}']}"
    return f"{prompt.system and f'[system] {prompt.system} [user] '}{'' if prompt.image else '[no image] '}{words}"


@dataclass
class Script:
    """A scripted model and search: replies by prompt, passages by query. `asked` holds both in order.

    Attributes:
        say: The reply to a prompt's text.
        find: The texts that a query finds, by knowledge base.
        vector: A text's unit vector; different texts have nothing in common by default.
        probability: P(yes) for a prompt's text.
        score: The reranker's score of a passage's text.
        room: How many documents its context holds.
        asked: Prompts as `("write", text)`, queries as `("search", query, base, top)`, with a fifth place for a box if
            there is one, and `("rerank", query, text)`, in order.
        batches: How many of a kind were carried out together.
        retries: True to ask once more for what can't be read.
    """

    say: Callable[[str], str] = lambda prompt: ""
    find: Callable[[str, str], Sequence[str]] = lambda query, base: ()
    vector: Callable[[str], Sequence[float]] | None = None
    probability: Callable[[str], float] = lambda prompt: 0.5
    score: Callable[[str], float] = lambda text: 0.0
    room: int = 99
    asked: list[tuple[object, ...]] = field(default_factory=list)
    batches: list[tuple[str, int]] = field(default_factory=list)
    retries: bool = False

    def write(self, asked: Sequence[tuple[Images, Prompt]], max_tokens: int) -> list[WriteReply]:
        texts = [filled(prompt, self.room) for _, prompt in asked]
        self.batches.append(("write", len(texts)))
        self.asked += [("write", text) for text in texts]
        replies = [self.say(text) for text in texts]
        counts = [min(self.room, len(prompt.documents)) for _, prompt in asked]
        return [
            WriteReply(reply, count, read=len(text.split()), tokens=len(reply.split()))
            for reply, text, count in zip(replies, texts, counts, strict=True)
        ]

    def judge(self, asked: Sequence[tuple[Images, Prompt]], yes: str, no: str) -> list[JudgeReply]:
        texts = [filled(prompt, self.room) for _, prompt in asked]
        self.batches.append(("judge", len(texts)))
        self.asked += [("judge", text) for text in texts]
        shown = [min(self.room, len(prompt.documents)) for _, prompt in asked]
        likely = [self.probability(text) for text in texts]
        return [JudgeReply(yes, 1 - yes, count) for yes, count in zip(likely, shown, strict=True)]

    def judge_each(self, asked: Sequence[tuple[Images, Prompt]], yes: str, no: str) -> list[JudgeEachReply]:
        self.batches.append(("judge_each", len(asked)))
        judged = []
        for _, prompt in asked:
            texts = [filled(dataclasses.replace(prompt, documents=(document,))) for document in prompt.documents]
            self.asked += [("judge", text) for text in texts]
            likely = [self.probability(text) for text in texts]
            judged.append(JudgeEachReply(tuple(JudgeReply(yes, 1 - yes, 1) for yes in likely), read=len(texts)))
        return judged

    def rerank(self, asked: Sequence[tuple[Images, RerankRequest]]) -> list[RerankReply]:
        requests = [request for _, request in asked]
        self.batches.append(("rerank", len(requests)))
        self.asked += [("rerank", each.query, passage.text) for each in requests for passage in each.passages]
        return [RerankReply(tuple(self.score(passage.text) for passage in each.passages)) for each in requests]

    def search(self, asked: Sequence[tuple[Images, SearchRequest]]) -> list[SearchReply]:
        self.batches.append(("search", len(asked)))
        return [self._retrieved(request) for _, request in asked]

    def _retrieved(self, request: SearchRequest) -> SearchReply:
        found = []
        for place, query in enumerate(request.queries):
            by_base = {}
            for base, tops in request.tops.items():
                box = request.boxes[place] if request.boxes else None
                self.asked.append(("search", query, base, tops[place], *([box] if box else [])))
                texts = list(self.find(query, base))[: tops[place]]
                by_base[base] = tuple(
                    PassageHit(Passage(text, 0, 0, text, "", "", text), 1.0 - rank / 10, rank, base)
                    for rank, text in enumerate(texts, start=1)
                )
            found.append(by_base)
        return SearchReply(tuple(found))

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(("embed", len(texts)))
        if self.vector is not None:
            return np.array([self.vector(text) for text in texts], dtype=np.float32)
        return np.eye(len(texts), dtype=np.float32)

    @property
    def tools(self) -> Tools:
        models = dict.fromkeys(("reader", "answerer", "gate"), self)
        return Tools(models, self.search, self.embed, self.rerank, retries=self.retries)


@pytest.fixture(scope="session")
def scripting() -> type[Script]:
    """Return the class of scripted models with their knowledge bases."""
    return Script


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above; a fixture, since test modules cannot import one another."""
    texts = {"question": question, "passage": passage, "hit": hit, "evidence": evidence, "entry": entry}
    return SimpleNamespace(read=read, trace=trace, data_set=data_set, text_index=text_index, keys=keys, **texts)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, encoder: str) -> Path:
    """Three entries that look alike, and five questions: four to look up, one to answer by looking."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "images").mkdir()
    for number, colour in enumerate(("red", "blue", "green")):
        Image.new("RGB", (64, 64), colour).save(folder / f"images/e{number}.png")
    questions = [question(4, SPLITS[0], "red", image="images/e0.png", requires_retrieval=False)]
    for number in range(4):
        entity = f"e{number % 3}"
        asked = {"image": f"images/{entity}.png", "text": "What does it eat?", "entity_ids": (entity,)}
        questions.append(question(number, SPLITS[number % 2], **asked, evidence=evidence(entity)))
    data_set(folder, [entry(number, f"images/e{number}.png") for number in range(3)], questions, encoder)
    alike = dataclasses.asdict(passage("made_up"))
    rows = [{"question_id": q.id, "attribute": it, "passage": alike} for q in questions for it in ("colour", "kind")]
    (folder / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Watched(PrefixEngine):
    """An engine that keeps the ids of what it reads."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[list[int]] = []

    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        self.seen += [prefix.ids for prefix in prefixes]
        return super().read(prefixes)


@pytest.fixture(scope="session")
def watched() -> type[Watched]:
    return Watched


@pytest.fixture(scope="session", params=["llava", pytest.param("qwen2_vl", marks=pytest.mark.slow)])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, family: Family) -> SimpleNamespace:
    """Folders of tiny random models: `base`; `plain`, as if tuned without reflection; `tuned`, with mR²AG's tokens."""
    return _checkpoints(tmp_path_factory, family, MR2AG)


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory, family: Family) -> SimpleNamespace:
    """The same with the tokens and the scheme of MMKB-RAG."""
    return _checkpoints(tmp_path_factory, family, MMKB_RAG)


def _checkpoints(factory: pytest.TempPathFactory, family: Family, scheme: Scheme) -> SimpleNamespace:
    texts = ["What is it made of? It is made of oak. Title e1: H0.", ANSWER_PROMPTS["read_short"]]
    tokenizer = train_tokenizer(texts * 3, 400, family)
    processor, model = build_processor(family, tokenizer), build_model(family, tokenizer, size="test", seed=1)
    base, plain, tuned = factory.mktemp("base"), factory.mktemp("plain"), factory.mktemp("tuned")
    model.save_pretrained(base)
    processor.save_pretrained(base)
    save_checkpoint(plain, model, processor, PLAIN, {"base_model": str(base)})
    add_reflection_tokens(model, processor, scheme, seed=0)
    save_checkpoint(tuned, model, processor, scheme, {"base_model": str(base)})
    return SimpleNamespace(base=str(base), plain=str(plain), tuned=str(tuned), family=family)


@pytest.fixture
def images() -> list[Image.Image]:
    """Three images that differ in colour and size."""
    return [Image.new("RGB", (64 + 8 * i, 64), colour) for i, colour in enumerate(("red", "green", "blue"))]

"""Images of pairs in prompts: which are shown, where, how large, locally and on the wire; none by default."""

import dataclasses
from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Entry, Question
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.operators.pair_images import PairImages, images_of
from reflectune.inference.operators.requests import Prompt, SearchReply, SearchRequest, WriteRequest
from reflectune.inference.operators.searching import KnowledgeBases
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.operators.vocabulary import merge
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint
from reflectune.retrieval.retrievers.joint import JointSearch

PROMPT = Prompt("Question: {question}\nKnowledge: {documents}\n\nSum up.\n", {"question": "Who built it?"})
TEXTS = ("A bridge.", "Kirk: red.", "No pair.", "Moss: blue.")


@pytest.fixture
def knowledge(tmp_path) -> KnowledgeBase:
    for name, size in (("a", (640, 480)), ("b", (30, 20))):
        Image.new("RGB", size, "red").save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    images = {"a": ("a.png",), "b": ("b.png", "a.png"), "bad": ("bad.png",), "none": ()}
    entries = [Entry(name, name, images=paths) for name, paths in images.items()]
    return write_knowledge_base(tmp_path / "kb", entries, name="kb", image_root="..")


@pytest.fixture
def shown(knowledge) -> PairImages:
    return PairImages(knowledge)


@pytest.fixture
def prompt(shown) -> Prompt:
    return dataclasses.replace(PROMPT, documents=TEXTS, images={1: shown.path_of("a"), 3: shown.path_of("b")})


def test_an_image_is_scaled_down_and_one_that_cannot_be_read_is_not_shown(shown) -> None:
    assert shown.load(shown.path_of("a")).size == (517, 387)  # 448 x 448 pixels at most
    assert shown.load(shown.path_of("b")).size == (30, 20)
    assert (shown.path_of("bad"), shown.path_of("none")) == ("", "")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, {"documents": ""}),
        (2, {"documents": "A bridge.\nPicture 2:", "documents_1": "Kirk: red."}),
        (
            4,
            {
                "documents": "A bridge.\nPicture 2:",
                "documents_1": "Kirk: red.\nNo pair.\nPicture 3:",
                "documents_2": "Moss: blue.",
            },
        ),
    ],
)
def test_a_label_counts_the_images_of_the_prompt(prompt, count, expected) -> None:
    assert prompt.text(count) == {"question": "Who built it?", **expected}
    assert len(prompt.shown_images(count)) == len(expected) - 1
    without = dataclasses.replace(prompt, image=False).text(4)
    assert without["documents"] == "A bridge.\nPicture 1:"


def test_pairs_alone_have_images_and_the_first_ones_are_shown(make, shown) -> None:
    passages = {name: make.passage(entry_id=name) for name in ("a", "bad", "none", "b", "text")}

    class Base:
        def __init__(self, name: str, found: list[str]) -> None:
            self.name, self.found = name, found

        def search(self, queries: Any, top: int) -> list[list[PassageHit]]:
            hits = [PassageHit(passages[name], 1.0, 1) for name in self.found]
            return [hits for _ in queries]

    bases = [Base("texts", ["text"]), Base("pairs", ["a", "bad", "none", "b"])]
    search = KnowledgeBases(JointSearch(bases), embed=lambda texts: None, images=shown)  # type: ignore[arg-type]
    request = SearchRequest(0, ("bridge",), {"texts": (5,), "pairs": (5,)})
    (found,) = search.search([(Image.new("RGB", (8, 8)), request)])
    merged = merge(found)
    assert [passage.entry_id for passage in merged] == ["text", "a", "bad", "none", "b"]
    assert images_of(found, merged, 9) == {1: shown.path_of("a"), 4: shown.path_of("b")}
    assert images_of(found, merged, 1) == {1: shown.path_of("a")}
    assert not images_of(found, merged, 0)
    plain = dataclasses.replace(search, images=None)
    assert not images_of(plain.search([(None, request)])[0], merged, 9)


@pytest.mark.parametrize("most", [0, 1])
def test_a_record_is_written_from_texts_and_images(most, scripting) -> None:
    """Without the setting the prompt is that of texts; the answer's prompt never has any."""
    prompts: list[Prompt] = []

    class Script(scripting):
        def write(self, asked: Any, max_tokens: int) -> Any:
            prompts.extend(prompt for _, prompt in asked)
            return super().write(asked, max_tokens)

    script = Script(say=lambda prompt: "A red bridge.", find=lambda query, base: [f"{base} {n}" for n in range(2)])

    def with_images(by_base: Any) -> dict[str, Any]:
        return {**by_base, "pairs": tuple(dataclasses.replace(hit, image="pairs.png") for hit in by_base["pairs"])}

    def search(searches: Any) -> list[SearchReply]:
        return [SearchReply(tuple(map(with_images, reply.hits))) for reply in script.search(searches)]

    settings = MiRagSettings(iterations=0, pair_images=most)
    tools = Tools({"reader": script, "answerer": script}, search, script.embed)
    pipeline = TrajectoryPipeline("p", MiRag(settings, {"texts": 2, "pairs": 2}), tools)
    (trace,) = pipeline.run([Question("q", "image.png", "Who built it?")], [Image.new("RGB", (8, 8))])
    described, recorded, answered = prompts
    assert not described.images
    assert not answered.images
    assert recorded.images == ({3: "pairs.png"} if most else {})  # after the description and two texts
    assert trace.tokens.get("images_shown", 0) == most


def test_a_server_gets_each_image_before_its_text(prompt, shown, stub_server, tmp_path) -> None:
    server = stub_server(lambda text: "It is red.")
    image, bare = Image.new("RGB", (8, 8), "blue"), dataclasses.replace(prompt, images={})
    with RemoteModel(Endpoint(server.url, "stub"), tmp_path / "replies.jsonl") as remote:
        for model, asked in ((ServedModel(remote, shown), prompt), (ServedModel(remote), bare)):
            (send,) = model.requests(image, WriteRequest("reason", 0, asked, 8))
            send()
    (message,), (plain,) = (body["messages"] for _, body in server.requests)
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url", "text", "image_url", "text", "image_url", "text"]
    assert [part["text"] for part in message["content"] if part["type"] == "text"] == [
        "Question: Who built it?\nKnowledge: A bridge.\nPicture 2: ",
        "Kirk: red.\nNo pair.\nPicture 3: ",
        "Moss: blue.\n\nSum up.\n",
    ]
    urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    assert len(set(urls)) == 3
    assert [part["type"] for part in plain["content"]] == ["image_url", "text"]


def test_a_local_model_reads_images_of_the_documents_that_fit(checkpoints, prompt, shown, images) -> None:
    engine = PrefixEngine(load(checkpoints.base), 4096)
    model = LocalModel(engine, 4, shown)
    many = dataclasses.replace(prompt, documents=(*TEXTS, "oak " * 5000))
    count, rendered = model.fit(images[0], many, 8)
    assert (count, rendered.own_images, len(rendered.images)) == (4, True, 3)
    expected = [images[0], *(shown.load(path) for path in prompt.shown_images(4))]
    assert len(expected) == 3
    (alone,) = model.write([(images[0], prompt)], 8)
    assert model.write([(images[1], prompt), (images[0], prompt)], 8)[1].text == alone.text
    assert (alone.shown, alone.shared) == (4, 0)
    plain = dataclasses.replace(prompt, images={})
    assert model.write([(images[0], plain)], 8) == LocalModel(engine, 4).write([(images[0], plain)], 8)
    assert len(model.fit(images[0], plain, 8)[1].images) == 1

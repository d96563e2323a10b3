"""EchoSight's Q-Former on random weights of a tiny geometry: its scores against its equations, written out."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, normalize
from transformers import Blip2Config

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Passage, Section
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.retrieval.contexts import ContextBuilder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import load_reranker, open_reranker
from reflectune.retrieval.rerankers.q_former import ENTRY_SHARE, passage_words, pixel_values

WIDTH, LAYERS, HEADS, SIDE, PATCH = 16, 2, 2, 28, 14
HIDDEN, Q_LAYERS, Q_HEADS, TOKENS, OUT = 24, 3, 2, 4, 8
QUESTION = "what does the owl eat"
State = dict[str, Tensor]


def lavis_state(words: int) -> State:
    """Random weights under LAVIS's names, with the unused tensors of its checkpoints."""
    torch.manual_seed(3)
    state: State = {}

    def put(name: str, *shape: int) -> None:
        state[name] = torch.randn(*shape) * 0.3

    def dense(name: str, out: int, into: int) -> None:
        put(f"{name}.weight", out, into)
        put(f"{name}.bias", out)

    def norm(name: str, size: int) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = 1 + 0.1 * torch.randn(size), 0.1 * torch.randn(size)

    put("visual_encoder.cls_token", 1, 1, WIDTH)
    put("visual_encoder.pos_embed", 1, (SIDE // PATCH) ** 2 + 1, WIDTH)
    put("visual_encoder.patch_embed.proj.weight", WIDTH, 3, PATCH, PATCH)
    put("visual_encoder.patch_embed.proj.bias", WIDTH)
    for layer in range(LAYERS):
        block = f"visual_encoder.blocks.{layer}"
        norm(f"{block}.norm1", WIDTH)
        norm(f"{block}.norm2", WIDTH)
        put(f"{block}.attn.qkv.weight", 3 * WIDTH, WIDTH)
        put(f"{block}.attn.q_bias", WIDTH)
        put(f"{block}.attn.v_bias", WIDTH)
        dense(f"{block}.attn.proj", WIDTH, WIDTH)
        dense(f"{block}.mlp.fc1", 2 * WIDTH, WIDTH)
        dense(f"{block}.mlp.fc2", WIDTH, 2 * WIDTH)
    norm("ln_vision", WIDTH)
    bert = "Qformer.bert.embeddings"
    put(f"{bert}.word_embeddings.weight", words, HIDDEN)
    put(f"{bert}.position_embeddings.weight", 40, HIDDEN)
    norm(f"{bert}.LayerNorm", HIDDEN)
    for layer in range(Q_LAYERS):
        block = f"Qformer.bert.encoder.layer.{layer}"
        for kind, into in (("attention", HIDDEN), ("crossattention", WIDTH)):
            if kind == "crossattention" and layer % 2:
                continue
            dense(f"{block}.{kind}.self.query", HIDDEN, HIDDEN)
            dense(f"{block}.{kind}.self.key", HIDDEN, into)
            dense(f"{block}.{kind}.self.value", HIDDEN, into)
            dense(f"{block}.{kind}.output.dense", HIDDEN, HIDDEN)
            norm(f"{block}.{kind}.output.LayerNorm", HIDDEN)
        for ending in ("", "_query"):
            dense(f"{block}.intermediate{ending}.dense", 2 * HIDDEN, HIDDEN)
            dense(f"{block}.output{ending}.dense", HIDDEN, 2 * HIDDEN)
            norm(f"{block}.output{ending}.LayerNorm", HIDDEN)
    put("query_tokens", 1, TOKENS, HIDDEN)
    dense("vision_proj", OUT, HIDDEN)
    dense("text_proj", OUT, HIDDEN)
    dense("itm_head", 2, HIDDEN)
    state |= {"temp": torch.tensor(0.07), "prompt_tokens": torch.randn(1, TOKENS, HIDDEN)}
    return state | {f"{bert}.position_ids": torch.arange(40)[None], "Qformer.cls.predictions.bias": torch.ones(9)}


class ByHand:
    """The published computation, from LAVIS's names alone, one text at a time and without padding."""

    def __init__(self, state: State) -> None:
        self.state = state

    def dense(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.state[f"{name}.weight"], self.state[f"{name}.bias"], eps)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
        size = query.shape[-1] // heads
        parts = []
        for head in range(heads):
            q, k, v = (each[:, head * size : (head + 1) * size] for each in (query, key, value))
            parts.append(torch.softmax(q @ k.T / math.sqrt(size), dim=-1) @ v)
        return torch.cat(parts, dim=-1)

    def see(self, pixels: Tensor) -> Tensor:
        state, patches = self.state, []
        for top in range(0, SIDE, PATCH):
            for left in range(0, SIDE, PATCH):
                patch = pixels[0, :, top : top + PATCH, left : left + PATCH]
                weight = state["visual_encoder.patch_embed.proj.weight"]
                patches.append((weight * patch).sum((1, 2, 3)) + state["visual_encoder.patch_embed.proj.bias"])
        x = torch.cat([state["visual_encoder.cls_token"][0], torch.stack(patches)])
        x = x + state["visual_encoder.pos_embed"][0]
        for layer in range(LAYERS):
            block = f"visual_encoder.blocks.{layer}"
            q_bias, v_bias = (state[f"{block}.attn.{each}_bias"] for each in "qv")
            bias = torch.cat([q_bias, torch.zeros(WIDTH), v_bias])
            qkv = linear(self.norm(f"{block}.norm1", x, 1e-6), state[f"{block}.attn.qkv.weight"], bias)
            x = x + self.dense(f"{block}.attn.proj", self.attend(*qkv.split(WIDTH, dim=-1), HEADS))
            hidden = gelu(self.dense(f"{block}.mlp.fc1", self.norm(f"{block}.norm2", x, 1e-6)))
            x = x + self.dense(f"{block}.mlp.fc2", hidden)
        return self.norm("ln_vision", x, 1e-5)

    def bert_attention(self, name: str, x: Tensor, seen: Tensor) -> Tensor:
        query = self.dense(f"{name}.self.query", x)
        key, value = (self.dense(f"{name}.self.{each}", seen) for each in ("key", "value"))
        out = self.dense(f"{name}.output.dense", self.attend(query, key, value, Q_HEADS))
        return self.norm(f"{name}.output.LayerNorm", out + x, 1e-12)

    def feed_forward(self, block: str, ending: str, x: Tensor) -> Tensor:
        hidden = gelu(self.dense(f"{block}.intermediate{ending}.dense", x))
        out = self.dense(f"{block}.output{ending}.dense", hidden)
        return self.norm(f"{block}.output{ending}.LayerNorm", out + x, 1e-12)

    def read(self, ids: list[int], seen: Tensor | None) -> Tensor:
        """The last states: of query tokens and a text in sight of an image, or of a text alone."""
        bert = "Qformer.bert.embeddings"
        words = self.state[f"{bert}.word_embeddings.weight"][ids]
        x = words + self.state[f"{bert}.position_embeddings.weight"][: len(ids)]
        count = 0 if seen is None else TOKENS
        if seen is not None:
            x = torch.cat([self.state["query_tokens"][0], x])
        x = self.norm(f"{bert}.LayerNorm", x, 1e-12)
        for layer in range(Q_LAYERS):
            block = f"Qformer.bert.encoder.layer.{layer}"
            x = self.bert_attention(f"{block}.attention", x, x)
            queries, text = x[:count], x[count:]
            if seen is not None and layer % 2 == 0:
                queries = self.bert_attention(f"{block}.crossattention", queries, seen)
            x = torch.cat([self.feed_forward(block, "_query", queries), self.feed_forward(block, "", text)])
        return x

    def score(self, question: list[int], pixels: Tensor, passage: list[int]) -> float:
        queries = normalize(self.dense("vision_proj", self.read(question, self.see(pixels))[:TOKENS]), dim=-1)
        text = normalize(self.dense("text_proj", self.read(passage, None)[0]), dim=-1)
        return float((queries @ text).max())


@pytest.fixture(scope="module")
def write(tokenizer: Any) -> Callable[..., Path]:
    """Writes a folder: the config, the tokenizer, and a state dict that may be changed first."""

    def make(folder: Path, change: Callable[[State], Any] = lambda state: state) -> Path:
        seen = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "image_size": SIDE, "patch_size": PATCH}
        seen |= {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        read = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "encoder_hidden_size": WIDTH}
        read |= {"num_hidden_layers": Q_LAYERS, "num_attention_heads": Q_HEADS, "max_position_embeddings": 40}
        sizes = {"num_query_tokens": TOKENS, "image_text_hidden_size": OUT}
        config = Blip2Config(vision_config=seen, qformer_config=read, **sizes)
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        state = lavis_state(len(tokenizer) + 1)
        torch.save(change(state) or state, folder / "reranker.pth")
        return folder

    return make


@pytest.fixture(scope="module")
def folder(write: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("q_former"))


def photo(width: int, height: int) -> Image.Image:
    image = Image.new("RGB", (width, height), "teal")
    image.paste(Image.new("RGB", (width // 2, height // 3), "orange"), (width // 4, 0))
    return image


@pytest.mark.parametrize("budget", [10, 16_384], ids=["small batches", "one batch"])
def test_scores_are_those_of_the_published_computation(folder, tokenizer, passages, budget) -> None:
    reranker = load_reranker("q_former", str(folder), TextSettings(token_budget=budget))
    questions, images = [QUESTION, "by night"], [photo(40, 90), photo(64, 60)]
    scores = [{"e": 0.4}, {"e": -0.1}]
    found = reranker.rank_with_images(questions, images, [passages, passages[:2]], scores)
    state = torch.load(folder / "reranker.pth", weights_only=True)
    choices = [passages, passages[:2]]
    for question, image, choice, ranked, own in zip(questions, images, choices, found, scores, strict=True):
        ids = tokenizer(question)["input_ids"]
        for each in ranked:
            words = tokenizer(passage_words(each.passage), truncation=True, max_length=40)["input_ids"]
            fit = ByHand(state).score(ids, pixel_values(image, SIDE), words)
            assert each.score == pytest.approx(ENTRY_SHARE * own["e"] + (1 - ENTRY_SHARE) * fit, abs=1e-5)
        assert sorted(each.passage.id for each in ranked) == sorted(each.id for each in choice)
        assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    assert len({round(each.score, 4) for each in found[0]}) > 1
    assert reranker.rank_with_images([QUESTION], images[:1], [[]], [{}]) == [[]]


def test_scores_on_a_simulated_gpu_are_the_cpus(folder, passages, pretended) -> None:
    asked = ([QUESTION], [photo(40, 90)], [passages], [{"e": 0.4}])
    (expected,) = load_reranker("q_former", str(folder)).rank_with_images(*asked)
    with pretended.gpus():
        (found,) = load_reranker("q_former", str(folder), device="cuda").rank_with_images(*asked)
    assert [each.passage for each in found] == [each.passage for each in expected]
    assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-5)


def test_a_passage_is_written_as_a_section_of_echosight() -> None:
    passage = Passage("e", 0, 0, "St. Paul's (London)", "", "History", 'Built: 1675;  by "Wren"!\n\nIt is tall.')
    words = "wiki article st paul's london section title history\nbuilt 1675 by wren it is tall"
    assert passage_words(passage) == words
    assert len(passage_words(Passage("e", 0, 0, "a", "", "b", "word " * 900)).split(" ")) == 512


@pytest.mark.parametrize(
    ("size", "black"),
    [((60, 60), 0), ((60, 50), 0), ((100, 40), 20), ((40, 100), 20)],
    ids=["square", "nearly", "wide", "tall"],
)
def test_a_long_image_is_padded_and_its_middle_taken(size: tuple[int, int], black: int) -> None:
    """100 x 40 becomes 100 x 80; its middle 80 x 80 is seen: a quarter above and below is padding."""
    pixels = pixel_values(Image.new("RGB", size, "white"), 80)
    assert pixels.shape == (1, 3, 80, 80)
    bright = pixels[0, 0] > 0
    lines = bright[:, 40] if size[0] > size[1] else bright[40, :]
    assert int((~lines).sum()) == pytest.approx(2 * black, abs=2)
    assert float(pixels.max()) == pytest.approx((1 - 0.40821073) / 0.27577711, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.pop("text_proj.bias") is None, r"lacks 1 of its weights, e\.g\. text_projection\.bias"),
        (lambda state: state.update({"vision_proj.bias": torch.full((OUT,), math.nan)}), "vision_projection.bias"),
        (lambda state: {"model": state}, "is not a state dict"),
        (lambda state: {"state": Path("x")}, "a pickle that contains more than tensors"),
    ],
    ids=["missing", "nan", "nested", "pickle"],
)
def test_weights_of_something_else_are_refused(write, tmp_path, change, told) -> None:
    with pytest.raises(UserError, match=told):
        load_reranker("q_former", str(write(tmp_path / "odd", change)))


def test_a_folder_that_lacks_something_is_refused(write, tmp_path) -> None:
    folder = write(tmp_path / "one")
    (folder / "second.pth").write_bytes(b"")
    with pytest.raises(UserError, match=r"has 2 `\.pth` files"):
        load_reranker("q_former", str(folder))
    (folder / "second.pth").unlink()
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_reranker("q_former", str(folder))


def test_without_an_image_it_is_refused(folder, passages) -> None:
    with pytest.raises(UserError, match="needs the question's image"):
        load_reranker("q_former", str(folder)).rank([QUESTION], [passages])


def test_a_config_chooses_it_and_naive_rag_reads_its_passages(folder, tmp_path) -> None:
    config = RerankerConfig(reranker="q_former", reranker_model=str(folder))
    assert config.problems() == []
    repository = {"reranker": "q_former", "reranker_model": "owner/name"}
    assert "is not a folder" in find_problems(RerankerConfig, repository)[-1]
    texts = ("It eats mice and voles.", "The tower is tall.", "By night.")
    entries = [Entry(f"e{n}", f"Owl {n}", "", "A bird.", (), tuple(Section("Diet", t) for t in texts)) for n in (0, 1)]
    knowledge = write_knowledge_base(tmp_path / "knowledge", entries, name="owls", image_root=".")
    reranker = open_reranker(config)
    contexts = ContextBuilder(knowledge, reranker, top_n=2, passages=3, lead="none")
    hits = [[Hit("e1", 0.9, 1, "image", "owls", {}), Hit("e0", 0.2, 2, "image", "owls", {})]]
    (chosen,) = contexts.build("passages", [QUESTION], hits, [photo(30, 40)])
    passages = [[p for hit in hits[0] for p in contexts.build("articles", [QUESTION], [[hit]])[0]]]
    (ranked,) = reranker.rank_with_images([QUESTION], [photo(30, 40)], passages, [{"e1": 0.9, "e0": 0.2}], 3)
    assert chosen == [each.passage for each in ranked]
    with pytest.raises(UserError, match="image"):
        contexts.build("passages", [QUESTION], hits)

"""Published text encoders read as their model cards say, unless the user says otherwise."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from reflectune.core.types import Entry, Section
from reflectune.examples.miniature import models as miniature
from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.retrieval import build_index as command
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.rerankers.config import RerankerConfig

TEXTS = ["how tall is the tower", "an owl", "The red owl eats mice and voles near the tower."]
MINIATURE = Path(next(iter(miniature.__path__))) / "text"
WEB = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
BGE = "Represent this sentence for searching relevant passages: "

CARDS = {
    "intfloat/e5-base-v2": ("mean", "query: ", "passage: ", "cosine", 512),
    "intfloat/multilingual-e5-small": ("mean", "query: ", "passage: ", "cosine", 512),
    "intfloat/multilingual-e5-large-instruct": ("mean", f"{WEB} ", "", "cosine", 512),
    "intfloat/e5-mistral-7b-instruct": ("last", f"{WEB} ", "", "cosine", 4096),
    "Salesforce/SFR-Embedding-Mistral": ("last", f"{WEB} ", "", "cosine", 4096),
    "BAAI/bge-base-en-v1.5": ("cls", BGE, "", "cosine", 512),
    "BAAI/bge-m3": ("cls", "", "", "cosine", 8192),
    "facebook/contriever": ("mean", "", "", "dot", 512),
    "facebook/contriever-msmarco": ("mean", "", "", "dot", 512),
    "thenlper/gte-base": ("mean", "", "", "cosine", 512),
    "Alibaba-NLP/gte-modernbert-base": ("cls", "", "", "cosine", 8192),
    "Qwen/Qwen3-Embedding-0.6B": ("last", WEB, "", "cosine", 8192),
}
"""(pooling, prefix of a query, prefix of a passage, similarity, tokens), as the cards say."""


@pytest.mark.parametrize("name", CARDS)
def test_unset_keys_are_the_model_cards(name: str) -> None:
    pooling, query, passage, similarity, longest = CARDS[name]
    settings = command.IndexConfig(encoder=name).text_settings()
    assert settings == TextSettings(pooling, similarity, query, passage, longest)
    assert command.IndexConfig(encoder=f"{name}@{'0' * 40}").text_settings() == settings


@pytest.fixture
def published(tmp_path: Path):
    """Makes a folder `owner/name` of the miniature text retriever, which doesn't declare its pooling."""

    def make(name: str) -> str:
        shutil.copytree(MINIATURE, tmp_path / name, ignore=shutil.ignore_patterns("1_Pooling"))
        return str(tmp_path / name)

    return make


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Qwen3 whose tokenizer ends each text with its end token, as Qwen3-Embedding's does."""
    folder = tmp_path_factory.mktemp("hub") / "Qwen/Qwen3-Embedding-0.6B"
    tokenizer = train_tokenizer([*TEXTS, WEB] * 2, 400, "qwen2_vl")
    end = "<|endoftext|>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        f"$A {end}", f"$A {end} $B:1 {end}:1", [(end, tokenizer.convert_tokens_to_ids(end))]
    )
    tokenizer.pad_token = end
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(vocab_size=len(tokenizer), initializer_range=0.2, **sizes, **heads)
    torch.manual_seed(0)
    Qwen3Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_qwen3_embedding_gives_the_last_tokens_of_a_batch_that_is_padded_on_the_left(qwen3: str) -> None:
    encoder = TextEncoder(find_checkpoint(qwen3), text_settings(qwen3), torch.device("cpu"), "")
    tokenizer = AutoTokenizer.from_pretrained(qwen3, padding_side="left")
    inputs = tokenizer([WEB + text for text in TEXTS], padding=True, return_tensors="pt")
    assert (inputs["input_ids"][:, -1] == tokenizer.convert_tokens_to_ids("<|endoftext|>")).all()
    assert inputs["attention_mask"][1, 0] == 0, "the shorter ones are padded"
    with torch.no_grad():
        last = AutoModel.from_pretrained(qwen3).eval()(**inputs).last_hidden_state[:, -1]
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), last / last.norm(dim=-1, keepdim=True), atol=1e-5)


def test_a_long_text_is_cut_by_tokens_and_counted_and_keeps_its_end_token(qwen3: str) -> None:
    settings = text_settings(qwen3, query_prefix="", max_length=6)
    encoder = TextEncoder(find_checkpoint(qwen3), settings, torch.device("cpu"), "")
    tokenizer = AutoTokenizer.from_pretrained(qwen3)
    ids = tokenizer(TEXTS[2])["input_ids"]
    assert len(ids) > 6
    kept = tokenizer.decode([*ids[:5]])
    fits = tokenizer.decode(tokenizer(TEXTS[0])["input_ids"][:5])
    assert len(tokenizer(fits)["input_ids"]) == 6
    assert encoder.cut == 0
    cut, whole, exact = encoder.encode_passages([TEXTS[2], kept, fits])
    np.testing.assert_allclose(cut, whole, atol=1e-6)
    assert encoder.cut == 1, "a text of just as many tokens as are read is whole"
    assert exact.shape == whole.shape
    encoder.encode_passages([TEXTS[2], TEXTS[2]])
    assert encoder.cut == 3


def test_tokenizers_in_rust_and_in_python_cut_and_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a tower", " ".join(["stone"] * 90), "", " ".join(["an old owl"] * 40), "who built it?"]
    settings = text_settings("miniature/text", max_length=12)

    def encode() -> tuple[Any, int]:
        encoder = TextEncoder(find_checkpoint("miniature/text"), settings, torch.device("cpu"), "")
        return encoder.encode_passages(texts), encoder.cut

    vectors, cut = encode()
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", False)
    others, counted = encode()
    assert cut == counted == 2
    np.testing.assert_allclose(vectors, others, atol=1e-6)


def test_a_model_that_reads_less_than_its_card_says_is_not_asked_for_more(qwen3: str) -> None:
    encoder = TextEncoder(find_checkpoint(qwen3), text_settings(qwen3), torch.device("cpu"), "")
    assert (encoder.settings.max_length, encoder.longest) == (8192, 64)


@pytest.mark.parametrize(
    ("key", "value"),
    [("pooling", "cls"), ("similarity", "dot"), ("query_prefix", ""), ("passage_prefix", "text: "), ("max_length", 64)],
    ids=lambda one: str(one) or "none",
)
def test_what_a_user_sets_wins(key: str, value: object) -> None:
    config = command.IndexConfig(encoder="intfloat/e5-base-v2", **{key: value})
    usual = command.IndexConfig(encoder="intfloat/e5-base-v2").text_settings()
    assert config.text_settings() == TextSettings(**{**usual.__dict__, key: value})


def test_the_manifest_records_what_the_card_says_and_how_many_passages_were_cut(published, tmp_path, capsys) -> None:
    ash = Entry("a", "Ash", sections=(Section("Trunk", "It is a tree. " * 40), Section("Bark", "It is grey.")))
    kb = write_knowledge_base(tmp_path / "kb", [ash], name="trees")
    folder, output = published("intfloat/e5-base-v2"), tmp_path / "index"
    flags = ["--knowledge", str(kb.folder), "--output", str(output), "--encoder", folder, "--device", "cpu"]
    command.build_index.main(["--rows", "passages", *flags, "--passage_prefix", "", "--max_length", "30"])
    manifest = json.loads((output / "manifest.json").read_text())
    assert (manifest["settings"]["query_prefix"], manifest["settings"]["passage_prefix"]) == ("query: ", "")
    assert (manifest["settings"]["pooling"], manifest["cut"], manifest["rows"]) == ("mean", 1, 2)
    printed = capsys.readouterr().out
    assert "encoded with pooling mean, similarity cosine, 30 tokens, 'query: ' before each question" in printed
    assert "1 passages are longer than 30 tokens and were truncated" in printed


def test_a_reranker_takes_all_that_is_unset_from_the_card_too() -> None:
    settings = RerankerConfig(reranker="embedding", reranker_model="BAAI/bge-base-en-v1.5").reranker_settings()
    assert (settings.pooling, settings.query_prefix, settings.passage_prefix) == ("cls", BGE, "")
    set_here = {"reranker_query_prefix": "ask: ", "reranker_pooling": "mean"}
    own = RerankerConfig(reranker="embedding", reranker_model="BAAI/bge-base-en-v1.5", **set_here)
    assert (own.reranker_settings().pooling, own.reranker_settings().query_prefix) == ("mean", "ask: ")
    dot = RerankerConfig(reranker="embedding", reranker_model="facebook/contriever-msmarco@abe8c149")
    long = RerankerConfig(reranker="embedding", reranker_model="Salesforce/SFR-Embedding-Mistral")
    assert (dot.reranker_settings().similarity, long.reranker_settings().max_length) == ("dot", 4096)
    set_here = {"reranker_similarity": "cosine", "reranker_max_length": 512}
    assert dot.model_copy(update={**set_here}).reranker_settings().similarity == "cosine"
    assert long.model_copy(update={**set_here}).reranker_settings().max_length == 512


@pytest.mark.parametrize("model", ["miniature/text", "pocket/text", "owner/name", ""])
def test_a_reranker_without_a_card_reads_as_ever_and_is_hashed_as_ever(model: str) -> None:
    config = RerankerConfig(reranker="embedding", reranker_model=model)
    assert config.reranker_settings() == TextSettings()
    settings = config.model_dump(exclude={"reranker_model", "reranker_token_budget"})
    assert config.hashed() == settings | {"reranker_similarity": "cosine", "reranker_max_length": 512}

"""Tiny random models of the three kinds, and passages of two articles."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, LlamaConfig, LlamaModel

from reflectune.core.types import Passage
from reflectune.examples.miniature.models.architecture import train_tokenizer

WORDS = "what does the owl eat mice and voles in the tower of the old town by night it is tall".split()
TEXTS = [
    "It eats mice.",
    "It is tall and old.",
    "The owl eats voles by night in the old tower of the town.",
    "By night.",
    "It is the tower of the old town, the tower of the owl and the voles.",
]
SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def passage(number: int, text: str) -> Passage:
    return Passage("e", number, 0, "Owl", "", "Diet", text)


@pytest.fixture
def passages() -> list[Passage]:
    return [passage(number, text) for number, text in enumerate(TEXTS)]


def _write(folder: Path, model: Any, tokenizer: Any) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer([" ".join(WORDS)] * 4, 300, "text")


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    """A bi-encoder that pools by the mean and doesn't say so."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZE)
    return _write(tmp_path_factory.mktemp("bert"), BertModel(config, add_pooling_layer=False), tokenizer)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    """A bi-encoder as SFR-Embedding-Mistral is one: a decoder that is read at its last token."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZE)
    return _write(tmp_path_factory.mktemp("llama"), LlamaModel(config), tokenizer)


@pytest.fixture(scope="session")
def cross_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=1, **SIZE)
    return _write(tmp_path_factory.mktemp("cross"), BertForSequenceClassification(config), tokenizer)

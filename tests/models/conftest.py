"""Fixtures: `make` builds miniature models of random weights, `plain` computes independent rows by transformers."""

import copy
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin

from reflectune.core.types import Passage
from reflectune.examples.miniature.models.architecture import build_model, build_processor, train_tokenizer
from reflectune.models.attention.collation import TreeCollator, loss_terms, model_inputs
from reflectune.models.loading import Loaded
from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import Branch, ReflectionExample
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.passages import PassageScheme
from reflectune.models.weights.tokens import add_reflection_tokens
from tests.narrow_models import plain_inputs, plain_rows

CORPUS = [
    "What is it made of? When was the tower built? Who drew this?",
    "USER: \n ASSISTANT: user assistant The Oak Tower: A tower of oak. History. It was built in 1874 by Ada Byron.",
    *ANSWER_PROMPTS.values(),
    " ".join([*MR2AG.descriptions.values(), *MMKB_RAG.descriptions.values(), *MMKB_RAG.prompts.values()]),
] * 3
# As the hub's llava-1.5-7b-hf has it: no beginning of sequence, and no end of an assistant's turn.
HUB_LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@functools.cache
def _base_tokenizer(family: str) -> PreTrainedTokenizerFast:
    return train_tokenizer(CORPUS, 420, family)  # type: ignore[arg-type]


def _metaspace_tokenizer(*, legacy: bool) -> PreTrainedTokenizerFast:
    """Like Llama's: "▁" for a space, bytes for what is unknown, and <s> put first by the tokenizer.

    `legacy` marks the beginning of every piece between special tokens, as the tokenizer.json of Llama 2 does.
    """
    specials = ["<pad>", "<s>", "</s>", "<image>", "<unk>"]
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=[*specials, *bytes_], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge if isinstance(merge, list) else merge.split(" ")) for merge in trained["merges"]]
    bare = Tokenizer(models.BPE(trained["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if legacy:
        bare.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        bare.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    bare.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bare.add_special_tokens(specials)
    bare.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=bare, additional_special_tokens=["<image>"], **named)


@functools.cache
def _pristine(kind: str) -> ProcessorMixin:
    if kind in ("llava", "qwen2_vl", "qwen3_5"):
        return build_processor(kind, _base_tokenizer(kind))  # type: ignore[arg-type]
    processor = build_processor("llava", _metaspace_tokenizer(legacy=kind == "llama_legacy"))
    processor.chat_template = HUB_LLAVA_TEMPLATE
    return processor


def processor(kind: str) -> ProcessorMixin:
    """A fresh processor: `llava`, `qwen2_vl` (byte-level), `llama`, `llama_legacy` (Metaspace, the hub's template)."""
    return copy.deepcopy(_pristine(kind))


def model(family: str, **options: Any) -> PreTrainedModel:
    """A fresh model of random weights, wide enough that its decisions differ."""
    made = build_model(family, _base_tokenizer(family), size="test", **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return made


def saved(folder: Path, family: str, **options: Any) -> str:
    """Save a model and its processor, as the hub would hold them."""
    model(family, **options).save_pretrained(folder)
    processor(family).save_pretrained(folder)
    return str(folder)


def adapted(loaded: Loaded, targets: str = r".*language_model.*\.(q|v)_proj") -> PeftModel:
    """The model with random adapters, and rows that train for the scheme's tokens."""
    ids = list(loaded.renderer.token_ids.values())
    rows = {"embed_tokens": ids, "lm_head": ids}
    config = LoraConfig(r=4, target_modules=targets, trainable_token_indices=rows, init_lora_weights=False)
    return get_peft_model(loaded.model, config)


def loaded(family: str, scheme: Scheme = MR2AG, **options: Any) -> Loaded:
    """A model with a scheme's tokens, ready for the engine."""
    network, made = model(family, **options), processor(family)
    add_reflection_tokens(network, made, scheme)
    return Loaded(network, made, scheme, Renderer(scheme, made), f"test/{family}", "test", False)


def renderer(kind: str, scheme: Scheme | None = MR2AG) -> Renderer:
    made = processor(kind)
    if scheme is not None:
        network = build_model(kind if kind.startswith("qwen") else "llava", made.tokenizer, size="test")  # type: ignore[arg-type]
        add_reflection_tokens(network, made, scheme)
    return Renderer(scheme, made)


def image(seed: int = 0, size: tuple[int, int] = (80, 60)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def passage(text: str = "It was built in 1874 by Ada Byron.", **more: str) -> Passage:
    values = {"title": "The Oak Tower", "lead": "A tower of oak.", "heading": "History", **more}
    return Passage("e1", 0, 0, text=text, **values)


def example(branches: int = 3, **more: Any) -> ReflectionExample:
    """A question with passages of different lengths, every other one of them evidence."""
    made = []
    for k in range(branches):
        read = passage(f"Built in {1800 + k}." + " It is made of oak." * k)
        made.append(Branch(read, k % 2 == 0, str(1800 + k) if k % 2 == 0 else ""))
    return ReflectionExample("x1", "a.png", "When was the tower built?", branches > 0, branches=tuple(made), **more)


@torch.no_grad()
def logits(loaded: Loaded, model: torch.nn.Module | None = None) -> torch.Tensor:
    """Every logit of a training example, in float32; by another model, if given."""
    tree = PassageScheme.of(loaded.renderer).encode(loaded.renderer, example(2), image())
    batch = TreeCollator(loaded.model)([tree])
    return (model or loaded.model)(**model_inputs(batch), use_cache=False).logits.float()


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above."""
    builders = (processor, model, saved, adapted, loaded, renderer, image, passage, example, logits)
    return SimpleNamespace(tokenizer=_base_tokenizer, **{builder.__name__: builder for builder in builders})


@torch.no_grad()
def plain_logits(loaded: Loaded, prefix: Rendered, more: Sequence[int], last: int = 1) -> torch.Tensor:
    """Transformers' own reading of one whole row, at its last positions: of shape (last, vocabulary)."""
    inputs = plain_inputs(loaded.model, [*prefix.ids, *more], prefix.vision)
    return loaded.model(**inputs, use_cache=False, logits_to_keep=last).logits[0]


def plain_answer(loaded: Loaded, prefix: Rendered, more: list[int], steps: int) -> tuple[list[int], list[float]]:
    """The greedy answer and its tokens' log-probabilities, each token from a reading of the whole row."""
    ids, log_probs = [], []
    while len(ids) < steps and ids[-1:] != [loaded.renderer.end_token_id]:
        best = plain_logits(loaded, prefix, more + ids)[-1].log_softmax(-1).max(-1)
        ids.append(best.indices.item())
        log_probs.append(best.values.item())
    return ids, log_probs


def learned(model: Any, batches: Iterable[Any]) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Sum of losses, sum of weights, and gradients of the first, over several batches."""
    model.zero_grad()
    loss = weight = 0.0
    for batch in batches:
        terms = loss_terms(model, batch)
        terms[0].backward()
        loss, weight = loss + terms[0].item(), weight + terms[1].item()
    return loss, weight, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(scope="session")
def plain() -> SimpleNamespace:
    """References: transformers' own results on whole rows, one by one, and gradients of any batches."""
    return SimpleNamespace(
        inputs=plain_inputs, logits=plain_logits, answer=plain_answer, rows=plain_rows, learned=learned
    )

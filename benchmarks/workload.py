"""Models with random weights, questions of a given shape, and simple implementations to compare with."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3_5Config,
)

from reflectune.models.attention.collation import loss_terms
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.prefix.engine import PrefixEngine, end_tokens
from reflectune.models.prefix.forward import Forward
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.rendering.renderer import Rendered
from reflectune.train.estimates.from_shapes import model_config
from reflectune.train.settings.sft import SftConfig

IMAGE_TOKEN = 3
QWEN_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 4,
    "vision_start_token_id": 5,
    "vision_end_token_id": 6,
}
"""Special tokens of Qwen's models."""
GATE = 7
"""Token id that stands for a reflection token."""
SUPERVISED = 17
"""Supervised tokens at a branch's end: a reflection token and an answer of 16."""
FAMILIES = {"llava": "small", "qwen2_vl": "small", "qwen3_5": "hybrid"}
"""Families that are measured on a CPU, and the size of each."""
NAMES = {"llava": "LLaVA, small", "qwen2_vl": "Qwen2-VL, small", "qwen3_5": "Qwen3.5, four layers"}
ARCHITECTURES = Path(__file__).resolve().parents[1] / "configs/architectures"
PUBLISHED = {
    "llava": "llava15_7b",
    "qwen2_vl": "qwen2_vl_7b",
    "qwen2_5_vl": "qwen25_vl_7b",
    "qwen3_5": "qwen3_5_9b",
}
"""Architecture of a family's models of size `7b`."""
LONGEST = 16_384
"""Positions of every model."""


@dataclass(frozen=True)
class Size:
    """Widths and depths of a small model, and tokens of an image.

    `key_heads` are Qwen's; LLaVA has as many as heads, as Llama 2 has.
    """

    vocabulary: int = 8000
    width: int = 768
    layers: int = 10
    heads: int = 12
    key_heads: int = 4
    hidden: int = 2048
    vision_width: int = 384
    vision_layers: int = 8
    vision_heads: int = 6
    image: int = 576


SMALL = {
    "small": Size(),
    "tiny": Size(1000, 64, 2, 4, 2, 128, 64, 2, 2, image=144),
    "hybrid": Size(8000, 1024, 4, 8, 2, 3584, 384, 2, 6),
}
SIZES = ("7b", *SMALL)


def build(family: str, size: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """Build a model whose answers never end early, of a published architecture (`7b`) or of one of `SMALL`."""
    config = config_of(family, size)
    torch.manual_seed(0)
    with torch.device(device):
        made: Any = AutoModelForImageTextToText
        model: Any = made.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    std = 0.04 * (768 / config.get_text_config().hidden_size) ** 0.5
    for parameter in model.parameters():
        if parameter.dim() == 2:  # wide enough that the likeliest tokens differ from row to row
            torch.nn.init.normal_(parameter, std=std)
    return model.eval()


def config_of(family: str, size: str) -> PreTrainedConfig:
    """Return a model's config, with the special tokens of `question` and the number of an image's."""
    config = (
        CONFIGS[family](SMALL[size]) if size in SMALL else model_config(ARCHITECTURES / f"{PUBLISHED[family]}.json")
    )
    names = {"image_token_index": IMAGE_TOKEN} if family == "llava" else QWEN_TOKENS
    image = SMALL[size].image if size in SMALL else Size.image
    for name, value in {**names, "image_tokens": image}.items():
        setattr(config, name, value)
    config.get_text_config().max_position_embeddings = LONGEST
    return config


def _llava(size: Size) -> PreTrainedConfig:
    vision = CLIPVisionConfig(
        hidden_size=size.vision_width,
        intermediate_size=4 * size.vision_width,
        num_hidden_layers=size.vision_layers,
        num_attention_heads=size.vision_heads,
        image_size=14 * math.isqrt(size.image),
        patch_size=14,
    )
    text = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
    )
    return LlavaConfig(vision_config=vision, text_config=text, tie_word_embeddings=False)


def _qwen2_vl(size: Size) -> PreTrainedConfig:
    vision = {
        "depth": max(1, size.vision_layers * 3 // 4),
        "embed_dim": size.vision_width,
        "hidden_size": size.width,
        "num_heads": size.vision_heads,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return Qwen2VLConfig(vision_config=vision, text_config=_qwen_text(size), tie_word_embeddings=False)


def _qwen2_5_vl(size: Size) -> PreTrainedConfig:
    depth = max(4, size.vision_layers * 4 // 3)
    vision = {
        "depth": depth,
        "hidden_size": size.vision_width * 5 // 4,
        "intermediate_size": size.vision_width * 10 // 3,
        "num_heads": size.vision_heads,
        "out_hidden_size": size.width,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": list(range(depth // 4 - 1, depth, depth // 4)),
    }
    return Qwen2_5_VLConfig(vision_config=vision, text_config=_qwen_text(size), tie_word_embeddings=False)


def _qwen_text(size: Size) -> dict[str, Any]:
    """Return the settings of a Qwen language model, with the positions of Qwen2-VL and Qwen2.5-VL."""
    head = size.width // size.heads
    sections = [head // 8, 3 * head // 16, head // 2 - head // 8 - 3 * head // 16]
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_heads,
        "rope_parameters": {"rope_type": "default", "mrope_section": sections, "rope_theta": 1e4},
    }


def _qwen3_5(size: Size) -> PreTrainedConfig:
    vision = {
        "depth": size.vision_layers,
        "hidden_size": size.vision_width,
        "intermediate_size": 4 * size.vision_width,
        "num_heads": size.vision_heads,
        "out_hidden_size": size.width,
        "patch_size": 14,
    }
    text = {
        **_qwen_text(size),
        "full_attention_interval": min(4, size.layers),
        "linear_num_key_heads": min(16, 2 * size.heads),
        "linear_num_value_heads": min(16, 2 * size.heads),
        "rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10], "rope_theta": 1e7},
    }
    return Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=False)


CONFIGS = {"llava": _llava, "qwen2_vl": _qwen2_vl, "qwen2_5_vl": _qwen2_5_vl, "qwen3_5": _qwen3_5}


def freeze_vision_tower(model: Any) -> None:
    """Freeze the weights of the vision tower."""
    tower = model.model.vision_tower if model.config.model_type == "llava" else model.model.visual
    tower.requires_grad_(False)


def with_adapters(model: PreTrainedModel, rank: int) -> Any:
    """Add the recipe's adapters, the same ones in each process, and set the model to training."""
    targets = SftConfig.model_fields["lora_targets"].default
    torch.manual_seed(0)
    adapted: Any = get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=targets)
    )
    return adapted.train()


def language_parameters(model: PreTrainedModel) -> int:
    """Count the weights of the language model's matrices, without the embedding."""
    return sum(p.numel() for n, p in model.named_parameters() if "language" in n and p.dim() == 2 and "embed" not in n)


def question(model: PreTrainedModel, *, seed: int = 1, image: int | None = None) -> Rendered:
    """Draw a prefix: an image and a question of 24 tokens. `image`: tokens of the image, for Qwen alone."""
    image = image or model.config.image_tokens
    generator = torch.Generator().manual_seed(seed)
    high = model.config.get_text_config().vocab_size
    text = torch.randint(10, high, (24,), generator=generator).tolist()
    if model.config.model_type == "llava":
        ids, side = [1, *[IMAGE_TOKEN] * image, *text[1:]], 14 * math.isqrt(image)
        return Rendered(ids, [], {"pixel_values": torch.randn(1, 3, side, side, generator=generator)})
    ids = [1, 5, *[IMAGE_TOKEN] * image, 6, *text[3:]]
    high = 2 * max(rows for rows in range(1, image + 1) if rows * rows <= image and image % rows == 0)
    side = model.config.vision_config.patch_size
    pixels = torch.randn(4 * image, 3 * 2 * side * side, generator=generator)
    return Rendered(ids, [], {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, high, 4 * image // high]])})


def passages(model: PreTrainedModel, count: int, tokens: int, *, seed: int = 2) -> list[list[int]]:
    """Draw branches of random tokens, all equally long."""
    generator = torch.Generator().manual_seed(seed)
    high = model.config.get_text_config().vocab_size
    return torch.randint(10, high, (count, tokens), generator=generator).tolist()


def engine_of(model: PreTrainedModel, *, packed: bool = False) -> PrefixEngine:
    """Build the toolkit's engine on a model that has no processor, on packed rows on a CPU too if `packed`."""
    renderer = SimpleNamespace(end_token_id=-1, decode=lambda ids: " ".join(map(str, ids)))
    loaded: Any = SimpleNamespace(model=model, renderer=renderer, name="benchmark", calibration={})
    engine = PrefixEngine(loaded)
    if packed and not isinstance(engine.reader, PackedReader):
        end_ids = torch.tensor(end_tokens(loaded))
        engine.reader = PackedReader(Forward(model), engine.token_budget, engine.image_prefixes, end_ids, None)
    return engine


def engine_gates(
    engine: PrefixEngine, prefixes: Sequence[Rendered], branches: Sequence[list[list[int]]], *, first: bool = False
) -> Tensor:
    """Compute the gates of every branch with the engine; float32 of shape (questions, branches).

    The gate of each question is read too: before its branches are known if `first`, else after.
    """
    opened = engine.read(prefixes)
    if first:
        opened.probabilities([GATE])
    read = engine.branch(opened, branches)
    opened.probabilities([GATE])
    return torch.stack([rows[:, 0] for rows in read.probabilities([GATE])])


def engine_answers(
    engine: PrefixEngine, prefixes: Sequence[Rendered], branches: Sequence[list[list[int]]], count: int, new_tokens: int
) -> list[list[int]]:
    """Answer after the `count` branches of each question with the highest gates, with the engine."""
    read = engine.branch(engine.read(prefixes), branches)
    gates = read.probabilities([GATE])
    rows = [(q, k) for q, probabilities in enumerate(gates) for k in probabilities[:, 0].topk(count).indices.tolist()]
    return [answer.token_ids for answer in engine.generate(read, rows, max_new_tokens=new_tokens)]


@torch.no_grad()
def repeated_cache(
    model: Any,
    prefixes: Sequence[Rendered],
    branches: Sequence[list[list[int]]],
    count: int = 0,
    new_tokens: int = 0,
) -> tuple[Tensor, list[list[int]]]:
    """Return gates and greedy answers with transformers' own cache, the simple alternative to the engine.

    Read each prefix once, repeat its cache for each branch, read the branches as a batch, and decode the chosen rows of
    all questions as one batch. The branches must be equally long, the prefixes too.
    """
    gates, chosen, logits, positions = [], [], [], []
    for prefix, rows in zip(prefixes, branches, strict=True):
        cache = model(**row_inputs(model, prefix, [[]]), use_cache=True, logits_to_keep=1).past_key_values
        _choose(cache, torch.zeros(len(rows), dtype=torch.long, device=model.device))
        ids = torch.tensor(rows, device=model.device)
        first = len(prefix.ids) + (int(model.model.rope_deltas[0]) if model.config.model_type != "llava" else 0)
        last = _continued(model, ids, cache, first)
        gates.append(last.float().softmax(-1)[:, GATE])
        best = gates[-1].topk(count).indices
        if count:
            _choose(cache, best)
            chosen.append(cache)
            logits.append(last[best])
            positions.append(first + ids.shape[1])
    if not count:
        return torch.stack(gates).cpu(), []
    cache, tokens = _joined(chosen), [torch.cat(logits).argmax(-1)]
    for step in range(new_tokens - 1):
        tokens.append(_continued(model, tokens[-1][:, None], cache, positions[0] + step).argmax(-1))
    return torch.stack(gates).cpu(), torch.stack(tokens, 1).tolist()


def _continued(model: Any, ids: Tensor, cache: Any, first: int) -> Tensor:
    """Read tokens after a cache, at positions from `first` on, and return the last token's logits."""
    positions = (first + torch.arange(ids.shape[1], device=ids.device)).expand(len(ids), -1)
    if model.config.model_type != "llava":
        positions = positions.expand(3, *positions.shape)
    read = model.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
    return model.lm_head(read.last_hidden_state[:, -1])


def _choose(cache: Any, rows: Tensor) -> None:
    """Select rows of a cache, perhaps repeatedly; transformers' own method (5.23) leaves out linear attention."""
    for layer in cache.layers:
        for mapping, name in _tensors(layer):
            mapping[name] = mapping[name][rows]


def _joined(caches: Sequence[Any]) -> Any:
    """Concatenate the rows of caches into the first one, and return it."""
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        for tensors in zip(*map(_tensors, layers), strict=True):
            mapping, name = tensors[0]
            mapping[name] = torch.cat([other[key] for other, key in tensors])
    return caches[0]


def _tensors(layer: Any) -> list[tuple[Any, Any]]:
    """Return the mapping and the key of each tensor of a cache's layer."""
    if getattr(layer, "keys", None) is not None:
        return [(vars(layer), "keys"), (vars(layer), "values")]
    return [(mapping, name) for mapping in (layer.conv_states, layer.recurrent_states) for name in mapping]


@torch.no_grad()
def batched_rows(model: Any, prefix: Rendered, branches: list[list[int]], rows: int = 0) -> Tensor:
    """Compute gates from whole rows, the image and question in each; `rows` at a time, all at once if 0."""
    step = rows or len(branches)
    parts = [branches[i : i + step] for i in range(0, len(branches), step)]
    logits = [
        model(**row_inputs(model, prefix, part), use_cache=False, logits_to_keep=1).logits[:, -1] for part in parts
    ]
    return torch.cat(logits).float().softmax(-1)[:, GATE].cpu()


@torch.no_grad()
def batched_generate(
    model: Any, prefixes: Sequence[Rendered], branches: Sequence[list[list[int]]], new_tokens: int
) -> list[list[int]]:
    """Answer with transformers' `generate` on whole rows, those of all questions in one batch."""
    parts = [row_inputs(model, prefix, rows) for prefix, rows in zip(prefixes, branches, strict=True)]
    inputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    answers = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    return answers[:, inputs["input_ids"].shape[1] :].tolist()


def row_inputs(model: PreTrainedModel, prefix: Rendered, branches: list[list[int]]) -> dict[str, Any]:
    """Return the inputs of transformers' model for whole rows: the prefix in front of each branch."""
    ids = torch.tensor([[*prefix.ids, *branch] for branch in branches], device=model.device)
    vision = {}
    for name, value in prefix.vision.items():
        moved = value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
        vision[name] = moved.repeat(len(branches), *[1] * (value.dim() - 1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **vision}
    if model.config.model_type != "llava":
        model.model.rope_deltas = None
        inputs["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
    return inputs


def tree_of(model: PreTrainedModel, count: int, tokens: int, *, seed: int = 1, image: int | None = None) -> Tree:
    """Build a question's tree for training, each seed's about an image of its own.

    The prefix's last token stands for [Retrieval].
    """
    prefix = question(model, seed=seed, image=image)
    labels = [*[IGNORE] * (len(prefix.ids) - 1), prefix.ids[-1]]
    branches = [
        Segment.of(ids, [IGNORE] * (len(ids) - SUPERVISED) + ids[-SUPERVISED:])
        for ids in passages(model, count, tokens, seed=seed + 1)
    ]
    return Tree(Segment.of(prefix.ids, labels), tuple(branches), dict(prefix.vision))


def flat_rows(model: PreTrainedModel, tree: Tree) -> dict[str, Tensor]:
    """Return a tree as a batch of whole rows, one a branch and the image in each, as stock trainers read it."""
    prefix = Rendered(list(tree.prefix.ids), [], dict(tree.vision))
    batch = row_inputs(model, prefix, [list(branch.ids) for branch in tree.branches])
    labels = torch.tensor([[*tree.prefix.labels, *branch.labels] for branch in tree.branches])
    labels[1:, : len(tree.prefix.ids)] = IGNORE  # [Retrieval] counts once
    return {**batch, "labels": labels.to(model.device)}


def tree_step(model: Any, batch: dict[str, Tensor]) -> float:
    """Run a forward and a backward pass on trees, and return the loss."""
    model.zero_grad()
    loss, weight = loss_terms(model, batch)
    (loss / weight).backward()
    return float((loss / weight).detach())


def timed(
    run: Callable[[], Any], device: str = "cpu", repeats: int = 1, warm_up: int = 0, longest: float = math.inf
) -> tuple[float, Any]:
    """Return the median seconds of `repeats` calls after `warm_up` others, and the last call's result.

    A call of more than `longest` seconds is not repeated.

    On a CPU with one thread these are CPU seconds, which don't count waiting for a core. Other processes still share
    the caches, so published figures need an idle machine.
    """
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    seconds, result = [], None
    for number in range(warm_up + repeats):
        _synchronize(device)
        start = clock()
        result = run()
        _synchronize(device)
        if number >= warm_up:
            seconds.append(clock() - start)
            if seconds[-1] > longest:
                break
    return statistics.median(seconds), result


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()

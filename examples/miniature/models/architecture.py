"""The miniatures' shapes: real transformers classes, processors and chat templates, built offline at a small size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from reflectune.models.attention.recurrence import FULL, LINEAR
from reflectune.models.rendering.chat_template import QWEN_35
from reflectune.models.weights.pretrained import ImageOnlyQwen2VLProcessor

Family = Literal["llava", "qwen2_vl", "qwen3_5"]
Retrieving = Literal["clip", "text"]
"""Families of the retrievers: images and titles, and texts alone."""

Size = Literal["base", "test"]

FAMILIES: tuple[Family, ...] = get_args(Family)
"""Families whose pre-trained weights are shipped."""
IMAGE_SIZE = 64
"""Side of a miniature's square image, in pixels; it becomes 4 × 4 = 16 image tokens."""

_QWEN_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
_SPECIAL_TOKENS: dict[str, tuple[str, ...]] = {
    "llava": ("<pad>", "<s>", "</s>", "<image>"),
    "qwen2_vl": _QWEN_TOKENS,
    "qwen3_5": (*_QWEN_TOKENS, "<think>", "</think>"),
    "clip": ("<pad>", "<s>", "</s>"),
    "text": ("<pad>", "<s>", "</s>"),
}
_CHAT_TEMPLATES: dict[Family, str] = {
    # As LLaVA-1.5 speaks: "USER: <image>\n… ASSISTANT: …</s>".
    "llava": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'user' %}{{ 'USER: ' }}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}{% endif %}{% endfor %}"
        "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
        "{{ ' ' }}{% else %}{{ 'ASSISTANT:' }}"
        "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ ' ' + part['text'] }}{% endif %}"
        "{% endfor %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    "qwen2_vl": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "qwen3_5": QWEN_35,
}
_LANGUAGE_SIZES: dict[Size, dict[str, Any]] = {
    "base": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 4},
    "test": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
}
_HYBRID_SIZES: dict[Size, dict[str, Any]] = {
    "base": {"num_hidden_layers": 5, "intermediate_size": 384, "layer_types": [LINEAR, FULL, LINEAR, FULL, FULL]},
    "test": {"num_hidden_layers": 3, "layer_types": [LINEAR, LINEAR, FULL]},
}
_VISION_SIZES: dict[Size, tuple[int, int, int]] = {"base": (96, 3, 3), "test": (32, 2, 2)}  # width, layers, heads


def train_tokenizer(texts: Iterable[str], vocab_size: int, family: Family | Retrieving) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with the family's special tokens; numbers are cut into pairs of digits.

    Args:
        texts: The corpus.
        vocab_size: Number of tokens, special ones included (at least 256 more than those).
        family: Family of the special tokens and the chat template.
    """
    specials = _SPECIAL_TOKENS[family]
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d{2}|\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # CLIP's text tower reads at the end token; where that one has id 2 it guesses its place, so it comes first.
    encodes = family in ("clip", "text")
    order = ["</s>", "<s>", "<pad>"] if encodes else list(specials)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=order, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    if encodes:
        ends = [(token, tokenizer.token_to_id(token)) for token in specials[1:3]]
        pair = "<s> $A </s> $B:1 </s>:1"
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", pair, ends)
    roles = {"pad_token": specials[0], "eos_token": specials[2]}
    if not family.startswith("qwen"):
        roles["bos_token"] = specials[1]
    others = [token for token in specials if token not in roles.values()]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=others, **roles)
    if family != "clip" and family != "text":
        fast.chat_template = _CHAT_TEMPLATES[family]
    return fast


def build_processor(family: Family, tokenizer: PreTrainedTokenizerFast) -> ProcessorMixin:
    """Build the family's own processor over a miniature tokenizer, with a PIL image processor."""
    template = _CHAT_TEMPLATES[family]
    if family == "llava":
        return LlavaProcessor(
            _square_image_processor(),
            tokenizer,
            patch_size=IMAGE_SIZE // 4,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template,
        )
    pixels = IMAGE_SIZE * IMAGE_SIZE
    image_processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": pixels, "longest_edge": pixels}, patch_size=IMAGE_SIZE // 8, merge_size=2
    )
    return ImageOnlyQwen2VLProcessor(image_processor, tokenizer, chat_template=template)


def build_model(
    family: Family,
    tokenizer: PreTrainedTokenizerFast,
    *,
    size: Size = "base",
    vocab_size: int | None = None,
    tie_word_embeddings: bool | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Build a randomly initialised miniature in fp32, with sdpa attention.

    Args:
        family: `llava`, `qwen2_vl` or `qwen3_5`.
        tokenizer: Tokenizer with the special tokens' ids.
        size: `base` (about 1.7 M parameters) or `test` (about 0.1 M).
        vocab_size: Rows of the embedding; more than the tokenizer has gives a padded table. The tokenizer's length
            if None.
        tie_word_embeddings: None takes the family's default: LLaVA untied, Qwen2-VL (as its 2B) and Qwen3.5
            (as its 0.8B) tied.
        seed: Seed of the initial weights.
    """
    tie = family != "llava" if tie_word_embeddings is None else tie_word_embeddings
    rows = len(tokenizer) if vocab_size is None else vocab_size
    kinds: dict[Family, tuple[Any, Callable[..., PreTrainedConfig]]] = {
        "llava": (LlavaForConditionalGeneration, _llava_config),
        "qwen2_vl": (Qwen2VLForConditionalGeneration, _qwen_config),
        "qwen3_5": (Qwen3_5ForConditionalGeneration, _hybrid_config),
    }
    kind, config_of = kinds[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind._from_config(config_of(tokenizer, size, rows, tie), attn_implementation="sdpa")
        _widen(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


def build_clip(tokenizer: PreTrainedTokenizerFast, *, size: Size = "base", seed: int = 0) -> CLIPModel:
    """Build a randomly initialised miniature CLIP: the retriever's encoder."""
    width, layers, heads = _VISION_SIZES[size]
    tower = {"hidden_size": width, "intermediate_size": width * 3, "num_attention_heads": heads}
    config = CLIPConfig(
        vision_config={**tower, "num_hidden_layers": layers, "image_size": IMAGE_SIZE, "patch_size": IMAGE_SIZE // 4},
        text_config={
            **tower,
            "num_hidden_layers": 2,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 64,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        projection_dim=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CLIPModel._from_config(config, attn_implementation="sdpa").eval()


def build_text_encoder(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0) -> BertModel:
    """Build a randomly initialised miniature text retriever: a BERT of about 0.16 M parameters with mean pooling."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=160,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,  # a narrow model starts too close to zero with BERT's 0.02
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertModel(config, add_pooling_layer=False).eval()


def build_clip_processor(tokenizer: PreTrainedTokenizerFast) -> CLIPProcessor:
    """Build CLIP's own processor over a miniature tokenizer, with a PIL image processor."""
    return CLIPProcessor(_square_image_processor(), tokenizer)


def _square_image_processor() -> CLIPImageProcessorPil:
    square = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    return CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIZE}, crop_size=square)


def _llava_config(tokenizer: PreTrainedTokenizerFast, size: Size, rows: int, tie: bool) -> LlavaConfig:
    width, layers, heads = _VISION_SIZES[size]
    language = _LANGUAGE_SIZES[size]
    image_token: Any = tokenizer.convert_tokens_to_ids("<image>")
    return LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=width,
            intermediate_size=width * 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            image_size=IMAGE_SIZE,
            patch_size=IMAGE_SIZE // 4,
            projection_dim=width,
        ),
        text_config=LlamaConfig(
            vocab_size=rows,
            **language,
            num_key_value_heads=language["num_attention_heads"],
            max_position_embeddings=4096,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=tie,
        ),
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=16,
        tie_word_embeddings=tie,
    )


def _qwen_text(
    tokenizer: PreTrainedTokenizerFast, language: Mapping[str, Any], rows: int, tie: bool, **rope: Any
) -> dict[str, Any]:
    """Return the part of `text_config` that both Qwen families have."""
    return {
        "vocab_size": rows,
        **language,
        "num_key_value_heads": language["num_attention_heads"] // 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **rope},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": tie,
    }


def _qwen_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the ids of the tokens around and in place of images and videos."""
    id_of = tokenizer.convert_tokens_to_ids
    return {
        "image_token_id": id_of("<|image_pad|>"),
        "video_token_id": id_of("<|video_pad|>"),
        "vision_start_token_id": id_of("<|vision_start|>"),
        "vision_end_token_id": id_of("<|vision_end|>"),
    }


def _qwen_config(tokenizer: PreTrainedTokenizerFast, size: Size, rows: int, tie: bool) -> Qwen2VLConfig:
    width, layers, heads = _VISION_SIZES[size]
    language = _LANGUAGE_SIZES[size]
    half_head = language["hidden_size"] // language["num_attention_heads"] // 2
    side = half_head * 3 // 8
    return Qwen2VLConfig(
        vision_config={
            "depth": layers,
            "embed_dim": width,
            "hidden_size": language["hidden_size"],
            "num_heads": heads,
            "mlp_ratio": 3,
            "patch_size": IMAGE_SIZE // 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        text_config=_qwen_text(tokenizer, language, rows, tie, mrope_section=[half_head - 2 * side, side, side]),
        tie_word_embeddings=tie,
        **_qwen_ids(tokenizer),
    )


def _hybrid_config(tokenizer: PreTrainedTokenizerFast, size: Size, rows: int, tie: bool) -> Qwen3_5Config:
    """Return Qwen3.5's config.

    Three of the base size's five layers have full attention, of the published models' one in four: on a CPU, a layer
    of linear attention takes three times as long.
    """
    width, layers, heads = _VISION_SIZES[size]
    language = _LANGUAGE_SIZES[size] | _HYBRID_SIZES[size]
    head = language["hidden_size"] // language["num_attention_heads"]
    sections = [head // 4 - 2 * (head // 16), head // 16, head // 16]
    return Qwen3_5Config(
        vision_config={
            "depth": layers,
            "hidden_size": width,
            "intermediate_size": width * 3,
            "num_heads": heads,
            "out_hidden_size": language["hidden_size"],
            "num_position_embeddings": 64,
            "patch_size": IMAGE_SIZE // 8,
        },
        text_config={
            **_qwen_text(tokenizer, language, rows, tie, partial_rotary_factor=0.5, mrope_section=sections),
            "head_dim": head,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": head,
            "linear_value_head_dim": head,
        },
        tie_word_embeddings=tie,
        **_qwen_ids(tokenizer),
    )


def _widen(model: PreTrainedModel) -> None:
    """Draw the language model's matrices wider than the default: a narrow model starts too close to zero."""
    for name, parameter in model.named_parameters():
        if "language_model" in name and parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.05 if "embed" in name else 0.04)

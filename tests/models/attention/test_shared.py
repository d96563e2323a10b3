"""Shared tokens are attended to as if every row had a copy of them."""

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForImageTextToText

from reflectune.core.errors import UserError
from reflectune.models.attention.shared import IMPLEMENTATION, share_prefixes
from reflectune.models.prefix.forward import check_logits

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_model_without_shared_tokens_computes_what_it_did(make, family):
    model = make.model(family)
    ids = torch.randint(5, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits
        share_prefixes(model)
        assert IMPLEMENTATION in AttentionInterface()
        assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)


def test_layers_that_cannot_share_are_refused(make):
    model = make.model("qwen2_vl")
    model.config.get_text_config().layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(UserError, match="layers of type chunked_attention can't share a prefix exactly"):
        share_prefixes(model)


@pytest.mark.parametrize("family", ["gemma3", "paligemma"])
def test_prompts_whose_tokens_see_those_behind_them_are_refused(family):
    text = {**SIZES, "vocab_size": 90, "num_key_value_heads": 1, "head_dim": 8}
    text["use_bidirectional_attention"] = family == "gemma3"
    vision = {**SIZES, "image_size": 16, "patch_size": 8, "projection_dim": 16}
    config = AutoConfig.for_model(family, text_config=text, vision_config=vision)
    with pytest.raises(UserError, match=r"Gemma.*: text tokens see later tokens too; use"):
        share_prefixes(AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa"))


def test_models_whose_layers_read_the_image_at_every_token_are_refused(make):
    model = make.model("llava")
    model.config.get_text_config().cross_attention_layers = [1]  # as Mllama's
    with pytest.raises(UserError, match="some layers read the image at every token; use another model"):
        share_prefixes(model)


KOSMOS = {"vocab_size": 90, "embed_dim": 16, "ffn_dim": 16, "layers": 1, "attention_heads": 2}
KOSMOS_TOWER = {**SIZES, "patch_embed_hidden_size": 16, "head_dim": 8}
TOWER = {**SIZES, "image_size": 28, "patch_size": 14}
MINICPM = {**SIZES, "vocab_size": 90, "num_key_value_heads": 1, "head_dim": 8, "layer_types": ["full_attention"]}


@pytest.mark.parametrize(
    ("family", "text", "vision", "problem"),
    [
        ("kosmos-2.5", KOSMOS, KOSMOS_TOWER, "its layers and its image token are not found"),
        ("minicpmv4_7", MINICPM, TOWER, "an image's positions depend on more than its grid"),
    ],
)
def test_models_that_are_built_differently_are_refused(family, text, vision, problem):
    config = AutoConfig.for_model(family, text_config=text, vision_config=vision)
    with pytest.raises(UserError, match=f"ForConditionalGeneration: .*{problem}.*; use another model"):
        share_prefixes(AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa"))


def test_logits_that_are_not_those_of_the_head_are_refused():
    text = {**SIZES, "vocab_size": 90, "num_key_value_heads": 1, "logits_scaling": 8.0}
    text |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {**SIZES, "image_size": 16, "patch_size": 8, "out_hidden_size": 16}
    config = AutoConfig.for_model("granite_docling", text_config=text, vision_config=vision, image_token_id=3)
    with pytest.raises(UserError, match=r"GraniteDocling.* changes the logits of its output head"):
        check_logits(AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa"))

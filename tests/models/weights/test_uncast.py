"""Weights that are left as their file has them, and cast later: the same model, bit for bit, in every family."""

import json

import pytest
import torch

from reflectune.models.loading import load
from reflectune.models.records import is_stored_in
from reflectune.models.weights.pretrained import move_and_cast

FAMILIES = ("llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_is_cast_later_is_the_one_that_was_cast_at_once(family: str, write_base, tmp_path) -> None:
    write_base(family, tmp_path)  # stored in bfloat16
    if family == "qwen3_vl":  # as published: only the text's config names the dtype
        config = json.loads((tmp_path / "config.json").read_text())
        del config["dtype"], config["vision_config"]["dtype"]
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert is_stored_in(str(tmp_path), "bfloat16")
    at_once = load(str(tmp_path), scheme="mr2ag", seed=3)
    later = load(str(tmp_path), scheme="mr2ag", seed=3, cast=False)
    held = {parameter.dtype for parameter in later.model.parameters()}
    vocabulary = later.model.get_input_embeddings().weight.dtype
    move_and_cast(later.model, torch.device("cpu"))

    assert (held, vocabulary) == ({torch.bfloat16, torch.float32}, torch.float32)
    assert later.fingerprint == at_once.fingerprint
    assert later.model.config.to_dict() == at_once.model.config.to_dict()
    wanted = [*at_once.model.named_parameters(), *at_once.model.named_buffers()]
    actual = [*later.model.named_parameters(), *later.model.named_buffers()]
    assert [name for name, _ in actual] == [name for name, _ in wanted]
    for (name, one), (_, other) in zip(actual, wanted, strict=True):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name

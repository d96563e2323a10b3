"""A checkpoint in the layout of LLaVA's own code computes the same in transformers' classes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPVisionModel, LlamaConfig, LlamaForCausalLM

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.models.loading import load
from reflectune.models.weights.original_llava import TOWER
from reflectune.train.merge import merge
from reflectune.train.settings.merge import MergeConfig

SEEN, WIDTH = 32, 48


@pytest.fixture
def published(tmp_path: Path, write_original_llava: Callable[..., None]) -> Callable[..., Path]:
    """Write a checkpoint in the original layout and its CLIP; return the checkpoint's folder."""

    def build(**settings: Any) -> Path:
        write_original_llava(tmp_path / "llava_more", tmp_path / "clip", **settings)
        return tmp_path / "llava_more"

    return build


def convert(folder: Path, *more: str) -> Path:
    """Run the command, and return its output."""
    output = folder.parent / "converted"
    merge(parse_config(MergeConfig, argv=["--checkpoint", str(folder), "--output", str(output), *more]))
    return output


def held(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def draw_image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8))


@pytest.mark.parametrize("tower", [True, False])
def test_its_logits_are_those_of_the_same_weights_put_together_by_hand(published, tower: bool) -> None:
    """The language model's of the text and projector(the last but one layer of the tower, without the class token)."""
    folder = published(tower=tower)
    loaded = load(str(convert(folder)))
    prompt = loaded.renderer.prefix("When?", draw_image())
    ids = torch.tensor([prompt.ids])
    weights = held(folder)
    clip = CLIPVisionModel.from_pretrained(folder.parent / "clip").eval()
    if tower:
        own, tuned = clip.state_dict(), {key.removeprefix(TOWER): value for key, value in weights.items()}
        clip.load_state_dict({key: tuned[key if key in tuned else f"vision_model.{key}"] for key in own})
    names = LlamaConfig(**{k: v for k, v in json.loads((folder / "config.json").read_text()).items() if "mm_" not in k})
    llama = LlamaForCausalLM(names).eval()
    llama.load_state_dict({key: weights[key] for key in llama.state_dict()})
    first, second = ([weights[f"model.mm_projector.{n}.{kind}"] for kind in ("weight", "bias")] for n in (0, 2))
    with torch.no_grad():
        made = loaded.model(input_ids=ids, pixel_values=prompt.vision["pixel_values"]).logits
        seen = clip(prompt.vision["pixel_values"], output_hidden_states=True).hidden_states[-2][:, 1:]
        features = nn.functional.linear(nn.functional.gelu(nn.functional.linear(seen, *first)), *second)
        is_image = ids == loaded.renderer.image_token_id
        embedded = llama.get_input_embeddings()(ids.masked_fill(is_image, 0))
        embedded[is_image] = features[0]
        expected = llama(inputs_embeds=embedded).logits

    assert int(is_image.sum()) == 16
    torch.testing.assert_close(made[..., : expected.shape[-1]], expected, rtol=1e-4, atol=1e-5)


def test_prompts_have_llavas_system_turn_and_replies_end_where_the_checkpoint_says(published) -> None:
    loaded = load(str(convert(published())))
    text = loaded.renderer.decode(loaded.renderer.prefix("When?", draw_image()).ids)

    assert text.startswith("<s>system: You are a helpful language and vision assistant. You are able")
    assert "</s>user: <image>" in text
    assert text.endswith("When?</s>assistant:")
    assert set(loaded.model.generation_config.eos_token_id) == {5, 7, loaded.renderer.tokenizer.eos_token_id}
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}]
    assert loaded.processor.apply_chat_template(said) == "<s>system: Be brief.</s>user: When?</s>"


def test_a_tokenizer_without_a_template_gets_that_of_llava_15(published) -> None:
    loaded = load(str(convert(published(template=None))))
    text = loaded.renderer.decode(loaded.renderer.prefix("When?", draw_image()).ids)
    assert text.startswith("<s>A chat between a curious user")
    assert text.endswith("When? ASSISTANT:")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, "lacks 1 of its weights, e.g. .*layers.1.mlp.up_proj"),
        ({"model.mm_projector.2.bias": None}, "lacks the projector's model.mm_projector.2.bias"),
        ({"model.mm_projector.0.weight": torch.ones(48, 30)}, r"0.weight .* is \(48, 30\), not \(48, 32\)"),
        ({"model.mm_projector.0.bias": torch.full((48,), float("nan"))}, "NaN or infinite"),
        ({f"{TOWER}vision_model.post_layernorm.bias": None}, "vision tower of .* lacks 1 of its .*post_layernorm"),
        ({f"{TOWER}vision_model.odd": torch.ones(1)}, "has 1 weights that its class doesn't know, e.g. .*odd"),
        ({"model.image_newline": torch.ones(48)}, "has 1 weights that its class .*image_newline"),
    ],
)
def test_tensors_that_are_missing_unknown_or_odd_are_named(published, change: dict[str, Any], message: str) -> None:
    folder = published()
    weights = {name: value for name, value in {**held(folder), **change}.items() if value is not None}
    for path in (*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"):
        path.unlink()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    with pytest.raises(UserError, match=message):
        convert(folder)
    assert not (folder.parent / "converted").exists()


@pytest.mark.parametrize(
    ("key", "value"), [("s2", True), ("image_aspect_ratio", "anyres"), ("mm_projector_type", "linear")]
)
def test_another_architecture_is_refused_by_its_setting(published, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{key}: {value}, which is not LLaVA-1.5's model"):
        convert(published(**{key: value}))


def test_the_same_command_finds_its_work_done_and_settings_of_parts_are_refused(published, capsys) -> None:
    folder = published()
    convert(folder)
    convert(folder)
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(UserError, match="leave out `language`"):
        convert(folder, "--language", str(folder))

"""Missing and unexpected weights and NaN are one error that names them, for every loader."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AyaVisionProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.rendering.image_config import ImageSettings
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG

Weights = dict[str, Tensor]
FAMILIES = ("llava", "qwen2_vl")
PROCESSOR = "processor_config.json"


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, make, tmp_path_factory) -> Path:
    return Path(make.saved(tmp_path_factory.mktemp("whole") / request.param, request.param))


def on_llava_and_qwen(name: str, values: Iterable[str], of_qwen: str) -> pytest.MarkDecorator:
    """Values of an argument for a test of LLaVA's `base`, and one of them for Qwen2-VL's."""
    cases = [*(("llava", value) for value in values), ("qwen2_vl", of_qwen)]
    return pytest.mark.parametrize(("base", name), cases, indirect=["base"], scope="module")


@pytest.fixture(scope="module")
def adapter(make, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("adapter")
    loaded = load(make.saved(root / "base", "llava"), scheme="mr2ag", seed=3)
    ids = sorted(loaded.renderer.token_ids.values())
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], trainable_token_indices={"embed_tokens": ids})
    adapted = get_peft_model(loaded.model, config)
    save_checkpoint(root / "tuned", adapted, loaded.processor, MR2AG, {"base_model": str(root / "base"), "seed": 3})
    return root / "tuned"


def changed(folder: Path, target: Path, change: Callable[[Weights], None], file: str = "model.safetensors") -> str:
    """A copy of a checkpoint whose tensors are changed."""
    shutil.copytree(folder, target)
    weights = load_file(folder / file)
    change(weights)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, target / file, metadata={"format": "pt"})
    return str(target)


def change_json(path: Path, changes: dict) -> None:
    """Set the values of a JSON file, or of objects in it."""
    values = json.loads(path.read_text())
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) and value else value
    path.write_text(json.dumps(values))


def refuse(folder: Path | str, message: str) -> str:
    """Load the checkpoint, which is one error of one line, and return it."""
    with pytest.raises(UserError, match=message) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def drop(pattern: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for name in [name for name in weights if pattern in name and "vision" not in name and "visual" not in name]:
            del weights[name]

    return change


def last_of(weights: Weights, ending: str) -> str:
    return max(name for name in weights if name.endswith(ending))


def put(weights: Weights, ending: str, value: float) -> None:
    weights[last_of(weights, ending)].view(-1)[5] = value


def narrow(weights: Weights) -> None:
    is_llava = any("vision_tower" in name for name in weights)
    name = last_of(weights, "q_proj.weight" if is_llava else "down_proj.weight")
    weights[name] = weights[name][:-1]


CHANGES = {
    "a layer is missing": (drop(".layers.0."), r"lacks \d+ of its weights, e\.g\. \S*layers\.0\.\S+, "),
    "one tensor is missing": (drop("model.norm.weight"), r"lacks 1 of its weights, e\.g\. \S*norm\.weight;"),
    "a tensor is unknown": (
        lambda weights: weights.update({"model.odd": torch.ones(2), "odd": torch.ones(2)}),
        r"has 2 weights that its class doesn't know, e\.g\. model\.\S*odd, odd;",
    ),
    "a tensor has another shape": (
        narrow,
        r"has 1 weights of a different shape than in its config, e\.g\. \S+ \(\d+ × \d+, not ",
    ),
    "NaN": (
        lambda weights: put(weights, "down_proj.weight", torch.nan),
        r"NaN or infinite values in 1 of its weights, e\.g\. \S*layers\.\d+\.mlp\.down_proj\.weight;",
    ),
    "infinite": (
        lambda weights: put(weights, "norm.weight", -torch.inf),
        r"NaN or infinite values in 1 of its weights",
    ),
}


@on_llava_and_qwen("name", CHANGES, "a tensor has another shape")
def test_a_checkpoint_with_other_tensors_is_refused(base: Path, tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    copy = changed(base, tmp_path / "copy", change)
    assert copy in refuse(copy, message)


def test_many_large_weights_whose_sum_is_infinite_are_finite(base: Path, tmp_path: Path) -> None:
    load(changed(base, tmp_path / "copy", lambda weights: weights[last_of(weights, "down_proj.weight")].fill_(3e38)))


def test_weights_that_half_precision_cannot_hold_are_found(base: Path, tmp_path: Path) -> None:
    copy = changed(base, tmp_path / "copy", lambda weights: put(weights, "down_proj.weight", 1e6))
    load(copy)
    load(copy, dtype="bfloat16")
    with pytest.raises(UserError, match=r"NaN or infinite values in 1 of its weights"):
        load(copy, dtype="float16")


def test_buffers_that_older_checkpoints_hold_are_ignored(base: Path, tmp_path: Path) -> None:
    def add(weights: Weights) -> None:
        weights["model.language_model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        weights["model.vision_tower.vision_model.embeddings.position_ids"] = torch.arange(5)

    load(changed(base, tmp_path / "copy", add))


def damages(content: bytes) -> dict[str, bytes]:
    """The bytes of a safetensors file, damaged in each way."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")

    def written(head: object) -> bytes:
        text = json.dumps(head).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + size :]

    return {
        "empty": b"",
        "cut in its length": content[:5],
        "cut in its header": content[: 8 + size // 2],
        "cut in its data": content[:-100],
        "too long": content + bytes(8),
        "of a length beyond its end": (2**62).to_bytes(8, "little") + content[8:],
        "no JSON": content[:8] + b"x" * size + content[8 + size :],
        "a list": written([1]),
        "an unknown dtype": written({**header, name: {**header[name], "dtype": "X9"}}),
        "another shape": written({**header, name: {**header[name], "shape": [3, 5]}}),
        "offsets beyond its end": written({**header, name: {**header[name], "data_offsets": [0, 1 << 50]}}),
        "another file": b"PK\3\4" + bytes(500),
    }


TINY = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
DAMAGES = list(damages(len(TINY).to_bytes(8, "little") + TINY + bytes(4)))


def check_damage(folder: Path, name: str, damage: str, copy: Path) -> None:
    shutil.copytree(folder, copy)
    file = copy / f"{name}.safetensors"
    file.write_bytes(damages(file.read_bytes())[damage])
    refuse(copy, str(copy))


@on_llava_and_qwen("damage", DAMAGES, "another shape")
def test_a_damaged_model_is_one_error(base: Path, damage: str, tmp_path: Path) -> None:
    check_damage(base, "model", damage, tmp_path / "copy")


@pytest.mark.parametrize("damage", ["empty", "cut in its data", "a list", "another shape"])
def test_a_damaged_adapter_is_one_error(adapter: Path, damage: str, tmp_path: Path) -> None:
    check_damage(adapter, "adapter_model", damage, tmp_path / "copy")


ADAPTER_CHANGES = {
    "lacks": (drop("layers.1.self_attn.q_proj"), r"the adapter \S+ lacks 2 of its weights, e\.g\. \S*lora_A"),
    "lacks the new rows": (drop("trainable_tokens"), r"the adapter \S+ lacks \S*embed_tokens\S*;"),
    "more": (
        lambda weights: weights.update({"base_model.model.odd.lora_A.weight": torch.ones(2, 2)}),
        r"has 1 weights that its class doesn't know, e\.g\. base_model\.model\.odd",
    ),
    "shape": (
        lambda weights: weights.update(
            {n: t[:, :-1] for n, t in weights.items() if "layers.1.self_attn.q_proj.lora_A" in n}
        ),
        r"has 2 weights of a different shape",
    ),
    "NaN": (lambda weights: put(weights, "lora_B.weight", torch.nan), r"NaN or infinite values in 1 of its weights"),
}


@pytest.mark.parametrize("name", ADAPTER_CHANGES)
def test_an_adapter_with_other_tensors_is_refused(adapter: Path, tmp_path: Path, name: str) -> None:
    change, message = ADAPTER_CHANGES[name]
    refuse(changed(adapter, tmp_path / "copy", change, "adapter_model.safetensors"), message)


@pytest.mark.parametrize("change", [{"eva_config": []}, {"r": "x"}, {"r": 0}, {"target_modules": 3}], ids=str)
def test_an_adapters_odd_configuration_is_one_error(adapter: Path, tmp_path: Path, change: dict) -> None:
    shutil.copytree(adapter, tmp_path / "copy")
    change_json(tmp_path / "copy/adapter_config.json", change)
    refuse(tmp_path / "copy", rf"cannot load the adapter {tmp_path}/copy")


@pytest.mark.parametrize("base", ["llava"], indirect=True)
@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b'{"model": 3}'], ids=str)
def test_a_lost_or_damaged_tokenizer_is_one_error(base: Path, tmp_path: Path, content: bytes | None) -> None:
    shutil.copytree(base, tmp_path / "copy")
    file = tmp_path / "copy/tokenizer.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    refuse(tmp_path / "copy", rf"cannot load the processor of {tmp_path}/copy")


@pytest.mark.parametrize("base", ["llava"], indirect=True)
@pytest.mark.parametrize("ends", [1e308, "2", [2, None], -1, 2**63, True, {}], ids=str)
def test_end_tokens_that_are_no_ids_are_refused(base: Path, tmp_path: Path, ends: Any) -> None:
    shutil.copytree(base, tmp_path / "copy")
    change_json(tmp_path / "copy/generation_config.json", {"eos_token_id": ends})
    refuse(tmp_path / "copy", r"cannot load the model|`eos_token_id` must be one of the")


OTHER_NUMBER = "images would get a wrong number of tokens"


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        # AutoProcessor gives a bare tokenizer for a class that it doesn't know, and no number of a config is checked.
        ("llava", {"processor_class": "None"}, "cannot load the processor of"),
        ("llava", {"image_processor": {"rescale_factor": "x"}}, "cannot load the processor of"),
        ("llava", {"vision_feature_select_strategy": "full"}, OTHER_NUMBER),
        ("llava", {"patch_size": 3}, OTHER_NUMBER),
        ("llava", {"num_additional_image_tokens": 0}, OTHER_NUMBER),
        ("qwen2_vl", {"image_processor": {"merge_size": 1}}, OTHER_NUMBER),
    ],
    ids=str,
)
def test_an_odd_processor_is_refused(make, tmp_path: Path, family: str, change: dict, message: str) -> None:
    folder = make.saved(tmp_path, family)
    change_json(tmp_path / PROCESSOR, change)
    refuse(folder, message)


def test_a_processor_that_names_the_side_of_a_token_is_taken(make, tmp_path: Path) -> None:
    """Aya Vision's tokens have `downsample_factor` ** 2 patches."""
    tokenizer, sizes = make.tokenizer("llava"), {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes["num_attention_heads"] = 2
    text = {**sizes, "model_type": "cohere2", "vocab_size": len(tokenizer), "num_key_value_heads": 1}
    vision = {**sizes, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 7}
    config = AutoConfig.for_model(
        "aya_vision", text_config={**text, "eos_token_id": 2}, vision_config=vision, downsample_factor=2
    )
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    images = GotOcr2ImageProcessorPil(size={"height": 28, "width": 28})
    template = tokenizer.chat_template
    processor = AyaVisionProcessor(images, tokenizer, 7, 28, downsample_factor=2, chat_template=template)
    processor.save_pretrained(tmp_path)
    assert load(str(tmp_path)).processor.patch_size == 14


@pytest.mark.parametrize("name", ["patch_size", "num_additional_image_tokens", "vision_feature_select_strategy"])
def test_what_a_llava_processor_does_not_say_is_as_its_model_says(make, tmp_path: Path, name: str) -> None:
    folder = make.saved(tmp_path, "llava")
    change_json(tmp_path / PROCESSOR, {name: None})

    rendered = load(folder).renderer.prefix("Why?", make.image())

    assert rendered.ids.count(make.processor("llava").image_token_id) == 16


@pytest.mark.parametrize("change", [{"crop_size": {"height": None, "width": 32}}, {"size": {"shortest_edge": None}}])
def test_odd_settings_of_an_image_processor_are_refused_however_images_are_fitted(make, tmp_path, change: dict) -> None:
    make.saved(tmp_path, "llava")
    change_json(tmp_path / PROCESSOR, {"image_processor": change})
    for fit in ("pad", "crop", "processor"):
        with pytest.raises(UserError, match=r"cannot (use the settings of|load) .*processor"):
            load(str(tmp_path), images=ImageSettings(fit))


@pytest.mark.parametrize("text", [{}, None])
def test_a_config_of_a_far_larger_model_is_refused_before_that_is_built(
    make, tmp_path, text: dict | None, monkeypatch
) -> None:
    """transformers would build it, and fill what is missing with random numbers: 28 GB of them."""
    folder = make.saved(tmp_path, "llava")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"text_config": text}))
    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", lambda *_, **__: pytest.fail("it was built"))

    refuse(folder, r"describes more than 3,0\d\d M parameters, and its weights have")

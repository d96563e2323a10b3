"""EVA-CLIP by its published names and numbers, and against a reference that is written out here."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import CLIPTokenizer

from reflectune.core.errors import UserError
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.eva_clip import EvaClip

TEXT_8B = {"hidden_act": "gelu", "hidden_size": 1280, "intermediate_size": 5120, "layer_norm_eps": 1e-05}
TEXT_8B |= {"max_position_embeddings": 77, "num_attention_heads": 20, "num_hidden_layers": 32, "vocab_size": 49408}
TEXT_8B |= {"k_bias": True, "q_bias": True, "v_bias": True}
VISION_8B = {"hidden_act": "gelu", "hidden_size": 4096, "intermediate_size": 20480, "layer_norm_eps": 1e-06}
VISION_8B |= {"image_size": 224, "patch_size": 14, "num_channels": 3, "num_attention_heads": 32}
VISION_8B |= {"num_hidden_layers": 32, "k_bias": False, "q_bias": False, "v_bias": False, "use_rms_norm": True}
PUBLISHED = {
    "architectures": ["EvaCLIPModel"],
    "auto_map": {"AutoConfig": "configuration_evaclip.EvaCLIPConfig", "AutoModel": "modeling_evaclip.EvaCLIPModel"},
    "logit_scale_init_value": 2.659260036932778,
    "model_type": "clip",
    "projection_dim": 1280,
    "text_config": TEXT_8B,
    "vision_config": VISION_8B,
}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
TINY = {
    **PUBLISHED,
    "projection_dim": 24,
    "text_config": {**TEXT_8B, **SMALL, "max_position_embeddings": 16},
    "vision_config": {**VISION_8B, **SMALL, "image_size": 56},
}
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def test_names_and_sizes_are_the_published_ones() -> None:
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in EvaClip(PUBLISHED).state_dict().items()}
    assert len(shapes) == 875
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == pytest.approx(8.22e9, rel=1e-3)
    layer, square = "vision_model.encoder.layers.31.", (4096, 4096)
    assert {name.removeprefix(layer): shape for name, shape in shapes.items() if name.startswith(layer)} == {
        **{f"self_attn.{part}_proj.weight": square for part in ("q", "k", "v", "out")},
        **dict.fromkeys(("self_attn.out_proj.bias", "layer_norm1.weight", "layer_norm2.weight"), (4096,)),
        "mlp.fc1.weight": (20480, 4096),
        "mlp.fc1.bias": (20480,),
        "mlp.fc2.weight": (4096, 20480),
        "mlp.fc2.bias": (4096,),
    }
    assert {name: shape for name, shape in shapes.items() if ".layers." not in name} == {
        "logit_scale": (),
        "vision_model.embeddings.class_embedding": (4096,),
        "vision_model.embeddings.patch_embedding.weight": (4096, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (257, 4096),
        "vision_model.post_layernorm.weight": (4096,),
        "visual_projection.weight": (1280, 4096),
        "text_model.embeddings.token_embedding.weight": (49408, 1280),
        "text_model.embeddings.position_embedding.weight": (77, 1280),
        "text_model.final_layer_norm.weight": (1280,),
        "text_model.final_layer_norm.bias": (1280,),
        "text_projection.weight": (1280, 1280),
    }
    parts = Counter(name.split(".")[-1] for name in shapes if name.startswith("text_model.encoder.layers.0."))
    assert parts == {"weight": 8, "bias": 8}


def random_weights(config: dict, biases: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {name: torch.randn(one.shape) * 0.2 for name, one in EvaClip(config, biases).state_dict().items()}


def write(folder: Path, config: dict, weights: dict[str, torch.Tensor]) -> str:
    """A repository as published: CLIP's tokenizer by its word lists, no config of an image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "th", "the</w>"]
    vocabulary = {word: place for place, word in enumerate(words)}
    vocabulary |= {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    special = {**ends, "pad_token": "<|endoftext|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    own = {**special, "model_max_length": 77, "tokenizer_class": "CLIPTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: weights[name] for name in part}, folder / f"model-0000{number}-of-00002.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return random_weights(TINY)


@pytest.fixture
def tiny(tmp_path: Path, weights) -> str:
    return write(tmp_path / "eva", TINY, weights)


def norm(states: torch.Tensor, weights: dict, name: str, eps: float) -> torch.Tensor:
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if bias is None:
        return states / (states.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight
    centred = states - states.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def linear(states: torch.Tensor, weights: dict, name: str) -> torch.Tensor:
    bias = weights.get(f"{name}.bias")
    return states @ weights[f"{name}.weight"].T + (0 if bias is None else bias)


def tower(states: torch.Tensor, weights: dict, name: str, eps: float, *, causal: bool, behind: bool = False):
    """Two layers of four heads over one sequence of shape (tokens, 32), head by head."""
    seen = torch.ones(len(states), len(states)).tril() if causal else torch.ones(len(states), len(states))
    for number in range(2):
        layer = f"{name}.encoder.layers.{number}"
        before = states if behind else norm(states, weights, f"{layer}.layer_norm1", eps)
        q, k, v = (linear(before, weights, f"{layer}.self_attn.{part}_proj") for part in "qkv")
        heads = []
        for head in range(4):
            at = slice(8 * head, 8 * head + 8)
            scores = (q[:, at] @ k[:, at].T / 8**0.5).masked_fill(seen == 0, -torch.inf)
            heads.append(scores.softmax(-1) @ v[:, at])
        attended = linear(torch.cat(heads, dim=-1), weights, f"{layer}.self_attn.out_proj")
        states = states + (norm(attended, weights, f"{layer}.layer_norm1", eps) if behind else attended)
        before = states if behind else norm(states, weights, f"{layer}.layer_norm2", eps)
        made = linear(functional.gelu(linear(before, weights, f"{layer}.mlp.fc1")), weights, f"{layer}.mlp.fc2")
        states = states + (norm(made, weights, f"{layer}.layer_norm2", eps) if behind else made)
    return states


def image_vector(pixels: torch.Tensor, weights: dict, *, behind: bool = False) -> torch.Tensor:
    """Of pixels of shape (3, 56, 56): 16 patches row by row."""
    name = "vision_model.embeddings"
    kernel = weights[f"{name}.patch_embedding.weight"].reshape(32, -1)
    bias = weights.get(f"{name}.patch_embedding.bias", torch.zeros(32))
    patches = [
        kernel @ pixels[:, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14].reshape(-1) + bias
        for row in range(4)
        for column in range(4)
    ]
    states = torch.stack([weights[f"{name}.class_embedding"], *patches])
    states = states + weights[f"{name}.position_embedding.weight"]
    states = tower(states, weights, "vision_model", 1e-6, causal=False, behind=behind)
    vector = linear(norm(states[0], weights, "vision_model.post_layernorm", 1e-6), weights, "visual_projection")
    return vector / vector.norm()


def text_vector(ids: list[int], weights: dict) -> torch.Tensor:
    """Of a text that ends with its end token."""
    name = "text_model.embeddings"
    states = weights[f"{name}.token_embedding.weight"][ids] + weights[f"{name}.position_embedding.weight"][: len(ids)]
    states = norm(tower(states, weights, "text_model", 1e-5, causal=True), weights, "text_model.final_layer_norm", 1e-5)
    vector = linear(states[-1], weights, "text_projection")
    return vector / vector.norm()


def published_pixels(image: Image.Image, side: int) -> torch.Tensor:
    """The shortest side to `side` by bicubic interpolation, the centre, and CLIP's mean and deviation."""
    width, height = image.size
    short = min(width, height)
    image = image.resize((side * width // short, side * height // short), Image.Resampling.BICUBIC)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    values = torch.tensor(np.array(image.crop((left, top, left + side, top + side)))).permute(2, 0, 1) / 255
    return (values - torch.tensor(CLIP_MEAN)[:, None, None]) / torch.tensor(CLIP_STD)[:, None, None]


def test_vectors_are_those_of_the_reference(tiny, weights, draw_image) -> None:
    encoder = load_encoder(tiny)
    images = [draw_image(1), draw_image(2).resize((120, 70))]
    expected = torch.stack([image_vector(published_pixels(image, 56), weights) for image in images])
    np.testing.assert_allclose(encoder.encode_images(images), expected, atol=2e-5)
    texts = ["the owl", "tower", "the red owl eats the mice of the tower"]
    ids = [CLIPTokenizer.from_pretrained(tiny)(text, truncation=True, max_length=16)["input_ids"] for text in texts]
    assert len(ids[2]) == 16
    assert all(row[-1] == 49407 for row in ids)
    expected = torch.stack([text_vector(row, weights) for row in ids])
    np.testing.assert_allclose(encoder.encode_texts(texts), expected, atol=2e-5)
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, 24)
    assert encoder.dimensions == 24


def test_other_towers_of_the_family_follow_their_config(tmp_path, draw_image) -> None:
    change = {"use_rms_norm": False, "post_layernorm": True, "q_bias": True, "v_bias": True}
    config = {**TINY, "vision_config": {**TINY["vision_config"], **change}}
    weights = random_weights(config, ("vision_model.embeddings.patch_embedding.bias", "visual_projection.bias"))
    weights["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    encoder = load_encoder(write(tmp_path / "plus", config, weights))
    expected = image_vector(published_pixels(draw_image(1), 56), weights, behind=True)
    np.testing.assert_allclose(encoder.encode_images([draw_image(1)])[0], expected, atol=2e-5)


def test_bfloat16_is_near_and_another_encoder(tiny, draw_image) -> None:
    exact, half = load_encoder(tiny), load_encoder(tiny, dtype="bfloat16")
    images = [draw_image(number) for number in range(3)]
    assert (exact.encode_images(images) * half.encode_images(images)).sum(1).min() > 0.99
    assert exact.fingerprint != half.fingerprint
    assert (exact.precision, half.precision) == ("float32", "bfloat16")


def test_pickled_weights_are_read_as_tensors_alone(tiny, weights, draw_image, tmp_path) -> None:
    folder = Path(write(tmp_path / "bin", TINY, weights))
    for path in folder.glob("*.safetensors"):
        torch.save(load_file(path), folder / f"pytorch_{path.stem}.bin")
        path.unlink()
    found, expected = load_encoder(str(folder)), load_encoder(tiny)
    np.testing.assert_array_equal(found.encode_images([draw_image(1)]), expected.encode_images([draw_image(1)]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"visual_projection.weight": None}, "lacks 1 of its weights, e.g. visual_projection.weight"),
        ({"vision_model.rope.freqs": torch.ones(3)}, "has 1 weights that its class doesn't know"),
        ({"text_projection.weight": torch.ones(24, 8)}, r"text_projection.weight \(24 × 8, not 24 × 32\)"),
        ({"text_projection.weight": torch.full((24, 32), torch.nan)}, "has NaN or infinite values in 1 of its weights"),
    ],
    ids=["missing", "unknown", "shape", "nan"],
)
def test_other_weights_are_refused_in_one_line(tmp_path, weights, change, told) -> None:
    changed = {name: one for name, one in {**weights, **change}.items() if one is not None}
    with pytest.raises(UserError, match=told) as error:
        load_encoder(write(tmp_path / "eva", TINY, changed))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tower_change", "told"),
    [
        ({"use_rope": True}, "it has use_rope, which EVA-CLIP-8B and 18B don't"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"hidden_act": "no such thing"}, "lacks 'no such thing'|cannot be loaded"),
        ({"num_hidden_layers": "two"}, "cannot be loaded"),
    ],
    ids=["eva02", "size", "activation", "type"],
)
def test_another_config_is_refused_in_one_line(tmp_path, weights, tower_change, told) -> None:
    tower = {**TINY["vision_config"], **tower_change}
    config = {**TINY, "vision_config": {name: one for name, one in tower.items() if one is not None}}
    with pytest.raises(UserError, match=told) as error:
        load_encoder(write(tmp_path / "eva", config, weights))
    assert "\n" not in str(error.value)


def test_a_truncated_file_is_refused(tiny) -> None:
    path = next(Path(tiny).glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be loaded"):
        load_encoder(tiny)


def test_the_code_that_the_repository_brings_is_not_run(tiny, draw_image, tmp_path) -> None:
    proof = tmp_path / "ran"
    for name in ("configuration_evaclip", "modeling_evaclip"):
        Path(tiny, f"{name}.py").write_text(f"open({str(proof)!r}, 'w')\n")
    load_encoder(tiny).encode_images([draw_image(1)])
    assert not proof.exists()

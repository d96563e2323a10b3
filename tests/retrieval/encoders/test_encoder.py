import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor, CLIPModel, CLIPVisionConfig, CLIPVisionModel, SiglipConfig, SiglipModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.examples.miniature import models as miniature
from reflectune.retrieval.encoders.base import resized
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.encoder import load_encoder


def test_vectors_are_those_of_the_model_itself_at_length_1(clip_folder, encoder, draw_image) -> None:
    model, processor = CLIPModel.from_pretrained(clip_folder).eval(), AutoProcessor.from_pretrained(clip_folder)
    texts, images = ["the red owl", "tower"], [draw_image(1), draw_image(2).resize((80, 50))]
    with torch.no_grad():
        out = model(**processor(text=texts, images=images, padding=True, return_tensors="pt"))
    for vectors, expected in (
        (encoder.encode_images(images), out.image_embeds),
        (encoder.encode_texts(texts), out.text_embeds),
    ):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert vectors.dtype == np.float32


def test_a_clip_with_code_of_its_own_is_read_as_a_clip(clip_folder, encoder, draw_image, tmp_path) -> None:
    folder = tmp_path / "bge_vl"  # BAAI/BGE-VL-large's layout
    shutil.copytree(clip_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["CLIPModel"], "auto_map": {"AutoModel": "modeling_MMRet_CLIP.CLIPModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_MMRet_CLIP.py").write_text("raise RuntimeError('run')")
    found = load_encoder(str(folder))
    np.testing.assert_array_equal(found.encode_images([draw_image(1)]), encoder.encode_images([draw_image(1)]))
    np.testing.assert_array_equal(found.encode_texts(["owl"]), encoder.encode_texts(["owl"]))


def test_a_vector_does_not_depend_on_its_companions(encoder, draw_image) -> None:
    texts = ["owl", "the red owl of the tower", "x"]
    np.testing.assert_allclose(
        encoder.encode_texts(texts), np.concatenate([encoder.encode_texts([text]) for text in texts]), atol=1e-6
    )


@pytest.mark.parametrize("value", [0.0, 3e38])
@pytest.mark.parametrize("tower", ["visual", "text"])
def test_vectors_that_are_zero_or_no_numbers_are_refused(clip_folder, tmp_path, draw_image, tower, value) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(clip_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights[f"{tower}_projection.weight"].fill_(value)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"damaged computes vectors that are zero or not finite"):
        load_encoder(str(folder)).encode_images([draw_image(1)])


def test_a_grey_image_is_read_as_colour(encoder, draw_image) -> None:
    grey = draw_image(3).convert("L")
    np.testing.assert_array_equal(encoder.encode_images([grey]), encoder.encode_images([grey.convert("RGB")]))


@pytest.fixture
def siglip_folder(clip_folder, tmp_path) -> str:
    """A tiny random SigLIP with CLIP's tokenizer; it pools the last position, so padding matters."""
    clip = CLIPModel.from_pretrained(clip_folder).config
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = {"vocab_size": clip.text_config.vocab_size, "max_position_embeddings": 12, "projection_size": 16}
    draw_image = {"image_size": clip.vision_config.image_size, "patch_size": clip.vision_config.patch_size}
    shutil.copytree(clip_folder, tmp_path / "siglip", ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    torch.manual_seed(0)
    config = SiglipConfig(text_config={**tower, **words}, vision_config={**tower, **draw_image})
    SiglipModel(config).save_pretrained(tmp_path / "siglip")
    return str(tmp_path / "siglip")


def test_siglip_reads_texts_padded_to_full_length(siglip_folder, draw_image) -> None:
    encoder = load_encoder(siglip_folder)
    model, processor = SiglipModel.from_pretrained(siglip_folder).eval(), AutoProcessor.from_pretrained(siglip_folder)
    texts, images = ["owl", "the red owl"], [draw_image(1)]
    inputs = processor(text=texts, images=images, padding="max_length", max_length=12, return_tensors="pt")
    with torch.no_grad():
        out = model(**inputs)
    np.testing.assert_allclose(encoder.encode_texts(texts), out.text_embeds, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_texts(texts[:1]), out.text_embeds[:1], atol=1e-6)
    np.testing.assert_allclose(encoder.encode_images(images), out.image_embeds, atol=1e-6)


def test_siglip_reads_lower_case_where_its_tokenizer_keeps_capitals(siglip_folder, encoder) -> None:
    """SigLIP2's repositories name such a tokenizer. A CLIP is given the text as it is."""
    siglip = load_encoder(siglip_folder)
    np.testing.assert_array_equal(siglip.encode_texts(["The RED Owl"]), siglip.encode_texts(["the red owl"]))
    assert not np.allclose(encoder.encode_texts(["The RED Owl"]), encoder.encode_texts(["the red owl"]), atol=1e-3)
    file = Path(siglip_folder, "tokenizer.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": {"type": "Lowercase"}}))
    lowering = load_encoder(siglip_folder)
    assert lowering.fingerprint == find_checkpoint(siglip_folder).fingerprint
    assert siglip.fingerprint != find_checkpoint(siglip_folder).fingerprint


def test_a_miniature_is_a_folder_of_the_package() -> None:
    folder = Path(next(iter(miniature.__path__))) / "clip"
    loaded = load_encoder("miniature/clip")
    assert (loaded.name, loaded.fingerprint) == ("miniature/clip", load_encoder(str(folder)).fingerprint)


@pytest.mark.parametrize(
    ("name", "message"),
    [("/no/such/folder", "does not exist"), ("miniature/nothing", "miniature/clip"), ("plain", "does not exist")],
)
def test_an_unknown_encoder_is_refused(name, message) -> None:
    with pytest.raises(UserError, match=message):
        load_encoder(name)


def test_a_device_that_is_not_there_is_refused(clip_folder) -> None:
    with pytest.raises(UserError, match="device `abacus`"):
        load_encoder(clip_folder, device="abacus")


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_encoder_is_named(clip_folder, tmp_path, name) -> None:
    shutil.copytree(clip_folder, tmp_path / "clip")
    path = tmp_path / "clip" / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=str(tmp_path / "clip")):
        load_encoder(str(tmp_path / "clip"))


def test_weights_that_are_missing_more_of_another_shape_or_not_finite_are_named(clip_folder, tmp_path) -> None:
    def write(number: int, change: dict[str, torch.Tensor | None]) -> str:
        folder = shutil.copytree(clip_folder, tmp_path / str(number))
        weights = {name: weight.clone() for name, weight in {**whole, **change}.items() if weight is not None}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)

    whole = load_file(Path(clip_folder, "model.safetensors"))
    name = "vision_model.encoder.layers.0.mlp.fc1.weight"
    changes: dict[str, dict[str, torch.Tensor | None]] = {
        r"lacks 1 of its weights, e\.g\. visual_projection\.weight": {"visual_projection.weight": None},
        r"has 1 weights that its class doesn't know, e\.g\. vision_model\.encoder\.layers\.7": {
            name.replace("layers.0", "layers.7"): whole[name]
        },
        r"has 1 weights of a different shape .*fc1\.weight \(": {name: whole[name][:-1]},
        r"NaN or infinite values in 1 of its weights, e\.g\. \S*fc1\.weight": {name: whole[name] / 0},
    }
    for number, (message, change) in enumerate(changes.items()):
        with pytest.raises(UserError, match=message):
            load_encoder(write(number, change))
    load_encoder(write(9, {"classifier.weight": whole[name], "vision_model.embeddings.position_ids": whole[name]}))


def test_a_model_that_reads_no_text_is_refused(tmp_path) -> None:
    config = CLIPVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=8, patch_size=4
    )
    CLIPVisionModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="clip_vision_model"):
        load_encoder(str(tmp_path))


def test_an_image_processor_that_cannot_compute_is_refused(clip_folder, tmp_path) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(clip_folder, folder)
    path = next(file for file in folder.glob("*processor_config.json") if "rescale_factor" in file.read_text())
    path.write_text(path.read_text().replace('"rescale_factor": 0.00392156862745098', '"rescale_factor": "x"'))
    with pytest.raises(UserError, match=r"the image processor of .*odd cannot be loaded"):
        load_encoder(str(folder))


def test_a_tokenizer_that_cannot_be_read_is_refused(clip_folder, tmp_path) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(clip_folder, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": [[]]}))
    with pytest.raises(UserError, match=r"the tokenizer of .*odd cannot be loaded"):
        load_encoder(str(folder))


@pytest.mark.parametrize(
    "processor",
    [
        CLIPImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 36, "width": 36}),
        CLIPImageProcessorPil(size={"height": 20, "width": 44}, do_center_crop=False),
        SiglipImageProcessorPil(size={"height": 32, "width": 32}),
        CLIPImageProcessorPil(do_resize=False, crop_size={"height": 36, "width": 36}),
    ],
    ids=["clip", "clip of two sides", "siglip", "no resizing"],
)
@given(width=st.integers(1, 120), height=st.integers(1, 120))
@settings(deadline=None, max_examples=25)
def test_resizing_ahead_of_the_processor_changes_no_bit(processor: Any, width: int, height: int) -> None:
    pixels = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    expected, found = (
        processor(images=[one], return_tensors="pt")["pixel_values"] for one in (image, resized(image, processor))
    )
    assert torch.equal(found, expected)

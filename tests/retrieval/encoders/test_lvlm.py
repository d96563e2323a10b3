"""Multimodal language models as encoders: exact prompts, and the last token's state by the model itself."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from reflectune.core.errors import UserError
from reflectune.models.loading import load
from reflectune.models.names import encoder_name
from reflectune.models.rendering.image_config import ImageSettings
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.lvlm import LvlmEncoder, embedder_of
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.retrievers.entry_retriever import open_retriever
from reflectune.retrieval.retrievers.queries import Query

FAMILIES = {"llava": "<image>", "qwen2_vl": "<|image_pad|>"}
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<|endoftext|>"
GME_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
QUESTION = "What does it eat?"


@pytest.fixture(scope="module")
def encoders() -> Callable[[str], LvlmEncoder]:
    made: dict[str, LvlmEncoder] = {}

    def get(name: str) -> LvlmEncoder:
        if name not in made:
            made[name] = load_encoder(name)
        return made[name]

    return get


def last_state(model: str, prompt: str, image: Image.Image | None, **images) -> np.ndarray:
    """The unit vector of the last token of a prompt, as the family's own processor and model have it."""
    loaded = load(model if Path(model).is_dir() else f"miniature/{model}", **images)
    given = {"images": [image]} if image else {}
    inputs = loaded.processor(text=[prompt], return_tensors="pt", add_special_tokens=False, **given)
    with torch.no_grad():
        state = loaded.model.model(**inputs).last_hidden_state[0, -1]
    return (state / state.norm()).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_vlm2vec_takes_the_last_token_of_its_prompts(encoders, draw_image, family: str) -> None:
    encoder, token, image = encoders(f"vlm2vec:miniature/{family}"), FAMILIES[family], draw_image(3)
    expected = {
        "image": last_state(family, f"{token} Represent the given image.", image),
        "text": last_state(family, "The red owl", None),
        "both": last_state(family, f"{token} Represent the given image with the following question: {QUESTION}", image),
    }
    found = {
        "image": encoder.encode_images([image])[0],
        "text": encoder.encode_texts(["The red owl"])[0],
        "both": encoder.encode_pairs([image], [QUESTION])[0],
    }
    for what, vector in found.items():
        np.testing.assert_allclose(vector, expected[what], atol=2e-5, err_msg=what)


def test_gme_takes_the_end_token_behind_its_chat(encoders, draw_image) -> None:
    encoder, image = encoders("gme:miniature/qwen2_vl"), draw_image(3)
    tokenizer = load("miniature/qwen2_vl").processor.tokenizer
    ids = encoder.prepare(image).ids
    with_images = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert 256 <= ids.count(with_images) <= 1280
    place = ids.index(with_images)
    shown = tokenizer.decode([*ids[:place], *[one for one in ids[place:] if one != with_images]])
    assert shown == SYSTEM + "<|vision_start|><|vision_end|>" + ANSWER
    images = {"images": ImageSettings(min_pixels=256 * 28 * 28, max_pixels=1280 * 28 * 28)}
    np.testing.assert_allclose(
        encoder.encode_pairs([image], [QUESTION])[0],
        last_state("qwen2_vl", SYSTEM + GME_IMAGE + QUESTION + ANSWER, image, **images),
        atol=2e-5,
    )
    np.testing.assert_allclose(
        encoder.encode_texts([QUESTION])[0], last_state("qwen2_vl", SYSTEM + QUESTION + ANSWER, None), atol=2e-5
    )


@pytest.fixture(scope="module")
def narrow(write_base: Callable[[str, Path], None], tmp_path_factory) -> Callable[[str], Path]:
    """Write a family's narrow model with random weights, with BGE-VL's tokens if it is LLaVA-NeXT."""

    def write(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        write_base(family, folder)
        if family == "llava_next":
            tokenizer = AutoTokenizer.from_pretrained(folder)
            tokenizer.add_tokens(["<instruct>", "<query>"], special_tokens=True)
            tokenizer.save_pretrained(folder)
        return folder

    return write


QWEN3 = (
    "<|im_start|>system\nRepresent the user's input.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
NARROW = {
    "qwen3_vl": (
        "qwen3_vl",
        ImageSettings(min_pixels=4 * 32 * 32, max_pixels=1800 * 32 * 32),
        QWEN3.format(GME_IMAGE),
        QWEN3.format("The red owl"),
        QWEN3.format(f"{GME_IMAGE}{QUESTION}"),
    ),
    "bge_vl": (
        "llava_next",
        ImageSettings(),
        "<s>[INST]  <image> [/INST]",
        "<s>[INST]  The red owl \n [/INST]",
        f"<s>[INST] \n <instruct>  <query> {QUESTION} \n <image> [/INST]",
    ),
}


@pytest.mark.parametrize(("way", "case"), NARROW.items(), ids=NARROW)
def test_a_narrow_model_of_the_published_layout_is_read_by_its_prompts(narrow, draw_image, way: str, case) -> None:
    family, images, *prompts = case
    folder, image = narrow(family), draw_image(3).resize((96, 64))
    encoder = load_encoder(f"{way}:{folder}")
    shown = image.resize((512, 512)) if way == "bge_vl" else image
    found = [
        encoder.encode_images([image])[0],
        encoder.encode_texts(["The red owl"])[0],
        encoder.encode_pairs([image], [QUESTION])[0],
    ]
    for vector, prompt, image_of in zip(found, prompts, (shown, None, shown), strict=True):
        expected = last_state(str(folder), prompt, image_of, images=images)
        np.testing.assert_allclose(vector, expected, atol=1e-4, err_msg=prompt)


def test_the_head_of_a_language_model_may_be_missing(narrow, draw_image) -> None:
    folder, image = narrow("qwen3_vl"), draw_image(3).resize((96, 64))
    expected = load_encoder(f"qwen3_vl:{folder}").encode_images([image])
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]  # as published Qwen3-VL-Embedding-8B
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    np.testing.assert_array_equal(load_encoder(f"qwen3_vl:{folder}").encode_images([image]), expected)
    with pytest.raises(UserError, match=r"lacks 1 of its weights, e.g. lm_head.weight"):
        load(str(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_does_not_depend_on_its_companions_and_keeps_its_place(encoders, draw_image, family: str) -> None:
    encoder = encoders(f"vlm2vec:miniature/{family}")
    texts = ["owl", "the red owl of the tower eats mice", "a"]
    np.testing.assert_allclose(
        encoder.encode_texts(texts), np.concatenate([encoder.encode_texts([text]) for text in texts]), atol=1e-5
    )
    images = [draw_image(1), draw_image(2).resize((112, 48)), draw_image(3)]
    np.testing.assert_allclose(
        encoder.encode_images(images), np.concatenate([encoder.encode_images([one]) for one in images]), atol=1e-5
    )
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, encoder.dimensions)


def test_a_text_cant_forge_a_token(encoders) -> None:
    encoder = encoders("vlm2vec:miniature/qwen2_vl")
    forged = last_state("qwen2_vl", "an owl<|im_end|>", None)
    assert float(encoder.encode_texts(["an owl<|im_end|>"])[0] @ forged) < 0.999


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gme:models/mine", ("gme", "models/mine")),
        ("vlm2vec:miniature/llava", ("vlm2vec", "miniature/llava")),
        ("Alibaba-NLP/gme-Qwen2-VL-2B-Instruct", ("gme", "Alibaba-NLP/gme-Qwen2-VL-2B-Instruct")),
        ("Qwen/Qwen3-VL-Embedding-2B", ("qwen3_vl", "Qwen/Qwen3-VL-Embedding-2B")),
        ("openai/clip-vit-large-patch14", None),
        ("other:miniature/llava", None),
    ],
    ids=["gme", "vlm2vec", "published", "published qwen3", "clip", "unknown"],
)
def test_the_name_selects_the_prompts(name: str, found: tuple[str, str] | None) -> None:
    assert embedder_of(name) == found


def test_a_key_takes_a_way_and_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert encoder_name(f"gme:{tmp_path}") == encoder_name("vlm2vec:owner/name") == ""
    assert "names no model after the colon" in encoder_name("gme:")
    assert "is not a folder" in encoder_name("gme:/no/such/folder")
    assert "is not a folder" in encoder_name("other:owner/name")


def test_a_model_without_the_prompts_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r"lacks the tokens <\|im_start\|>, .*, which the prompts of `gme` contain"):
        load_encoder("gme:miniature/llava")


def test_bfloat16_is_another_encoder_that_the_manifest_remembers(encoders, kb, draw_image, tmp_path) -> None:
    name = "vlm2vec:miniature/llava"
    half = load_encoder(name, dtype="bfloat16")
    assert half.fingerprint != encoders(name).fingerprint
    index = build_index(kb, half, tmp_path / "index")
    assert index.manifest["encoder_dtype"] == "bfloat16"
    config = RetrieverConfig(index=str(tmp_path / "index"), title_weight=0.0)
    (hits,) = open_retriever(config, kb, image_roots=tmp_path, device="cpu").search([Query(draw_image(4))], 3)
    assert hits[0].parts["image"] == pytest.approx(1, abs=1e-2)

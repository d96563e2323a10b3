"""`pair:IMAGE+TEXT`: both models as published, and a search equal to that of concatenated vectors in a flat index."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BertConfig,
    BertModel,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    ModernBertConfig,
    ModernBertModel,
    Qwen3Config,
    Qwen3Model,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.core.types import Entry
from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.models.names import encoder_name
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.presets import TASK
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, equation_3, equation_7

TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS = "owl tower river red old query passage Instruct Query: Given a web search nº 0 1 2 3 4 5 6 7 8 9".split()


def vision(kind: str, folder: Path, clip_folder: str) -> Callable[[Any], torch.Tensor]:
    """Write a tiny random image tower, and return the vectors that its class computes of images."""
    torch.manual_seed(5)
    sizes = {**TOWER, "image_size": 32, "patch_size": 16}
    processor: Any = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    if kind == "clip":
        model: Any = CLIPModel.from_pretrained(clip_folder)
        processor = AutoImageProcessor.from_pretrained(clip_folder, backend="pil")
    elif kind == "clip_vision_model":
        model = CLIPVisionModelWithProjection(CLIPVisionConfig(**sizes, projection_dim=24))
    elif kind == "siglip":
        text = {**TOWER, "vocab_size": 40, "max_position_embeddings": 12, "projection_size": 16}
        model = SiglipModel(SiglipConfig(text_config=text, vision_config=sizes))
    else:
        model = SiglipVisionModel(SiglipVisionConfig(**sizes))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)

    def expected(images: Any) -> torch.Tensor:
        inputs = processor([draw_image.convert("RGB") for draw_image in images], return_tensors="pt")
        with torch.no_grad():
            whole = hasattr(model, "get_image_features")
            out = model.eval().get_image_features(**inputs) if whole else model.eval()(**inputs)
        rows = out if isinstance(out, torch.Tensor) else getattr(out, "image_embeds", None)
        return torch.nn.functional.normalize(out.pooler_output if rows is None else rows)

    return expected


TEXTS: dict[str, tuple[Callable[[int], Any], str, str, str]] = {
    "intfloat/e5-base-v2": (
        lambda size: BertModel(
            BertConfig(vocab_size=size, **TOWER, max_position_embeddings=512), add_pooling_layer=False
        ),
        "mean",
        "query: ",
        "passage: ",
    ),
    "Alibaba-NLP/gte-modernbert-base": (
        lambda size: ModernBertModel(
            ModernBertConfig(vocab_size=size, **TOWER, pad_token_id=0, reference_compile=False)
        ),
        "cls",
        "",
        "",
    ),
    "Qwen/Qwen3-Embedding-0.6B": (
        lambda size: Qwen3Model(Qwen3Config(vocab_size=size, **TOWER, num_key_value_heads=1, head_dim=8)),
        "last",
        f"Instruct: {TASK}\nQuery:",
        "",
    ),
}
"""Class, pooling and prefixes of a query and a passage, by the model cards."""


def text_model(name: str, folder: Path) -> str:
    torch.manual_seed(6)
    tokenizer = train_tokenizer([" ".join(WORDS)] * 4, 300, "text")
    tokenizer.model_max_length = 8192
    TEXTS[name][0](len(tokenizer)).save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    return str(folder / name)


@pytest.mark.parametrize("kind", ["clip", "clip_vision_model", "siglip", "siglip_vision_model"])
def test_images_are_encoded_by_the_tower_itself(kind, clip_folder, tmp_path, draw_image) -> None:
    expected = vision(kind, tmp_path / kind, clip_folder)
    encoder = load_encoder(f"pair:{tmp_path / kind}+{text_model('intfloat/e5-base-v2', tmp_path)}")
    images = [draw_image(1), draw_image(2).resize((80, 50)), draw_image(3)]
    rows = encoder.encode_images(images)
    np.testing.assert_allclose(rows, expected(images), atol=1e-5)
    assert (encoder.dimensions, len(rows)) == (rows.shape[1], 3)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_pooled_and_prefixed_as_published(name, clip_folder, tmp_path) -> None:
    folder = text_model(name, tmp_path)
    encoder: Any = load_encoder(f"pair:{clip_folder}+{folder}")
    tokenizer, (_, pooling, query, passage) = AutoTokenizer.from_pretrained(folder), TEXTS[name]
    model = TEXTS[name][0](len(tokenizer)).from_pretrained(folder).eval()
    for encode, prefix in ((encoder.encode_texts, query), (encoder.encode_entry_texts, passage)):
        for text in ("the red owl", "old tower " * 100):
            with torch.no_grad():
                hidden = model(**tokenizer(prefix + text, return_tensors="pt")).last_hidden_state[0]
            pooled = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
            np.testing.assert_allclose(encode([text])[0], pooled / pooled.norm(), atol=1e-5)
    longest = 512 if pooling == "mean" else 8192
    assert encoder.longest == longest
    assert encoder.too_long(["owl", "owl " * (longest + 1)]) == [False, True]


@pytest.fixture
def searched(request, clip_folder, encoder, tmp_path, draw_image) -> tuple[Any, Any, np.ndarray]:
    """A pair encoder, its index of 200 entries, and the concatenated vectors of entries; the pair's way by `param`."""
    way, tower = getattr(request, "param", "pair"), encoder
    entries = []
    for number in range(200):
        draw_image(number).save(tmp_path / f"{number}.png")
        words = " ".join(np.random.default_rng(number).choice(WORDS, 6))
        entries.append(Entry(id=f"e{number}", title=f"{words} {number}", images=(f"{number}.png",)))
    kb = write_knowledge_base(tmp_path / "kb", entries, name="kb", image_root="..")
    encoder: Any = load_encoder(f"{way}:{clip_folder}+{text_model('intfloat/e5-base-v2', tmp_path)}")
    index = build_index(kb, encoder, tmp_path / "index")
    images = encoder.encode_images([draw_image(number) for number in range(200)])
    if way == "mixture":  # RA-CM3: the mean of the tower's vectors of image and text
        images = (images + tower.encode_texts([entry.title for entry in entries])) / 2
        images /= np.linalg.norm(images, axis=1, keepdims=True)
    titles = encoder.encode_entry_texts([entry.title for entry in entries])
    return encoder, index, np.concatenate([images, titles], axis=1)


def test_a_thousand_queries_find_what_a_flat_index_of_concatenated_vectors_does(searched, draw_image) -> None:
    encoder, index, rows = searched
    flat = faiss.IndexFlatIP(rows.shape[1])
    flat.add(rows)
    draw = np.random.default_rng(0)
    queries = [Query(draw_image(1000 + n % 20), " ".join(draw.choice(WORDS, 8))) for n in range(1000)]
    images = encoder.encode_images([query.image for query in queries[:20]])
    texts = encoder.encode_texts([query.text for query in queries])
    for weight in (0.5, 0.2):
        joined = np.concatenate([(1 - weight) * np.tile(images, (50, 1)), weight * texts], axis=1)
        scores, places = flat.search(joined.astype(np.float32), 10)
        found = EntryRetriever(index, encoder).search(queries, 10, weights=equation_7(weight))
        assert [[hit.entry_id for hit in hits] for hits in found] == [[f"e{n}" for n in row] for row in places]
        np.testing.assert_allclose([[hit.score for hit in hits] for hits in found], scores, atol=1e-5)


def test_an_image_is_never_compared_with_a_text(searched, draw_image) -> None:
    encoder, index, rows = searched
    retriever = EntryRetriever(index, encoder, title_weight=0.0)
    (hits,) = retriever.search([Query(draw_image(7))], 3)
    assert hits[0].entry_id == "e7"
    assert set(hits[0].parts) == {"image"}
    (by_text,) = retriever.search([Query(text="red owl")], 1)
    assert by_text[0].entry_id == f"e{(rows[:, encoder.dimensions :] @ encoder.encode_texts(['red owl'])[0]).argmax()}"
    for weights in (equation_3(0.5), equation_3(0.5).with_summaries(1), equation_7().fused("vectors")):
        with pytest.raises(UserError, match=r"compares only images with images|set `fusion: scores`|has no summaries"):
            retriever.search([Query(draw_image(7), "owl")], 3, weights=weights)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pair:google/siglip2-so400m-patch14-384+Alibaba-NLP/gte-modernbert-base", ""),
        ("pair:google/siglip2-giant-opt-patch16-384+Qwen/Qwen3-Embedding-0.6B", ""),
        ("pair:miniature/clip+intfloat/e5-base-v2", ""),
        ("mixture:miniature/clip+intfloat/e5-base-v2", ""),
        ("pair:miniature/clip", "no two models"),
        ("mixture:miniature/clip", "give `mixture:IMAGE+TEXT`"),
        ("pair:miniature/clip+miniature/nothing", "no model miniature/nothing"),
        ("pair:no/such/folder+intfloat/e5-base-v2", "no name of a model"),
    ],
)
def test_a_config_names_two_models(name, problem) -> None:
    assert problem in encoder_name(name)
    assert bool(problem) == bool(encoder_name(name))


@pytest.mark.parametrize("searched", ["mixture"], indirect=True)
def test_a_mixture_compares_images_with_images_mixed_with_texts(searched, draw_image) -> None:
    encoder, index, rows = searched
    mixed, titles = np.split(rows, [encoder.dimensions], axis=1)
    stored = index.store.get(np.arange(len(rows)))
    np.testing.assert_allclose(stored["image"], mixed, atol=1e-6)
    np.testing.assert_allclose(stored["title"], titles, atol=1e-6)
    query = Query(draw_image(1001), "the red owl")
    scores = encoder.encode_images([query.image])[0] @ mixed.T + encoder.encode_texts([query.text])[0] @ titles.T
    (hits,) = EntryRetriever(index, encoder).search([query], 10, weights=equation_7(0.5))
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores / 2)[::-1][:10], atol=1e-5)


def test_a_mixture_is_another_encoder_and_needs_a_whole_model(clip_folder, tmp_path) -> None:
    text = text_model("intfloat/e5-base-v2", tmp_path)
    pair, mixture = (load_encoder(f"{way}:{clip_folder}+{text}") for way in ("pair", "mixture"))
    assert pair.fingerprint != mixture.fingerprint
    vision("siglip_vision_model", tmp_path / "tower", clip_folder)
    with pytest.raises(UserError, match="does not encode images and texts into one space"):
        load_encoder(f"mixture:{tmp_path / 'tower'}+{text}")


def test_a_text_model_is_no_image_tower(tmp_path) -> None:
    folder = text_model("intfloat/e5-base-v2", tmp_path)
    with pytest.raises(UserError, match="is a `bert`; an image tower is a clip_vision_model"):
        load_encoder(f"pair:{folder}+{folder}")

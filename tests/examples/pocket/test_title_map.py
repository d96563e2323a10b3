"""Images and titles of two models: the map between them, the encoder, the index and the search."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoImageProcessor, BertConfig, BertModel, CLIPVisionConfig, CLIPVisionModelWithProjection

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.examples.pocket import fit_title_map as command
from reflectune.examples.pocket.fit_title_map import TitleMapConfig, run
from reflectune.examples.pocket.mapped_encoder import MappedEncoder
from reflectune.examples.pocket.title_map import SHIPPED, TitleMap, fit_title_map, read_title_map, write_title_map
from reflectune.examples.pocket.training_images import training_images
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query

TITLE, IMAGE = 16, 24


@pytest.fixture(scope="session")
def vision_folder(clip_folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a tiny random image tower with a projection into 24 dimensions, and CLIP's image processor."""
    folder = tmp_path_factory.mktemp("vision")
    torch.manual_seed(3)
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPVisionConfig(**tower, image_size=64, patch_size=16, projection_dim=IMAGE)
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    AutoImageProcessor.from_pretrained(clip_folder, backend="pil").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a tiny random text model of 16 dimensions that declares mean pooling."""
    folder = tmp_path_factory.mktemp("text")
    torch.manual_seed(4)
    tokenizer = train_tokenizer(["owl nº 0 1 2 3 4 5 6 7 8 9"] * 4, 300, "text")
    size: dict[str, Any] = {"hidden_size": TITLE, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_attention_heads=2, **size)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return str(folder)


@pytest.fixture
def map_file(vision_folder: str, text_folder: str, tmp_path: Path) -> Path:
    """Write a random map between the two."""
    draw = np.random.default_rng(0)
    weight, bias = draw.normal(size=(IMAGE, TITLE)), draw.normal(size=TITLE)
    record = {"vision": vision_folder, "text": text_folder}
    path = tmp_path / "map.safetensors"
    write_title_map(path, TitleMap(weight.astype(np.float32), bias.astype(np.float32), record))
    return path


@pytest.fixture
def pair(map_file: Path) -> Any:
    return encoder_of(map_file)


# The map.


def encoder_of(path: Path) -> MappedEncoder:
    """Load the encoder of a map's file."""
    return MappedEncoder("pocket/clip", path, torch.device("cpu"), torch.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_a_linear_relation_is_found_again() -> None:
    draw = np.random.default_rng(0)
    titles = unit(draw.normal(size=(200, 4)))
    shown = np.repeat(np.arange(50, 150), 2)  # two images each of some entries
    backwards, offset = draw.normal(size=(4, 6)), draw.normal(size=6)
    images = (titles[shown] @ backwards + offset).astype(np.float32)
    weight, bias, found = fit_title_map(images, titles, shown, [1e-9, 10.0])
    assert found["penalty"] == 1e-9
    assert found["held_out_mrr"]["1e-09"] == 1 > found["held_out_mrr"]["10"]
    np.testing.assert_allclose(images @ weight + bias, titles[shown], atol=1e-4)


def test_the_map_minimises_the_penalised_squares_and_leaves_the_intercept_free() -> None:
    draw = np.random.default_rng(1)
    images, titles, shown = draw.normal(size=(30, 5)) + 2, unit(draw.normal(size=(20, 3)) - 1), np.arange(30) % 20
    weight, bias, _ = fit_title_map(images.astype(np.float32), titles, shown, [0.1])
    residual = images @ weight + bias - titles[shown]
    np.testing.assert_allclose(images.T @ residual + 0.1 * 30 * weight, 0, atol=1e-4)  # gradients are zero
    np.testing.assert_allclose(residual.sum(0), 0, atol=1e-4)


def test_images_of_one_entry_are_held_out_together() -> None:
    """Titles have nothing to do with images: one is found only if the map was fitted on its entry."""
    draw = np.random.default_rng(2)
    titles, shown = unit(draw.normal(size=(40, 30))), np.repeat(np.arange(40), 2)
    images = draw.normal(size=(40, 60))[shown].astype(np.float32)
    weight, bias, found = fit_title_map(images, titles, shown, [1e-3])
    assert ((images @ weight + bias) @ titles.T).argmax(1).tolist() == shown.tolist()
    assert found["held_out_mrr"]["0.001"] < 0.25  # by chance: 0.11


def test_a_map_is_read_as_it_was_written_in_fp16(map_file, vision_folder) -> None:
    title_map = read_title_map(map_file)
    assert title_map.record["vision"] == vision_folder
    assert title_map.weight.shape == (IMAGE, TITLE)
    assert title_map.weight.dtype == np.float32
    write_title_map(map_file.with_name("again.safetensors"), title_map)
    assert map_file.with_name("again.safetensors").read_bytes() == map_file.read_bytes()


def test_a_file_that_is_not_a_map_is_refused(tmp_path, map_file) -> None:
    with pytest.raises(UserError, match=r"no title map at .*fit_title_map"):
        encoder_of(tmp_path / "none.safetensors")
    other = tmp_path / "other.safetensors"
    save_file({"weight": np.ones((2, 2), np.float32)}, other)
    with pytest.raises(UserError, match="is not a title map: it holds weight"):
        encoder_of(other)
    other.write_bytes(map_file.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot be read"):
        encoder_of(other)
    record = dict(read_title_map(map_file).record)
    for weight, bias in ((np.full((2, 2), np.inf), np.ones(2)), (np.ones((2, 2)), np.ones(1))):
        write_title_map(other, TitleMap(weight.astype(np.float32), bias.astype(np.float32), record))
        with pytest.raises(UserError, match="all finite"):
            encoder_of(other)


# The encoder.


def test_images_and_titles_have_spaces_of_their_own(pair, map_file, vision_folder, draw_image) -> None:
    assert pair.text_space == "mapped"
    assert (pair.dimensions, pair.title_dimensions) == (IMAGE, TITLE)
    images, texts = pair.encode_images([draw_image(1), draw_image(2)]), pair.encode_texts(["Owl nº 3", "Owl", "nº 1"])
    assert (images.shape, texts.shape) == ((2, IMAGE), (3, TITLE))
    model = CLIPVisionModelWithProjection.from_pretrained(vision_folder).eval()
    processor = AutoImageProcessor.from_pretrained(vision_folder, backend="pil")
    with torch.no_grad():
        expected = model(**processor(images=[draw_image(1), draw_image(2)], return_tensors="pt")).image_embeds.numpy()
    np.testing.assert_allclose(images, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
    mapped, title_map = pair.to_title_space(images), read_title_map(map_file)
    written_out = images[1] @ title_map.weight + title_map.bias
    np.testing.assert_allclose(mapped[1], written_out / np.linalg.norm(written_out), atol=1e-6)
    for vectors in (images, texts, mapped):
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert (pair.encode_images([]).shape, pair.encode_texts([]).shape) == ((0, IMAGE), (0, TITLE))


def test_the_fingerprint_follows_the_map_and_both_models(pair, map_file) -> None:
    before = read_title_map(map_file)
    assert encoder_of(map_file).fingerprint == pair.fingerprint
    write_title_map(map_file, TitleMap(before.weight, before.bias + 1, before.record))
    assert encoder_of(map_file).fingerprint != pair.fingerprint
    for part in ("vision", "text"):
        copy = map_file.parent / part
        shutil.copytree(str(before.record[part]), copy)
        write_title_map(map_file, TitleMap(before.weight, before.bias, {**before.record, part: str(copy)}))
        same = encoder_of(map_file).fingerprint
        (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
        assert encoder_of(map_file).fingerprint != same


def test_a_map_of_other_dimensions_is_refused(map_file, text_folder) -> None:
    title_map = read_title_map(map_file)
    write_title_map(map_file, TitleMap(title_map.weight[:-1], title_map.bias, title_map.record))
    with pytest.raises(UserError, match=f"maps 23 dimensions to 16, but .* has 24 and {text_folder} 16"):
        encoder_of(map_file)


# The index and the search.


def test_scores_are_equation_3_with_each_similarity_in_its_space(kb, entries, pair, tmp_path, draw_image) -> None:
    retriever = EntryRetriever(build_index(kb, pair, tmp_path / "index"), pair)
    hits = {hit.entry_id: hit for hit in retriever.search([Query(draw_image(25))], 10)[0]}
    query = pair.encode_images([draw_image(25)])
    every = [pair.encode_images([load_image(path)])[0] for entry in entries for path in kb.image_paths(entry)]
    for entry in entries:
        own = [pair.encode_images([load_image(path)])[0] for path in kb.image_paths(entry)]
        by_image = max((float(query[0] @ vector) for vector in own), default=float(np.mean(every @ query[0])))
        title = float(pair.to_title_space(query)[0] @ pair.encode_texts([entry.title])[0])
        hit = hits[entry.id]
        assert (hit.parts["image"], hit.parts["title"]) == pytest.approx((by_image, title), abs=1e-5)
        assert hit.score == pytest.approx((by_image + title) / 2, abs=1e-5)


# The command.


@pytest.fixture
def images_file(kb, entries, tmp_path: Path) -> Path:
    """Write every image for training except three: two of a different use, and one of two uses."""
    rows = [{"image": image, "entity": entry.id, "use": "train"} for entry in entries for image in entry.images]
    rows[0]["use"], rows[1]["use"] = "val", "test"
    rows.append({**rows[2], "use": "knowledge base"})
    path = tmp_path / "images.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_images_of_a_different_use_are_left_out(images_file, entries) -> None:
    images = [(image, entry.id) for entry in entries for image in entry.images]
    assert training_images(images_file) == images[3:]
    (images_file.parent / "questions").mkdir()
    for split, (image, _) in (("train", images[3]), ("val_unseen_question", images[4])):
        pq.write_table(pa.table({"image": [image]}), images_file.parent / f"questions/{split}.parquet")
    assert training_images(images_file) == [images[3], *images[5:]]


def test_the_command_writes_an_encoder(
    images_file, kb, vision_folder, text_folder, tmp_path, monkeypatch, capsys
) -> None:
    settings = {"images": images_file, "knowledge": kb.folder, "output": tmp_path / "m.safetensors"}
    settings |= {"vision": vision_folder, "text": text_folder, "device": "cpu"}
    monkeypatch.setattr(sys, "argv", ["fit", *(word for key in settings for word in (f"--{key}", str(settings[key])))])
    command.fit_title_map.main()
    assert "7 images of 5 entities" in capsys.readouterr().out
    fitted: ImageTextEncoder = encoder_of(tmp_path / "m.safetensors")
    record = read_title_map(tmp_path / "m.safetensors").record
    assert (record["images"], record["entities"], record["use"]) == (7, 5, "train")
    assert (record["vision"], record["text"], record["kb_fingerprint"]) == (vision_folder, text_folder, kb.fingerprint)
    assert fitted.text_space == "mapped"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"images\.jsonl:11: not valid JSON"),
        ('{"image": "a.png", "entity": "e", "use": 0}', r"images\.jsonl:11: image, entity and use should be texts"),
        ('{"image": "a.png"}', r"images\.jsonl:11: should be JSON with image, entity and use: KeyError\('entity'\)"),
        (
            '{"image": "images/98.png", "entity": "e99", "use": "train"}',
            "names e99, which .* has no entry with a title of",
        ),
        ('{"image": "images/99.png", "entity": "e1", "use": "train"}', r"99\.png"),
    ],
)
def test_a_bad_row_is_named(row, message, images_file, kb, vision_folder, text_folder, tmp_path) -> None:
    lines = [line for line in images_file.read_text().splitlines() if "knowledge base" not in line]
    images_file.write_text("\n".join([*lines, row]) + "\n")
    paths = {"images": images_file, "knowledge": kb.folder, "output": tmp_path / "m.safetensors"}
    config = TitleMapConfig(**{key: str(path) for key, path in paths.items()}, vision=vision_folder, text=text_folder)
    with pytest.raises(UserError, match=message):
        run(config)
    assert not (tmp_path / "m.safetensors").exists()


def test_all_problems_of_a_config_are_reported_at_once() -> None:
    assert find_problems(TitleMapConfig, {"output": "map.bin", "batch_size": 0}) == [
        "`batch_size` must be at least 1, found 0",
        "`images` is needed",
        "`knowledge` is needed",
        "`output` must end in .safetensors, found map.bin",
    ]


# What is shipped.


def test_the_shipped_map_was_fitted_on_training_images_alone() -> None:
    path = SHIPPED
    assert path.stat().st_size < 500_000
    title_map = read_title_map(path)
    assert title_map.weight.shape == (512, 384)
    record = title_map.record
    assert (record["vision"], record["text"], record["use"]) == ("pocket/vision", "pocket/text", "train")
    assert record["held_out_mrr"][f"{record['penalty']:.3g}"] == max(record["held_out_mrr"].values())

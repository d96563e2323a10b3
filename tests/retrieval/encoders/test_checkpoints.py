"""Files of a model that are read; of a pickle, nothing but tensors."""

import io
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, PreTrainedTokenizerFast

from reflectune.core.errors import UserError
from reflectune.models.names import find_collection
from reflectune.retrieval.encoders.checkpoints import (
    OWN_CODE,
    PICKLED,
    Checkpoint,
    find_checkpoint,
    load_tokenizer,
    load_weights,
)
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import load_index

ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def pickled_copy(folder: str, target: Path) -> Path:
    """The same model with its weights in pytorch_model.bin alone, as older repositories have them."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(Path(folder, "model.safetensors")), target / "pytorch_model.bin")
    return target


@pytest.fixture
def bin_folder(clip_folder: str, tmp_path: Path) -> Path:
    return pickled_copy(clip_folder, tmp_path / "clip_bin")


class Bomb:
    """Leaves a file behind when it is unpickled by a loader that runs what a pickle asks for."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal vectors, but for the last digits: where weights lie in memory decides which kernel adds them up."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-7)


# A folder.


def test_a_tokenizer_ends_texts_as_its_config_says(tmp_path) -> None:
    made = Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "owl": 2, "a": 3}))
    made.pre_tokenizer = Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path)
    checkpoint = Checkpoint("e5-mistral", tmp_path, "", False, "")
    path = tmp_path / "tokenizer_config.json"
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    for ends, expected in ((False, [0, 2, 3, 3]), (True, [0, 2, 3, 1])):
        path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": True, "add_eos_token": ends}))
        ids = load_tokenizer(checkpoint)("owl a a a", truncation=True, max_length=4)["input_ids"]
        assert ids == expected


def test_a_folder_with_a_pickle_alone_gives_the_vectors_of_its_safetensors(bin_folder, encoder, draw_image) -> None:
    same = load_encoder(str(bin_folder))
    assert_same(same.encode_images([draw_image(1)]), encoder.encode_images([draw_image(1)]))
    assert_same(same.encode_texts(["the owl"]), encoder.encode_texts(["the owl"]))
    assert same.fingerprint != encoder.fingerprint


def test_a_pickle_in_parts_is_read_too(clip_folder, encoder, tmp_path, draw_image) -> None:
    target = tmp_path / "parts"
    shutil.copytree(clip_folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_file(Path(clip_folder, "model.safetensors"))
    names, where = sorted(weights), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        torch.save({name: weights[name] for name in part}, target / file)
        where.update(dict.fromkeys(part, file))
    (target / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    vectors = load_encoder(str(target)).encode_images([draw_image(1)])
    assert_same(vectors, encoder.encode_images([draw_image(1)]))


def test_the_fingerprint_follows_the_pickle(bin_folder) -> None:
    before = find_checkpoint(str(bin_folder)).fingerprint
    weights = torch.load(bin_folder / "pytorch_model.bin", weights_only=True)
    weights["logit_scale"] += 1
    torch.save(weights, bin_folder / "pytorch_model.bin")
    assert find_checkpoint(str(bin_folder)).fingerprint != before


def test_safetensors_are_taken_if_both_are_there(clip_folder, tmp_path) -> None:
    shutil.copytree(clip_folder, tmp_path / "both")
    (tmp_path / "both/pytorch_model.bin").write_bytes(b"never opened")
    checkpoint = find_checkpoint(str(tmp_path / "both"))
    assert (checkpoint.pickled, checkpoint.fingerprint) == (False, find_checkpoint(clip_folder).fingerprint)
    load_encoder(str(tmp_path / "both"))


# A pickle that would do something.


@pytest.mark.parametrize("layout", ["saved by torch", "bare pickle", "beside good weights"])
def test_a_malicious_pickle_is_refused_and_never_run(bin_folder, tmp_path, layout) -> None:
    trace, path = tmp_path / "pwned", bin_folder / "pytorch_model.bin"
    bomb = Bomb(trace)
    if layout == "bare pickle":
        path.write_bytes(pickle.dumps({"logit_scale": bomb}))
    elif layout == "saved by torch":
        torch.save({"logit_scale": bomb}, path)
    else:
        torch.save({**torch.load(path, weights_only=True), "more": bomb}, path)
    with pytest.raises(UserError, match=r"pickle that contains more than tensors.*was not loaded.*safetensors"):
        load_encoder(str(bin_folder))
    with pytest.raises(UserError, match=r"was not loaded"):
        load_weights(find_checkpoint(str(bin_folder)), AutoModel, dtype=torch.float32, device=torch.device("cpu"))
    assert not trace.exists()


def test_a_damaged_pickle_is_named(bin_folder) -> None:
    path = bin_folder / "pytorch_model.bin"
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as files:
        files.writestr("hello.txt", "hello")
    for content in (path.read_bytes()[: path.stat().st_size // 2], b"", archive.getvalue()):
        path.write_bytes(content)
        with pytest.raises(UserError, match=str(bin_folder)):
            load_encoder(str(bin_folder))


# The hub, from its cache: the layout that huggingface_hub keeps on the disk, and no network.


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a model's folder into the cache as a repository at COMMIT, which is also its `main`."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def put(folder: Path | str, repository: str) -> None:
        home = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        shutil.copytree(folder, home / "snapshots" / COMMIT)
        (home / "refs").mkdir()
        (home / "refs/main").write_text(COMMIT)

    return put


def test_safetensors_need_no_commit_and_the_one_they_are_of_is_known(cached, clip_folder) -> None:
    cached(clip_folder, "owner/clip")
    for name in ("owner/clip", f"owner/clip@{COMMIT}"):
        encoder = load_encoder(name)
        assert (encoder.name, encoder.revision) == (name, COMMIT)
        assert encoder.fingerprint == find_checkpoint(clip_folder).fingerprint


def test_a_pickle_of_the_hub_is_loaded_at_a_commit_alone(cached, bin_folder, encoder, draw_image) -> None:
    cached(bin_folder, "owner/clip")
    with pytest.raises(UserError, match=rf"no weights in safetensors.*only the tensors.*`owner/clip@{COMMIT}`"):
        load_encoder("owner/clip")
    pinned = load_encoder(f"owner/clip@{COMMIT}")
    assert pinned.revision == COMMIT
    assert_same(pinned.encode_images([draw_image(1)]), encoder.encode_images([draw_image(1)]))


def test_what_to_pin_is_said_where_we_know_it(cached, bin_folder) -> None:
    name = "openai/clip-vit-large-patch14-336"
    cached(bin_folder, name)
    with pytest.raises(UserError, match=f"`{name}@{PICKLED[name]}`"):
        load_encoder(name)


@pytest.mark.parametrize("revision", ["main", COMMIT[:7], COMMIT.upper(), ""])
def test_a_revision_that_can_move_is_refused(cached, clip_folder, revision) -> None:
    cached(clip_folder, "owner/clip")
    with pytest.raises(UserError, match=r"not a commit hash of 40 hexadecimal digits.*owner/clip/commits/main"):
        load_encoder(f"owner/clip@{revision}")


def test_a_commit_that_is_not_there_is_refused(cached, clip_folder) -> None:
    cached(clip_folder, "owner/clip")
    with pytest.raises(UserError, match="not in the local cache"):
        load_encoder(f"owner/clip@{'f' * 40}")


def test_a_repository_without_any_weights_is_refused(cached, clip_folder, tmp_path) -> None:
    shutil.copytree(clip_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    cached(tmp_path / "bare", "owner/bare")
    with pytest.raises(UserError, match=r"no weights in safetensors format and no pytorch_model\.bin"):
        load_encoder(f"owner/bare@{COMMIT}")


def test_a_model_of_its_own_code_is_refused_with_another_to_take() -> None:
    with pytest.raises(UserError, match=r"needs its own code, which is never run; use Alibaba-NLP/gte-modernbert-base"):
        find_checkpoint("Alibaba-NLP/gte-large-en-v1.5")


def test_an_index_says_which_commit_its_vectors_are_of(cached, bin_folder, kb, tmp_path) -> None:
    cached(bin_folder, "owner/clip")
    name = f"owner/clip@{COMMIT}"
    encoder = load_encoder(name)
    build_index(kb, encoder, tmp_path / "index")
    manifest = json.loads((tmp_path / "index/manifest.json").read_text())
    assert (manifest["encoder"], manifest["encoder_revision"]) == (name, COMMIT)
    assert manifest["encoder_fingerprint"] == encoder.fingerprint
    assert load_index(tmp_path / "index", kb, encoder).manifest == manifest


# What configs name.


def named_models() -> list[tuple[str, str]]:
    """(config, model) of every encoder, both parts of a pair, and reranker in `configs/`."""
    named = []
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):  # lmms-eval's own file of runs
            continue
        for key in ("encoder", "reranker_model"):
            for name in values.get(key, "").removeprefix("pair:").split("+"):
                if name:
                    named.append((f"{path.relative_to(ROOT)}: {key}", name))
    return named


@pytest.mark.parametrize(("where", "name"), named_models())
def test_a_model_that_a_config_names_can_be_loaded_as_named(where: str, name: str) -> None:
    repository, _, commit = name.partition("@")
    if (collection := find_collection(repository)) is not None:
        assert repository in collection.names(), where
        return
    assert repository not in OWN_CODE, where
    assert commit == PICKLED.get(repository, ""), where

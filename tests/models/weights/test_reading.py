"""A checkpoint is read as it was trained: with its token ids, its tokenizer and its chat template."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.schemes.base import SCHEME_FILE
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.weights.pretrained import load_processor

YES, NO = MR2AG.tokens["retrieve"], MR2AG.tokens["no_retrieve"]


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def tuned(request, make, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reading") / request.param
    loaded = load(make.saved(folder / "base", request.param), scheme="mr2ag", seed=3)
    save_checkpoint(folder / "tuned", loaded.model, loaded.processor, MR2AG, {"base_model": "x", "seed": 3})
    return folder / "tuned"


def change_json(name: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return changed


def swap_gates(tokenizer: dict[str, Any]) -> None:
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    added[YES]["content"], added[NO]["content"] = NO, YES


def swap_words(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def lower_case(tokenizer: dict[str, Any]) -> None:
    steps = [tokenizer["normalizer"]] if tokenizer["normalizer"] else []
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "Lowercase"}]}


def say_more(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# one more #}")


CHANGES = {
    "gates": (
        change_json("tokenizer.json", swap_gates),
        r"its tokenizer has \[\S+ ?\S*\] as id \d+, not \d+; .*Restore tokenizer\.json",
    ),
    "words": (
        change_json("tokenizer.json", swap_words),
        r"its tokenizer's vocabulary differs.* Restore tokenizer\.json",
    ),
    "template": (say_more, r"its chat template differs\. Restore chat_template\.jinja as saved"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_since_the_training_is_named(tuned: Path, tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    shutil.copytree(tuned, tmp_path / "copy")
    change(tmp_path / "copy")
    with pytest.raises(UserError, match=message) as caught:
        load(str(tmp_path / "copy"))
    assert "or train again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_splits_texts_otherwise_is_named(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned, tmp_path / "copy")
    change_json("tokenizer.json", lower_case)(tmp_path / "copy")
    family = json.loads((tuned / "config.json").read_text())["model_type"]
    before, after = (load_processor(folder, family).tokenizer("ABC") for folder in (tuned, tmp_path / "copy"))
    if before["input_ids"] == after["input_ids"]:
        pytest.skip("transformers gives this class a normalizer of its own")
    with pytest.raises(UserError, match="its tokenizer splits texts otherwise"):
        load(str(tmp_path / "copy"))


def test_an_unchanged_or_saved_again_checkpoint_loads_in_silence(tuned, tmp_path, capsys) -> None:
    loaded = load(str(tuned), scheme="mr2ag")
    save_checkpoint(tmp_path / "again", loaded.model, loaded.processor, MR2AG, {"base_model": "x", "seed": 3})
    assert load(str(tmp_path / "again")).is_tuned
    assert "hashes" not in capsys.readouterr().err
    assert json.loads((tuned / SCHEME_FILE).read_text()) == json.loads((tmp_path / "again" / SCHEME_FILE).read_text())


@pytest.mark.parametrize("damaged", [None, [], "x", {}, {"token_ids": 5}])
def test_a_damaged_record_is_refused(tuned: Path, tmp_path: Path, damaged: object) -> None:
    shutil.copytree(tuned, tmp_path / "copy")
    change_json(SCHEME_FILE, lambda scheme: scheme.update(read_with=damaged))(tmp_path / "copy")
    with pytest.raises(UserError, match="`read_with` is missing or damaged"):
        load(str(tmp_path / "copy"))

"""Merged, adapted and reloaded: the same function, for both families, tied and untied, padded and not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedModel

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.examples.miniature.models.architecture import Family, build_model
from reflectune.models.loading import Loaded, load
from reflectune.models.records import SAVED, read_info
from reflectune.models.schemes.calibration import Calibration, GateScaling, load_calibration
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.merge import merge
from reflectune.train.settings.merge import MergeConfig
from reflectune.train.weights.merging import merge_adapter, plan_merge
from tests.narrow_models import plain_inputs

CASES = [
    pytest.param("llava", False, 0, id="llava-untied-tight"),
    pytest.param("llava", True, 64, id="llava-tied-padded"),
    pytest.param("qwen2_vl", True, 0, id="qwen2_vl-tied-tight"),
    pytest.param("qwen2_vl", False, 64, id="qwen2_vl-untied-padded"),
]


@torch.no_grad()
def logits(loaded: Loaded, model: torch.nn.Module) -> Tensor:
    """Compute a model's logits of an image, a question and both gates, without our engine."""
    rendered = loaded.renderer.prefix("When was it founded?", Image.new("RGB", (64, 64), "green"))
    ids = [*rendered.ids, *loaded.renderer.token_ids.values(), 20]
    return model(**plain_inputs(loaded.model, ids, rendered.vision)).logits


@pytest.fixture
def adapter(moved_adapter) -> Callable[[Path, Path], tuple[Loaded, Tensor]]:
    """Writes an adapter, and returns its logits before it is written."""

    def write(base: Path, folder: Path) -> tuple[Loaded, Tensor]:
        loaded, model = moved_adapter(base, folder)
        return loaded, logits(loaded, model)

    return write


@pytest.mark.parametrize(("family", "tie", "padding"), CASES)
def test_merged_is_the_adapter_is_the_reloaded(
    family: Family, tie: bool, padding: int, base_model, tmp_path, adapter
) -> None:
    base = base_model(family, tie=tie)
    if padding:
        tokenizer = load(str(base)).processor.tokenizer
        rows = len(tokenizer) + padding
        build_model(family, tokenizer, size="test", tie_word_embeddings=tie, vocab_size=rows).save_pretrained(base)
    loaded, expected = adapter(base, tmp_path / "adapter")

    merge_adapter(tmp_path / "adapter", tmp_path / "merged", plan_merge(tmp_path / "adapter"))

    plain: PreTrainedModel = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").eval()
    ours = load(str(tmp_path / "merged"), scheme="mr2ag")
    for model in (load(str(tmp_path / "adapter")).model, ours.model, plain):
        torch.testing.assert_close(logits(loaded, model), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(loaded, ours.model), logits(loaded, plain))
    assert (plain.get_output_embeddings().weight is plain.get_input_embeddings().weight) == tie
    assert len(plain.get_input_embeddings().weight) == (rows if padding else len(ours.processor.tokenizer))
    assert not list((tmp_path / "merged").glob("adapter*"))
    assert not list(tmp_path.glob(".*partial"))
    info = read_info(tmp_path / "merged")
    assert (info["kind"], info["base_model"]) == ("full", str(base))
    assert info["merged_from"] == str(tmp_path / "adapter")


def test_an_adapter_of_four_bits_is_merged_into_plain_weights(base_model, tmp_path: Path, adapter) -> None:
    pytest.importorskip("bitsandbytes")
    loaded, _ = adapter(base_model("qwen2_vl", size="base"), tmp_path / "adapter")
    record = read_info(tmp_path / "adapter") | {"quantization": {"dtype": "float32"}}
    (tmp_path / "adapter" / "reflectune.json").write_text(json.dumps(record))

    merge_adapter(tmp_path / "adapter", tmp_path / "merged", planned := plan_merge(tmp_path / "adapter"))

    assert "4-bit weights" in planned.remark
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").eval()
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    assert torch.equal(logits(loaded, plain), logits(loaded, load(str(tmp_path / "adapter")).model))


def test_the_precision_is_the_bases_own_unless_asked_for(base_model, tmp_path: Path, adapter) -> None:
    base = base_model("llava")
    adapter(base, tmp_path / "adapter")
    load(str(base)).model.bfloat16().save_pretrained(base)

    assert plan_merge(tmp_path / "adapter").dtype == "bfloat16"
    merge_adapter(tmp_path / "adapter", tmp_path / "merged", plan_merge(tmp_path / "adapter", "float16"))

    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["dtype"] == "float16"
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")
    assert {parameter.dtype for parameter in plain.parameters()} == {torch.float16}


def test_a_calibration_is_kept(base_model, tmp_path: Path, adapter) -> None:
    adapter(base_model("llava"), tmp_path / "adapter")
    saved = str(read_info(tmp_path / "adapter")[SAVED])
    Calibration({"retrieve": GateScaling(0.5, 0.5)}, saved).save(tmp_path / "adapter", MR2AG)
    merge_adapter(tmp_path / "adapter", tmp_path / "merged", plan_merge(tmp_path / "adapter", "bfloat16"))
    now = str(read_info(tmp_path / "merged")[SAVED])
    assert load_calibration(tmp_path / "merged", now).gates == {"retrieve": GateScaling(0.5, 0.5)}
    config = json.loads((tmp_path / "merged/config.json").read_text())
    assert {config["dtype"], config["text_config"]["dtype"], config["vision_config"]["dtype"]} == {"bfloat16"}


def test_what_cannot_be_merged_is_reported_at_once(tmp_path: Path) -> None:
    MR2AG.save(tmp_path)

    with pytest.raises(UserError) as caught:
        parse_config(MergeConfig, argv=["--checkpoint", str(tmp_path), "--output", str(tmp_path)])

    assert "holds a full checkpoint already" in str(caught.value)
    assert "exists already; choose a different folder" in str(caught.value)
    output = ("--output", str(tmp_path / "merged"))
    with pytest.raises(UserError, match="llava holds no adapter"):
        parse_config(MergeConfig, argv=["--checkpoint", "miniature/llava", *output])
    with pytest.raises(UserError, match="is an adapter; leave out `image_fit`"):
        parse_config(MergeConfig, argv=["--checkpoint", "pocket/mr2ag", "--image_fit", "crop", *output])


def test_a_shipped_adapter_is_named_as_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    monkeypatch.setattr("reflectune.train.settings.merge.shipped_folder", {"pocket/plain": tmp_path}.get)
    config = parse_config(MergeConfig, argv=["--checkpoint", "pocket/plain", "--output", str(tmp_path / "merged")])

    assert config.folder == tmp_path


def test_the_command_merges_and_a_base_that_is_gone_is_one_line(
    base_model, tmp_path, adapter, capsys: pytest.CaptureFixture[str]
) -> None:
    base = base_model("llava")
    adapter(base, tmp_path / "adapter")
    flags = ["--checkpoint", str(tmp_path / "adapter"), "--output"]

    def refuse(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            merge.main([*flags, *more])
        assert ended.value.code == 2
        return capsys.readouterr().err

    merge.main([*flags, str(tmp_path / "merged")])
    assert load(str(tmp_path / "merged")).is_tuned
    merge.main([*flags, str(tmp_path / "merged")])
    assert "nothing to do" in capsys.readouterr().out
    refused = refuse(str(tmp_path / "merged"), "--dtype", "bfloat16")
    assert "holds something else than this merge; choose a new folder" in refused
    base.rename(tmp_path / "moved")
    assert f"error: no model at {base}" in refuse(str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()

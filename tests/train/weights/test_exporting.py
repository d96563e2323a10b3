"""Exports to servers: the checkpoint's function to plain transformers and PEFT, in every family of the recipes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, GenerationConfig

from reflectune.core.config import parse_config
from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.models.loading import Loaded, load, save_checkpoint
from reflectune.models.records import SAVED, read_info
from reflectune.models.schemes.calibration import Calibration, GateScaling, load_calibration
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.settings.export import ExportConfig
from reflectune.train.weights.exporting import export_checkpoint
from reflectune.train.weights.serving import Served, launch_line, readme
from tests.narrow_models import plain_inputs

FAMILIES = ("llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3")
OF_EACH_KIND = {"llava", "qwen2_vl"}
PROMPTS = 4


@torch.no_grad()
def logits(loaded: Loaded, model: Any, draw_image: Callable[[int], Any]) -> Tensor:
    """Compute a model's last logits of prompts with images, by transformers alone."""
    rows = []
    for number in range(PROMPTS):
        rendered = loaded.renderer.prefix(f"Was it built in {1800 + number}?", draw_image(number))
        inputs = plain_inputs(loaded.model, [*rendered.ids, *loaded.renderer.token_ids.values()], rendered.vision)
        rows.append(model.eval()(**inputs).logits[0, -5:])
    return torch.stack(rows)


def exported(checkpoint: Path, output: Path, *words: str) -> str:
    argv = ["--checkpoint", str(checkpoint), "--output", str(output), "--to", "vllm", *words]
    return export_checkpoint(parse_config(ExportConfig, argv=argv))


def opened(folder: Path) -> Any:
    """Load a folder as a user of transformers does, and refuse missing and unknown weights."""
    model, report = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert {name: found for name, found in report.items() if found} == {}
    return model


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in OF_EACH_KIND else pytest.mark.slow) for name in FAMILIES]
)
def test_both_forms_are_the_adapter_to_plain_transformers(
    family: str, write_base, draw_image, tmp_path: Path, moved_adapter
) -> None:
    write_base(family, tmp_path / "base")
    GenerationConfig(eos_token_id=2, do_sample=True, repetition_penalty=1.5).save_pretrained(tmp_path / "base")
    loaded, model = moved_adapter(tmp_path / "base", tmp_path / "adapter", projector=True)
    expected = logits(loaded, model, draw_image)

    exported(tmp_path / "adapter", tmp_path / "merged", "--dtype", "float32")
    split = exported(tmp_path / "adapter", tmp_path / "split", "--dtype", "float32", "--adapter", "true")

    merged, plain = opened(tmp_path / "merged"), opened(tmp_path / "split/base")
    assert merged.dtype == torch.float32
    torch.testing.assert_close(logits(loaded, merged, draw_image), expected, rtol=1e-4, atol=1e-4)
    without = logits(loaded, plain, draw_image)
    torch.testing.assert_close(
        logits(loaded, PeftModel.from_pretrained(plain, tmp_path / "split/adapter"), draw_image),
        expected,
        rtol=1e-4,
        atol=1e-4,
    )
    assert not torch.allclose(without, expected, atol=1e-2)
    assert all(".lora_" in name for name in load_file(tmp_path / "split/adapter/adapter_model.safetensors"))
    config = read_json(tmp_path / "split/adapter/adapter_config.json", "config")
    assert (config["trainable_token_indices"], config["modules_to_save"]) == (None, None)
    assert f"--lora-modules split={tmp_path}/split/adapter" in split
    ours = load(str(tmp_path / "merged"), scheme="mr2ag")
    assert ours.is_tuned
    assert torch.equal(logits(ours, ours.model, draw_image), logits(loaded, merged, draw_image))
    for folder in ("merged", "split/base"):
        assert read_json(tmp_path / folder / "generation_config.json", "config").keys() <= {
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "transformers_version",
        }
        processor = read_json(tmp_path / folder / "processor_config.json", "config")
        has_no_video = {"LlavaProcessor", "LlavaNextProcessor", "Gemma3Processor"}
        assert processor["processor_class"] in has_no_video or processor["video_processor"]


def test_a_full_checkpoint_keeps_its_precision_and_calibration(write_base, draw_image, tmp_path: Path) -> None:
    write_base("llava", tmp_path / "base")
    loaded = load(str(tmp_path / "base"), scheme="mr2ag", dtype="bfloat16")
    save_checkpoint(tmp_path / "full", loaded.model, loaded.processor, MR2AG, {})
    weights = str(read_info(tmp_path / "full")[SAVED])
    Calibration({"retrieve": GateScaling(0.5, 0.5)}, weights).save(tmp_path / "full", MR2AG)

    line = exported(tmp_path / "full", tmp_path / "out")
    assert "--dtype" not in line
    assert "nothing to do" in exported(tmp_path / "full", tmp_path / "out")
    with pytest.raises(UserError, match="holds something else; choose a new folder"):
        exported(tmp_path / "full", tmp_path / "out", "--dtype", "float32")

    again = opened(tmp_path / "out")
    assert again.dtype == torch.bfloat16
    assert torch.equal(logits(loaded, again, draw_image), logits(loaded, loaded.model, draw_image))
    info = read_info(tmp_path / "out")
    assert load_calibration(tmp_path / "out", str(info[SAVED])).gates == {"retrieve": GateScaling(0.5, 0.5)}
    readme = (tmp_path / "out/README.md").read_text()
    request = json.loads(readme.partition("```json\n")[2].partition("```")[0])
    assert request["logprob_token_ids"] == list(loaded.renderer.token_ids.values())
    sglang = parse_config(
        ExportConfig,
        argv=["--checkpoint", str(tmp_path / "full"), "--output", str(tmp_path / "sglang"), "--to", "sglang"],
    )
    assert f"sglang.launch_server --model-path {tmp_path}/sglang" in export_checkpoint(sglang)


@pytest.mark.parametrize(
    ("scheme", "asked"),
    [
        ("mr2ag", "What does it eat?"),
        ("mmkb_rag", "What does it eat? Are documents needed to answer the question?"),
    ],
)
def test_the_readme_asks_a_gate_as_training_did(base_model, scheme: str, asked: str) -> None:
    loaded = load(str(base_model("llava", size="test")), scheme=scheme)
    text = readme(Served("vllm", "mine", "llava", "bfloat16"), loaded.renderer)
    request = json.loads(text.partition("```json\n")[2].partition("```")[0])
    assert request["messages"][0]["content"][1]["text"] == asked


@pytest.mark.parametrize(
    ("family", "takes_video"), [(family, "qwen" in family) for family in FAMILIES] + [("internvl", True)]
)
def test_the_option_for_pillow_is_one_that_a_video_processor_takes(family: str, takes_video: bool) -> None:
    line = launch_line(Served("vllm", "mine", family, "bfloat16"))
    assert ('"video": 0' in line, '{"use_fast": false}' in line) == (takes_video, takes_video)


def test_an_adapter_of_four_bits_keeps_its_form_on_plain_weights(
    base_model, draw_image, tmp_path: Path, moved_adapter
) -> None:
    pytest.importorskip("bitsandbytes")
    moved_adapter(base_model("qwen2_vl", size="base"), tmp_path / "adapter", projector=True)
    record = read_info(tmp_path / "adapter") | {"quantization": {"dtype": "float32"}}
    (tmp_path / "adapter/reflectune.json").write_text(json.dumps(record))

    exported(tmp_path / "adapter", tmp_path / "split", "--adapter", "true")

    plain = PeftModel.from_pretrained(opened(tmp_path / "split/base"), tmp_path / "split/adapter")
    merged = load(str(tmp_path / "adapter"))
    torch.testing.assert_close(
        logits(merged, plain, draw_image), logits(merged, merged.model, draw_image), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--to", "trl"], "`to` is one of vllm, sglang for a checkpoint; found `trl`"),
        (["--to", "vllm", "--split", "val"], "`split` describe data, and `checkpoint` is given"),
        (["--to", "vllm", "--adapter", "true"], "holds no adapter, but a full checkpoint"),
        (["--to", "vllm", "--checkpoint", "elsewhere"], "has no scheme.json"),
        (["--to", "vllm", "--checkpoint", ""], "`checkpoint` is needed"),
        (["--to", "vllm", "--checkpoint", "", "--data", "."], "takes a checkpoint, not data"),
    ],
)
def test_wrong_settings_are_reported_at_once(words: list[str], problem: str, tmp_path: Path) -> None:
    MR2AG.save(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=problem):
        parse_config(ExportConfig, argv=["--checkpoint", str(tmp_path), "--output", str(tmp_path / "out"), *words])


def test_a_base_that_is_gone_and_an_export_that_differs_are_one_sentence(
    write_base, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moved_adapter
) -> None:
    write_base("llava", tmp_path / "base")
    moved_adapter(tmp_path / "base", tmp_path / "adapter", projector=True)
    monkeypatch.setattr("reflectune.train.weights.exporting.save_file", lambda state, path, **_: None)
    with pytest.raises(UserError, match=r"adapter_model\.safetensors is missing"):
        exported(tmp_path / "adapter", tmp_path / "out", "--adapter", "true")
    (tmp_path / "base").rename(tmp_path / "moved")
    for form in ("true", "false"):
        with pytest.raises(UserError, match="no model at"):
            exported(tmp_path / "adapter", tmp_path / "out", "--adapter", form)
    assert not (tmp_path / "out").exists()

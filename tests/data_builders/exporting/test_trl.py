"""TRL's layout, read by `datasets` and trained on by TRL itself."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.core.images import load_image
from reflectune.data_builders.exporting.run import export
from reflectune.formats.reflection_data import read_examples
from reflectune.models.attention.tree import IGNORE
from reflectune.models.loading import Loaded, load
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.models.schemes.passages import PassageScheme
from reflectune.train.settings.export import ExportConfig

HOSTILE = ("k2", "v2")


def loaded_by_datasets(data: Path, output: Path, images: Any, cache: Path, space: bool = True) -> Any:
    from datasets import load_dataset

    export(ExportConfig(data=str(data), to="trl", output=str(output), images=images, space=space))
    return load_dataset(str(output), cache_dir=str(cache))["train"]


def test_datasets_loads_the_folder_with_its_images(reflected: Path, tmp_path: Path) -> None:
    rows = loaded_by_datasets(reflected, tmp_path / "out", "absolute", tmp_path / "cache")
    assert rows.column_names == ["id", "question", "prompt", "completion", "images"]
    assert len(rows) == 3 + 2 + 2 + 3 + 3
    red = rows[0]["images"][0]
    assert isinstance(red, Image.Image)
    assert red.convert("RGB").getpixel((0, 0)) == (200, 30, 30)


def test_an_export_with_copies_may_be_moved(reflected: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    export(ExportConfig(data=str(reflected), to="trl", output=str(tmp_path / "out"), images="copy"))
    os.rename(tmp_path / "out", tmp_path / "moved")
    (tmp_path / "images" / "blue.png").unlink()
    rows = load_dataset(str(tmp_path / "moved"), cache_dir=str(tmp_path / "cache"))["train"]
    assert [isinstance(row["images"][0], Image.Image) for row in rows] == [True] * (3 + 2 + 2 + 3 + 3)


def test_trls_own_parser_takes_the_yaml(reflected: Path, tmp_path: Path) -> None:
    from trl.scripts.sft import make_parser

    export(ExportConfig(data=str(reflected), to="trl", output=str(tmp_path / "out")))
    command = ["--config", str(tmp_path / "out" / "sft.yaml"), "--bf16", "false", "--use_cpu", "true"]
    script, training, model, _ = make_parser().parse_args_and_config(command, fail_with_unknown_args=True)[:4]
    assert script.dataset_name == "."
    assert training.max_length is None
    assert model.model_name_or_path == "base_with_tokens"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_trl_and_our_trainer_supervise_the_same_tokens(reflected: Path, tmp_path: Path, family: str) -> None:
    """TRL reads and supervises the same tokens, `[Retrieval]` once. Examples with forged tokens are left out."""
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(1)
    base = load(f"miniature/{family}", scheme="mr2ag")
    space = family == "llava"  # its chat template puts a space before a reply
    rows = loaded_by_datasets(reflected, tmp_path / "out", "copy", tmp_path / "cache", space)
    rows = rows.filter(lambda row: row["id"] not in HOSTILE)  # their text was altered
    steps = {"max_length": None, "max_steps": 1, "per_device_train_batch_size": 4, "save_strategy": "no"}
    where = {"output_dir": str(tmp_path / "run"), "use_cpu": True, "bf16": False, "report_to": "none"}
    args = SFTConfig(**steps, **where)
    trainer = SFTTrainer(model=base.model, args=args, train_dataset=rows, processing_class=base.processor)

    batch = trainer.data_collator([rows[i] for i in range(len(rows))])

    theirs = [row[row != IGNORE].tolist() for row in batch["labels"]]
    break_after = base.renderer.tokenizer("\n", add_special_tokens=False)["input_ids"]
    ends = {tuple(ids[: -len(break_after)] if ids[-1] == break_after[-1] else ids) for ids in theirs}
    assert ends == our_supervised_spans(base, reflected)
    assert trainer.train().training_loss > 0


def our_supervised_spans(base: Loaded, data: Path) -> set[tuple[int, ...]]:
    """Return the supervised token spans of our trainer, one per turn."""
    spans = set()
    for example in read_examples(data / "train.parquet", ReflectionExample):
        if example.id in HOSTILE:
            continue
        image = load_image(data.parent / "images" / example.image)
        tree = PassageScheme.of(base.renderer).encode(base.renderer, example, image)
        for segment in (tree.prefix, *tree.branches):
            runs = itertools.groupby(segment.labels, lambda label: label != IGNORE)
            spans |= {tuple(run) for is_supervised, run in runs if is_supervised}
    return spans

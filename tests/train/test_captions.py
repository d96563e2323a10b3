"""From captions to a trained projector: rows without ids, several an image, through the commands that a user gives."""

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.plain import run as build_plain
from reflectune.data_builders.mr2ag.plain_config import PlainConfig
from reflectune.data_builders.mr2ag.run import run as build_mr2ag
from reflectune.formats.reflection_data import read_examples
from reflectune.models.loading import load
from reflectune.models.records import read_info
from reflectune.models.schemes.examples import PromptedExample
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.settings.sft import SftConfig

COLOURS = {"red": (200, 30, 30), "green": (20, 160, 40), "blue": (30, 60, 200)}
ASKED = "Describe the image briefly."


def own(root: Path) -> dict[str, Any]:
    """Settings for the captions in a file of one's own: image, question, answer."""
    rows = [
        {"image": f"{colour}.png", "question": ASKED, "answer": f"A {colour} square, {number}."}
        for colour in COLOURS
        for number in range(3)
    ]
    (root / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"columns": {"answers": "answer"}, "number_rows": True}
    options["constants"] = {"answer_type": "free_form", "requires_retrieval": False}
    return {"questions": "own", "splits": {"train": "captions.jsonl"}, "options": options}


def test_captions_train_a_projector(tmp_path, base_model) -> None:
    root = tmp_path / "source"
    root.mkdir()
    for colour, value in COLOURS.items():
        Image.new("RGB", (64, 64), value).save(root / f"{colour}.png")
    data, reflection, plain = (str(tmp_path / name) for name in ("data", "reflection", "plain"))

    convert(ConvertConfig(root=str(root), output=data, **own(root)))
    build_mr2ag(BuildConfig(dataset=data, output=reflection, visual_ratio=1, negatives_retrieved=0, device="cpu"))
    build_plain(PlainConfig(dataset=data, reflection=reflection, output=plain, evidence=["none"], device="cpu"))
    examples = read_examples(Path(plain, "train.parquet"), PromptedExample)
    run = SftConfig(
        model=str(base_model()),
        scheme="plain",
        train_data=plain,
        output_dir=str(tmp_path / "stage1"),
        train_towers=["projector"],
        cache_features=str(tmp_path / "features"),
        learning_rate=1e-3,
        max_steps=2,
        device="cpu",
    )
    assert run.problems() == []
    fine_tune(run)

    assert read_info(run.output_dir)["training"]["evidence"] == ["none"]
    assert len(examples) == 9
    assert {(example.question, example.style) for example in examples} == {(ASKED, "free")}
    assert sorted(example.branches[0].reply for example in examples)[0] == "A blue square, 0."
    assert len(list(Path(run.cache_features).rglob("*.safetensors"))) == 3
    before, after = (load(folder).model.state_dict() for folder in (run.model, run.output_dir))
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if name not in still} == {name for name in before if "projector" in name}

"""Several data sets with weights: read from YAML and the command line, drawn again each epoch, resumed exactly."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.data.examples import load_training_data
from reflectune.train.data.mixture import DataSource, Mixture
from reflectune.train.data.order import TrainingOrder
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.settings.sft import SftConfig


@pytest.fixture
def other_folder(tmp_path: Path, examples: list[ReflectionExample]) -> Path:
    """A second data set, whose images have the same names and lie elsewhere."""
    folder = tmp_path / "other"
    other_examples = [
        dataclasses.replace(example, id=f"other-{example.id}", image="red.png") for example in examples[:10]
    ]
    write_examples(folder / "train.parquet", other_examples)
    write_manifest(folder, Manifest("mr2ag", folder / "images", {"train": "0"}))
    (folder / "images").mkdir()
    Image.new("RGB", (64, 64), (1, 2, 3)).save(folder / "images" / "red.png")
    return folder


def epoch(order: TrainingOrder, number: int) -> list[int]:
    order.start_epoch(number)
    return list(order)


def mixed(parts: list[tuple[int, float]]) -> TrainingOrder:
    count = sum(size for size, _ in parts)
    lengths = [(i * 37) % 101 for i in range(count)]
    return TrainingOrder(lengths, [0] * count, batch_size=8, seed=0, parts=parts)


def test_a_weight_is_how_often_an_epoch_reads_an_example() -> None:
    order = mixed([(40, 1), (60, 0.5), (20, 2), (10, 1.5)])
    counts = Counter(epoch(order, 0))

    assert len(order) == sum(counts.values()) == 40 + 30 + 40 + 15
    assert {counts[i] for i in range(40)} == {1}
    assert Counter(counts[i] for i in range(40, 100)) == {0: 30, 1: 30}
    assert {counts[i] for i in range(100, 120)} == {2}
    assert Counter(counts[i] for i in range(120, 130)) == {1: 5, 2: 5}


def test_another_epoch_draws_another_half_and_the_same_one_the_same() -> None:
    order, again = mixed([(10, 1), (60, 0.5)]), mixed([(10, 1), (60, 0.5)])
    first, second = epoch(order, 0), epoch(order, 1)

    assert set(first) != set(second)
    assert epoch(again, 1) == second
    assert epoch(again, 0) == first


def test_the_copies_of_an_example_come_into_different_batches() -> None:
    order = mixed([(64, 3), (64, 1)])
    indices = epoch(order, 0)
    batches = [indices[i : i + 8] for i in range(0, len(indices), 8)]

    assert all(len(set(batch)) == len(batch) for batch in batches)


def test_a_mixture_is_read_from_yaml_and_from_the_command_line(data_folder: Path, tmp_path: Path) -> None:
    images = str(data_folder / "images")
    requested = {str(data_folder): 1, str(data_folder / "train.parquet"): {"weight": 0.5, "image_root": images}}
    (tmp_path / "sft.yaml").write_text(
        f"output_dir: out\ntrain_data:\n  {data_folder}: 1\n"
        f"  {data_folder}/train.parquet: {{weight: 0.5, image_root: {images}}}\n"
    )

    by_file = parse_config(SftConfig, argv=["--config", str(tmp_path / "sft.yaml")])
    by_flag = parse_config(SftConfig, argv=["--output_dir", "out", "--train_data", json.dumps(requested)])
    alone = parse_config(SftConfig, argv=["--output_dir", "out", "--train_data", str(data_folder)])

    expected = [
        DataSource(str(data_folder), "train", "", 1),
        DataSource(str(data_folder / "train.parquet"), "train", images, 0.5),
    ]
    assert by_file.sources() == by_flag.sources() == expected
    assert alone.sources() == expected[:1]
    assert str(by_flag.train_data) == f"1 x {data_folder}, 0.5 x {data_folder}/train.parquet"
    assert str(alone.train_data) == str(data_folder)


@pytest.mark.parametrize(
    ("mixture", "says"),
    [
        ({"DATA": 0}, "the weight of .* must be above 0, found 0"),
        ({"DATA": float("nan")}, "NaN is not a number"),
        ({"DATA": 1e9}, r"must be at most 10,000, found 1e\+09"),
        ({"DATA": True}, "`weight` can't be True"),
        ({"DATA": {"split": "../val"}}, "`split` must consist of letters, digits"),
        ({"DATA": {"weigth": 1}}, r"has the unknown key\(s\) weigth, not weight, split, image_root"),
        ({"DATA": "twice"}, "`weight` can't be 'twice'"),
        ({"DATA": 1, "nowhere": 1}, r"nowhere does not exist \(looked in "),
        ({"DATA": {"image_root": "nowhere"}}, "`image_root`: nowhere is not a folder"),
        ({}, "`train_data` is needed"),
    ],
)
def test_a_bad_mixture_is_a_problem(data_folder: Path, mixture: dict[str, Any], says: str) -> None:
    named = {data.replace("DATA", str(data_folder)): value for data, value in mixture.items()}

    with pytest.raises(UserError, match=says):
        parse_config(SftConfig, argv=["--output_dir", "out", "--train_data", json.dumps(named)])


def test_a_folder_named_by_a_number_is_a_folder() -> None:
    """YAML reads `2024: 1` with a number as its key."""
    (source,) = Mixture({2024: 1}).sources("train", "")
    assert source.data == "2024"


def test_each_data_set_has_its_own_images(data_folder: Path, other_folder: Path) -> None:
    mixture = Mixture({str(data_folder): 1, str(other_folder): 2})
    data = load_training_data(mixture.sources("train", ""), "mr2ag")

    assert data.parts == ((24, 1), (10, 2))
    images = [data.image_roots[0] / example.image for example in data.examples]
    assert images == [data.image_roots[0] / data.examples[i].image for i in range(34)]
    assert {image.parent for image in images[:24]} == {data_folder / "images"}
    assert set(images[24:]) == {other_folder / "images/red.png"}


def test_a_mixture_trains_and_resumes_exactly_and_a_dry_run_counts_it(
    config, data_folder, other_folder, interrupted, assert_equal_weights, losses, capsys
) -> None:
    changes: dict[str, Any] = {
        "train_data": {str(data_folder): 0.25, str(other_folder): 1},
        "max_steps": None,
        "epochs": 1.25,
    }
    straight, resumed = config("straight", **changes), config("resumed", **changes)
    fine_tune(straight.model_copy(update={"dry_run": True}))
    printed = capsys.readouterr().out
    assert f"0.25 x {data_folder}/train.parquet: 24 questions, 6 reads an epoch" in printed
    assert f"1 x {other_folder}/train.parquet: 10 questions, 10 reads an epoch" in printed
    assert "steps: 5" in printed

    fine_tune(straight)
    interrupted(resumed, 4)
    fine_tune(resumed)

    assert len(losses(straight.output_dir)) == 1.25 * (6 + 10) / 4
    assert_equal_weights(straight.output_dir, resumed.output_dir)
    assert losses(straight.output_dir) == losses(resumed.output_dir)


def test_a_data_set_is_not_training_data(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a data set; build training data from it, by `reflectune build_mr2ag`"):
        parse_config(SftConfig, argv=["--output_dir", "out", "--train_data", str(tmp_path)])

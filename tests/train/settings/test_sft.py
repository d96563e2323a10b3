from pathlib import Path

import pytest

from reflectune.core.config import find_problems, parse_config
from reflectune.core.errors import UserError
from reflectune.train.settings.sft import SftConfig


def arguments(folder: Path, *more: str) -> list[str]:
    (folder / "reflection.json").write_text("{}")
    return ["--train_data", str(folder), "--output_dir", str(folder / "out"), *more]


def test_the_defaults_need_only_data_and_a_place(tmp_path: Path) -> None:
    config = parse_config(SftConfig, argv=arguments(tmp_path))

    assert config.problems() == []
    assert [source.file for source in config.sources()] == [tmp_path / "train.parquet"]


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    argv = ["--train_data", str(tmp_path / "nowhere"), "--warmup", "-1", "--lora_r", "0", "--lora_targets", "("]

    with pytest.raises(UserError) as caught:
        parse_config(SftConfig, argv=argv)

    needed = ("`output_dir` is needed", "nowhere does not exist", "`warmup`", "`lora_r`", "not a regular expression")
    for part in needed:
        assert part in str(caught.value)


def test_data_without_a_manifest_needs_an_image_root(tmp_path: Path) -> None:
    data = tmp_path / "some.parquet"
    data.touch()

    given = {"train_data": str(data), "output_dir": "o"}
    assert any("`image_root` is needed" in issue for issue in find_problems(SftConfig, given))
    assert find_problems(SftConfig, {**given, "image_root": str(tmp_path)}) == []

import subprocess
import sys
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

    for part in (
        "`output_dir` is needed",
        "nowhere does not exist",
        "`warmup`",
        "`lora_r`",
        "not a regular expression",
    ):
        assert part in str(caught.value)


def test_a_misspelt_key_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("learning_rates: 1e-4\n")

    with pytest.raises(UserError, match=r"unknown key `learning_rates`; did you mean `learning_rate`\?"):
        parse_config(SftConfig, argv=["--config", str(tmp_path / "sft.yaml")])


def test_data_without_a_manifest_needs_an_image_root(tmp_path: Path) -> None:
    data = tmp_path / "some.parquet"
    data.touch()

    assert any(
        "`image_root` is needed" in issue
        for issue in find_problems(SftConfig, {"train_data": str(data), "output_dir": "o"})
    )
    assert find_problems(SftConfig, {"train_data": str(data), "output_dir": "o", "image_root": str(tmp_path)}) == []


def test_what_a_run_may_change_is_not_among_what_determines_the_weights() -> None:
    one = SftConfig(train_data="a", output_dir="b", save_steps=5)
    other = SftConfig(model="elsewhere", train_data="c", output_dir="d", save_steps=7, resume=False, cache_mib=1)

    assert one.hashed() == other.hashed()
    assert one.hashed() != SftConfig(learning_rate=1.0).hashed()


def test_a_wrong_config_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from reflectune.train.sft import sft\n"
        "try: sft.main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code, "--warmup", "-1"], capture_output=True, text=True, cwd=tmp_path)

    assert ended.returncode
    assert "`warmup`" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "False"

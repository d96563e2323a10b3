from pathlib import Path

import pytest

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.mr2ag.config import BuildConfig


def folders(tmp_path: Path) -> list[str]:
    for name, marker in (("world", "dataset.json"), ("index", "manifest.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / marker).write_text("{}")
    return ["--dataset", f"{tmp_path}/world", "--index", f"{tmp_path}/index", "--output", f"{tmp_path}/out"]


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    argv = ["--dataset", str(tmp_path), "--positives", "0", "--visual_ratio", "1.5", "--annotator", "oracle"]
    with pytest.raises(UserError) as caught:
        parse_config(BuildConfig, argv=argv)
    for part in (
        "`output` is needed",
        "no dataset.json",
        "`positives` must be at least 1, found 0",
        "`visual_ratio` must be",
        "`annotator` must be one of string, gold, llm, found 'oracle'",
        "`negatives_retrieved` needs an `index`",
    ):
        assert part in str(caught.value)


def test_without_retrieved_negatives_no_index_is_needed(tmp_path: Path) -> None:
    argv = [*folders(tmp_path), "--index", "", "--negatives_retrieved", "0"]
    config = parse_config(BuildConfig, argv=argv)
    assert config.problems() == []


def test_paths_do_not_determine_the_data() -> None:
    here = BuildConfig(dataset="a", output="b", index="c")
    there = BuildConfig(dataset="d", output="e", index="f", on_error="skip", dry_run=True)
    assert here.hashed() == there.hashed()
    assert here.hashed() != BuildConfig(lead="none").hashed()


LLM = {"annotator": "llm", "llm_url": "http://localhost:1/v1", "llm_model": "m"}


@pytest.mark.parametrize("changes", [{"llm_model": "n"}, {"llm_url": "http://localhost:1/v2"}, {"llm_max_tokens": 9}])
def test_the_model_determines_the_data_of_the_annotator_llm_only(changes: dict[str, object]) -> None:
    assert BuildConfig(**LLM).hashed() != BuildConfig(**{**LLM, **changes}).hashed()
    assert BuildConfig().hashed() == BuildConfig(**changes).hashed()


def test_secrets_in_the_address_are_not_hashed_or_shown() -> None:
    """The settings go into a fingerprint in the manifest."""
    first, second = (
        BuildConfig(**{**LLM, "llm_url": f"http://me:{secret}@localhost:1/v1?key={secret}"}).hashed()
        for secret in ("hidden", "other")
    )
    assert first == second
    assert first["llm_url"] == "/v1?key=***"


def test_speed_price_and_host_do_not_determine_the_data() -> None:
    changes = {
        "llm_url": "http://node7:2/v1",
        "llm_concurrency": 99,
        "llm_input_price": 3.0,
        "llm_cache": "x",
        "llm_retries": 1,
    }
    assert BuildConfig(**LLM).hashed() == BuildConfig(**{**LLM, **changes}).hashed()


def test_the_llm_annotator_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`llm_model` is needed(.|\n)*`llm_url` is needed"):
        parse_config(BuildConfig, argv=[*folders(tmp_path), "--annotator", "llm"])

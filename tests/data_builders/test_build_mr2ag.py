from pathlib import Path

import pytest

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.examples import Recipe


def folders(tmp_path: Path) -> list[str]:
    for name, marker in (("world", "dataset.json"), ("index", "manifest.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / marker).write_text("{}")
    return ["--dataset", f"{tmp_path}/world", "--index", f"{tmp_path}/index", "--output", f"{tmp_path}/out"]


def test_a_config_becomes_a_recipe(tmp_path: Path) -> None:
    argv = [*folders(tmp_path), "--positives", "2", "--negatives_same_article", "3", "--seed", "7"]
    config = parse_config(BuildConfig, argv=argv)

    assert config.recipe() == Recipe(positives=2, same_article=3, retrieved=2, random=1, seed=7)


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


def test_where_things_are_does_not_decide_what_is_built() -> None:
    here = BuildConfig(dataset="a", output="b", index="c")
    there = BuildConfig(dataset="d", output="e", index="f", on_error="skip", dry_run=True)

    assert here.what_decides() == there.what_decides()
    assert here.what_decides() != BuildConfig(lead="none").what_decides()


LLM = {"annotator": "llm", "llm_url": "http://localhost:1/v1", "llm_model": "m"}


@pytest.mark.parametrize("changes", [{"llm_model": "n"}, {"llm_url": "http://localhost:2/v1"}, {"llm_max_tokens": 9}])
def test_who_is_asked_decides_what_is_built_if_anybody_is(changes: dict[str, object]) -> None:
    assert BuildConfig(**LLM).what_decides() != BuildConfig(**{**LLM, **changes}).what_decides()
    assert BuildConfig().what_decides() == BuildConfig(**changes).what_decides()


def test_secrets_in_the_address_decide_nothing_and_are_not_told() -> None:
    """What decides goes into a fingerprint that stands in the manifest."""
    one, other = (
        BuildConfig(**{**LLM, "llm_url": f"http://me:{secret}@localhost:1/v1?key={secret}"}).what_decides()
        for secret in ("hidden", "other")
    )

    assert one == other
    assert one["llm_url"] == "http://localhost:1/v1?key=***"


def test_how_fast_it_is_asked_does_not() -> None:
    changes = {"llm_concurrency": 99, "llm_input_price": 3.0, "llm_cache": "x", "llm_retries": 1}

    assert BuildConfig(**LLM).what_decides() == BuildConfig(**{**LLM, **changes}).what_decides()


@pytest.mark.parametrize(
    "changes",
    [{"string_filter": "off"}, {"known_sections": False}, {"visual_split": "val"}, {"without_image": "blank"}],
)
def test_a_later_setting_decides_once_it_is_used(changes: dict[str, object]) -> None:
    assert BuildConfig().what_decides() != BuildConfig(**changes).what_decides()
    assert not set(changes) & set(BuildConfig().what_decides())


def test_the_llm_annotator_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`llm_model` is needed(.|\n)*`llm_url` is needed"):
        parse_config(BuildConfig, argv=[*folders(tmp_path), "--annotator", "llm"])

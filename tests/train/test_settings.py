"""Keys of training commands: those that a run is known by, and the checks of each part."""

from typing import Any

import pytest

from reflectune.core.config import find_problems
from reflectune.train.answer_rewards.config import AnswerGrpoConfig
from reflectune.train.gate_rewards.config import GateConfig
from reflectune.train.grpo import GrpoConfig
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.sft import SftConfig

UNHASHED = {"model", "output_dir", "resume", "save_steps", "device", "gradient_checkpointing", "licence"}


@pytest.mark.parametrize(
    ("kind", "by_content"),
    [
        (SftConfig, {"train_data", "image_root", "cache_features", "eval_data"}),
        (GrpoConfig, {"dataset", "index", "ranked_entities", "rewards", "bem"}),
        (AnswerGrpoConfig, {"dataset", "train_data", "bem", "server", "llm_timeout", "llm_concurrency"}),
    ],
)
def test_a_run_is_known_by_every_key_but_those_that_do_not_determine_its_weights(
    kind: Any, by_content: set[str]
) -> None:
    config = kind()
    left_out = config.model_dump().keys() - config.hashed().keys()

    assert UNHASHED | by_content <= left_out
    assert {"learning_rate", "seed", "dtype", "lora_r", "scheme", "max_steps"} <= config.hashed().keys()


def test_validation_is_hashed_where_it_chooses_the_weights() -> None:
    keys = {"best_metric", "eval_steps", "eval_answers", "early_stopping_patience"}

    assert not keys & SftConfig().hashed().keys()
    assert keys <= SftConfig(best_metric="loss").hashed().keys()
    assert "eval_data" not in SftConfig(best_metric="loss").hashed()  # its content is hashed


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (SftConfig, {"lora_dropout": 1.0}, "`lora_dropout` must be between 0 and 0.99, found 1.0"),
        (SftConfig, {"gate_brier": -1.0}, "`gate_brier` must be at least 0, found -1.0"),
        (SftConfig, {"gate_brier": 1.0, "scheme": "plain"}, "`gate_brier` weighs gates, and `scheme: plain` has none"),
        (SftConfig, {"eval_steps": 0}, "`eval_steps` must be at least 1, found 0"),
        (SftConfig, {"eval_answers": -1}, "`eval_answers` must be at least 0, found -1"),
        (SftConfig, {"save_steps": 0}, "`save_steps` must be at least 1, found 0"),
        (SftConfig, {"learning_rate": 0.0}, "`learning_rate` must be above 0, found 0.0"),
        (EstimateConfig, {"device_gib": 0.0}, "`device_gib` must be above 0, found 0.0"),
        (EstimateConfig, {"eval_steps": 0}, "`eval_steps` must be at least 1, found 0"),
        (EstimateConfig, {"processes": 0}, "`processes` must be above 0, found 0"),
        (GateConfig, {"visual_limit": -1}, "`visual_limit` must be at least 0, found -1"),
        (GrpoConfig, {"lora_r": 0}, "`lora_r` must be at least 1, found 0"),
        (
            GrpoConfig,
            {"gradient_checkpointing": "auto"},
            "`gradient_checkpointing: auto` is for sft, which forecasts memory; set true or false",
        ),
        (GrpoConfig, {"max_pixels": -1}, "`max_pixels` must be at least 0, found -1"),
    ],
)
def test_each_part_of_a_config_checks_its_keys_once(kind: Any, changes: dict[str, Any], message: str) -> None:
    assert find_problems(kind, changes).count(message) == 1

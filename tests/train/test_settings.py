"""The keys of training commands are a contract, on which YAML files and unfinished runs depend."""

from typing import Any

import pytest
import yaml

from reflectune.core.config import find_problems
from reflectune.train.answer_rewards.config import AnswerGrpoConfig
from reflectune.train.gate_rewards.config import GateConfig
from reflectune.train.grpo import GrpoConfig
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.sft import SftConfig

# Keys and defaults of each class, those that all share first.
COMMON = yaml.safe_load(r"""{
    adam_beta2: 0.999, cache_mib: 512, dataloader_workers: 0, ddp_timeout: 1800, device: 'auto',
    double_quantization: true, dry_run: false, dtype: 'float32', epochs: 1.0, freeze_vision: false,
    gradient_accumulation_steps: 1, gradient_checkpointing: false, group_by_length: true, hub_private: true,
    image_fit: 'processor', learning_rate: 2.0e-05, licence: '', logging_steps: 10, lora_alpha: 32,
    lora_dropout: 0.0, lora_r: 16, lora_targets: '.*language_model.*\.(q|k|v|o|gate|up|down)_proj',
    lr_scheduler: 'cosine', matmul_precision: 'highest', max_grad_norm: 1.0, max_pixels: 0, max_steps: null,
    max_tokens: null, method: 'full', min_pixels: 0, output_dir: '', per_device_train_batch_size: 8,
    projector_learning_rate: null, push_to_hub: '', report_to: [], resume: true, save_steps: 500,
    save_total_limit: 1, scheme: 'mr2ag', seed: 0, train_towers: [], warmup: 0.03, weight_decay: 0.0
}""")
SFT = COMMON | yaml.safe_load(r"""{
    answer_weight: null, best_metric: '', cache_dtype: 'auto', cache_features: '',
    early_stopping_patience: null, eval_answers: 0, eval_data: '', eval_split: 'val', eval_steps: 500,
    gate_brier: 0.0, image_root: '', model: 'miniature/llava', train_data: {}, train_split: 'train', tree: true
}""")
ESTIMATE = SFT | yaml.safe_load(r"""{
    branch_supervised: 20, branch_tokens: 250, branches: null, device_gib: null, image_tokens: null,
    offload: false, processes: 1, sharding: ''
}""")
GATE = COMMON | yaml.safe_load(r"""{
    batch_questions: 8, bem: '', beta: 0.01, dataset: '', gates: ["retrieve"], hold: 1.0, keeping_cost: 0.1,
    limit: null, metric: '', model: '', policy_loss: 'regression', refresh_steps: 0, retrieval_cost: 0.01,
    rewards: '', split: 'train', visual_limit: null
}""")
GRPO = GATE | yaml.safe_load(r"""{
    answer_model: 'base', base_model: '', documents: 10, ranked_entities: '', summary_share: 0.0,
    title_weight: 0.5, encoder: 'miniature/clip', fallback: 'best_product', s_ret_temperature: 0.0, index: '',
    k: 'auto', keep_images: 0, lead: 'first_sentence', max_new_tokens: 32, max_reply_tokens: 128, mct: 'filter',
    srt: true, threshold: 0.5, token_budget: null, top_n: 5, gamma: 0.5, ret: true
}""")


@pytest.mark.parametrize(
    ("kind", "keys"), [(SftConfig, SFT), (EstimateConfig, ESTIMATE), (GateConfig, GATE), (GrpoConfig, GRPO)]
)
def test_the_keys_and_their_defaults_are_those_that_yaml_files_are_written_for(kind: Any, keys: dict[str, Any]) -> None:
    defaults = kind().model_dump()
    assert {name: str(value) if name == "k" else value for name, value in defaults.items()} == keys


UNHASHED = {"model", "output_dir", "resume", "save_steps", "cache_mib", "device", "gradient_checkpointing", "licence"}


@pytest.mark.parametrize(
    ("kind", "by_content"),
    [
        (SftConfig, {"train_data", "image_root", "cache_features", "eval_data"}),
        (GrpoConfig, {"dataset", "index", "ranked_entities", "rewards", "bem"}),
        (AnswerGrpoConfig, {"dataset", "train_data", "bem"}),
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


@pytest.mark.parametrize("key", ["train_data", "tree", "eval_data", "best_metric"])
def test_what_has_no_meaning_for_gates_is_no_attribute_of_their_config(key: str) -> None:
    assert not hasattr(GrpoConfig(), key)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (SftConfig, {"lora_dropout": 1.0}, "`lora_dropout` must be between 0 and 0.99, found 1.0"),
        (SftConfig, {"gate_brier": -1.0}, "`gate_brier` must be at least 0, found -1.0"),
        (SftConfig, {"gate_brier": 1.0, "scheme": "plain"}, "`gate_brier` weighs gates, and `scheme: plain` has none"),
        (SftConfig, {"eval_steps": 0}, "`eval_steps` must be at least 1, found 0"),
        (SftConfig, {"save_steps": 0}, "`save_steps` must be at least 1, found 0"),
        (SftConfig, {"cache_mib": -1}, "`cache_mib` must be at least 0, found -1"),
        (SftConfig, {"learning_rate": 0.0}, "`learning_rate` must be above 0, found 0.0"),
        (EstimateConfig, {"device_gib": 0.0}, "`device_gib` must be above 0, found 0.0"),
        (EstimateConfig, {"eval_steps": 0}, "`eval_steps` must be at least 1, found 0"),
        (GateConfig, {"visual_limit": -1}, "`visual_limit` must be at least 0, found -1"),
        (GrpoConfig, {"lora_r": 0}, "`lora_r` must be at least 1, found 0"),
        (GrpoConfig, {"max_pixels": -1}, "`max_pixels` must be at least 0, found -1"),
    ],
)
def test_each_part_of_a_config_checks_its_keys_once(kind: Any, changes: dict[str, Any], message: str) -> None:
    assert find_problems(kind, changes).count(message) == 1

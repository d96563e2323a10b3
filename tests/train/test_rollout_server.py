"""Replies of an agent's training that a vLLM server samples: what it is sent, and whose weights it reads."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.hits import PassageHit
from reflectune.inference.operators.requests import SearchReply
from reflectune.inference.pipelines.promsa import PromsaSettings
from reflectune.models.loading import load
from reflectune.train.answer_rewards.agent import AgentTraining
from reflectune.train.answer_rewards.agent_config import AgentGrpoConfig
from reflectune.train.answer_rewards.rollout_server import ROLLOUT_WEIGHTS, merged_weights
from reflectune.train.runs.skeleton import run
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import add_adapters

CALL = '<thinking>Which one?</thinking>\n<tool_call>{"name": "image_search", "arguments": {}}</tool_call>'
RIGHT = "<thinking>Of wood.</thinking>\n<answer>oak</answer>"
WRONG = "<thinking>Of stone.</thinking>\n<answer>stone</answer>"


@pytest.fixture
def training(tmp_path: Path, tuned_checkpoint, vllm_stub):
    """Returns a function that makes a training of two steps, whose replies come from a stub."""
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    questions = [Question(f"q{n}", "a.png", "What is it made of?", ("oak",), split="train") for n in range(4)]
    write_questions(tmp_path, "train", questions)
    write_json(tmp_path / "dataset.json", {"name": "t", "metric": "infoseek", "fingerprint": "f", "image_root": "."})
    hit = PassageHit(Passage("e", 0, 0, "tower", "", "", "It is made of oak."), 0.9, 1, "pairs")
    model = tuned_checkpoint(CALL + RIGHT, "plain", "qwen2_vl", "full")

    def make(**changes: Any) -> tuple[Any, AgentGrpoConfig, AgentTraining]:
        stub = vllm_stub(model, itertools.cycle([CALL, RIGHT, WRONG, CALL, RIGHT]))
        values = {"model": model, "dataset": str(tmp_path), "index": str(tmp_path), "device": "cpu", "server": stub.url}
        values |= {"output_dir": str(tmp_path / "out"), "max_new_tokens": 160, "temperature": 0.7, "llm_retries": 0}
        values |= {"generations": 4, "per_device_train_batch_size": 4}
        values |= {"max_steps": 2, "save_steps": 1, "save_total_limit": 2}
        settings = AgentGrpoConfig(**{**values, "learning_rate": 1e-2, "warmup": 0, "logging_steps": 1, **changes})
        worth = lambda answer, question: float(answer in question.answers)  # noqa: E731
        found = lambda asked: [SearchReply(({"pairs": (hit,)},)) for _ in asked]  # noqa: E731
        kept = PromsaSettings(call_passages=1)
        return stub, settings, AgentTraining(settings, Dataset(tmp_path), {}, worth, kept, lambda: (found, "pairs"))

    return make


def test_a_server_samples_with_the_weights_of_each_step_and_a_seed_for_each_request(training) -> None:
    stub, settings, method = training()
    run(settings, method)

    output = Path(settings.output_dir)
    log = read_json(output / "checkpoint-2/trainer_state.json", "log")["log_history"]
    assert any(row.get("grad_norm", 0) > 0 for row in log)
    first, second = stub.weights
    for weights, folder in ((first, Path(settings.model)), (second, output / "checkpoint-1")):
        saved = load_file(folder / "model.safetensors")
        assert weights.keys() == saved.keys()
        assert all(torch.equal(weights[name], saved[name]) for name in saved)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert not (output / ROLLOUT_WEIGHTS).exists()
    image, sampling = stub.renderer.image_token_id, [body["sampling_params"] for body in stub.requests]
    assert {body["token_ids"].count(image) for body in stub.requests} == {1}
    assert {len(body["content_parts"]) for body in stub.requests} == {1}
    assert {each["temperature"] for each in sampling} == {0.7}
    assert {each["max_tokens"] for each in sampling} == {160}
    assert all(each["logit_bias"] == {str(image): -100.0} for each in sampling)
    assert len({each["seed"] for each in sampling}) == len(sampling)
    assert len({body["cache_salt"] for body in stub.requests}) == len(stub.weights) == 2


def test_a_server_that_keeps_its_weights_is_refused(training) -> None:
    stub, settings, method = training()
    stub.exchanges = False
    with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
        run(settings, method)
    assert stub.requests == []


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_adapters_are_added_to_the_weights_and_stay(family: str) -> None:
    model: Any = load(f"miniature/{family}", scheme="plain").model
    tied = model.all_tied_weights_keys
    plain = {name: tensor.clone() for name, tensor in model.state_dict().items() if name not in tied}
    adapted = add_adapters(model, (), rank=4, alpha=8, dropout=0.0, targets=SftConfig().lora_targets)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}

    _, weights = merged_weights(adapted)

    assert weights.keys() == plain.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.state_dict().items())
    merged = adapted.merge_and_unload().state_dict()
    assert all(torch.allclose(weights[name], merged[name], atol=1e-6) for name in plain)
    assert any(not torch.equal(tensor, plain[name]) for name, tensor in weights.items())

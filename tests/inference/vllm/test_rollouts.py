"""A real vLLM reads the weights in training, and samples what they make likely."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.core.launching import ALONE
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine, end_tokens
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.images import ImageUrls
from reflectune.models.remote.token_server import TokenServer, request_after
from reflectune.train.answer_rewards.rollout_server import RolloutServer
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import add_adapters

QUESTION = "What is the height of the instrument?"


@pytest.mark.slow
def test_a_real_vllm_samples_with_the_weights_in_training(served, draw_image, tmp_path: Path) -> None:
    started = served("qwen2_vl")
    with started.alone():
        samples = sample_while_weights_change(started, draw_image(1), tmp_path / "weights")
    assert samples[0] != samples[1]  # of so many, some differ


def sample_while_weights_change(started: Any, image: Image.Image, folder: Path) -> list[list[list[int]]]:
    """Log-probabilities of its samples are those of the model whose adapters were trained meanwhile.

    At the end the server has the exported weights again, as other tests expect.
    """
    loaded = load(str(started.export))
    server = TokenServer(Endpoint(started.url, "", url_key="server"))
    server.find(str(started.export))
    ends = end_tokens(loaded)
    keys: Any = {"temperature": 1.0, "reply_tokens": 12}
    rollouts = RolloutServer(server, folder, loaded.renderer, ends, **keys)
    prompt = loaded.renderer.prefix(QUESTION, image)
    adapted = add_adapters(loaded.model, (), rank=4, alpha=8, dropout=0.0, targets=SftConfig().lora_targets)
    engine = PrefixEngine(loaded)  # adapters lie inside the model
    row = [*prompt.ids, *prompt.ids[-2:]]
    samples, urls = [], ImageUrls(lossless=True)
    for std in (0.1, 0.0):  # of the adapters after each turn
        rollouts.load(adapted, ALONE)
        torch.manual_seed(0)
        samples.append(rollouts.sample([row] * 24, [prompt] * 24))
        assert len({*map(tuple, samples[-1])}) > 1
        torch.manual_seed(0)
        assert rollouts.sample([row] * 24, [prompt] * 24) == samples[-1]
        greedy = {"temperature": 0, "max_tokens": 12, "logprobs": 0, "stop_token_ids": ends}
        [reply] = server.generate_all([request_after(prompt, (), greedy, urls, loaded.renderer)])
        [expected] = engine.generate(engine.read([prompt]), [(0, 0)], max_new_tokens=12)
        assert reply.ids == expected.token_ids
        assert reply.log_probs == pytest.approx(expected.log_probs, abs=1e-3)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=std)
    rollouts.load(adapted, ALONE)
    return samples

"""Replies sampled by a vLLM server, which reloads the current weights from a folder before each batch of rollouts.

The server runs in its own environment with `VLLM_SERVER_DEV_MODE=1`, which lets it reload weights by an HTTP request.
It must see the folder under the same path.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.models.remote.images import ImageUrls
from reflectune.models.remote.token_server import TokenServer, request_after
from reflectune.models.remote.transport import NotServed, Refused, Transport
from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.train.weights.checkpoints import refuse_full_disk

ROLLOUT_WEIGHTS = "rollout_weights"
"""Folder in `output_dir` through which the server gets the weights."""
_RELOAD = "/collective_rpc"
_SEEDS = 2**31


class RolloutServer:
    """A vLLM server that samples replies with the weights in training.

    Args:
        server: The server, after `TokenServer.find`.
        folder: Folder through which the server gets the weights; it must see it under the same path.
        renderer: Renderer of the prompts.
        ends: Ids that end a reply.
        temperature: Temperature of sampling.
        reply_tokens: Maximum tokens of a reply.
    """

    def __init__(
        self,
        server: TokenServer,
        folder: Path,
        renderer: Renderer,
        ends: Sequence[int],
        *,
        temperature: float,
        reply_tokens: int,
    ) -> None:
        self._server, self.folder, self._renderer = server, folder.resolve(), renderer
        self._urls = ImageUrls(lossless=True)
        self._sampling = {
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": reply_tokens,
            "logprobs": 0,
            "ignore_eos": True,  # from the server's config
            "stop_token_ids": [*ends],
            # an image token in a reply would need an image; TRL suppresses it too
            "logit_bias": {str(token): -100.0 for token in {renderer.image_token_id, renderer.expansion.token}},
        }

    def sample(self, rows: Sequence[Sequence[int]], prompts: Sequence[Rendered]) -> list[list[int]]:
        """Sample a reply after each row of token ids. Seeds are drawn from torch's generator.

        Raises:
            UnusableInput: The server refuses a row.
            UserError: The server can't be used, or preprocesses images differently.
        """
        seeds = torch.randint(_SEEDS, (len(rows),)).tolist()
        requests = [
            request_after(prompt, row[len(prompt.ids) :], {**self._sampling, "seed": seed}, self._urls, self._renderer)
            for row, prompt, seed in zip(rows, prompts, seeds, strict=True)
        ]
        return [reply.ids for reply in self._server.generate_all(requests)]

    def load(self, model: PreTrainedModel | PeftModel, processes: Processes) -> None:
        """Write the model's weights and let the server reload them. All processes call this together.

        Raises:
            UserError: The server can't reload weights.
        """
        # a new salt hides the cache of earlier weights; vLLM (0.32) fails on an image whose states it has dropped
        self._server.salt = uuid.uuid4().hex
        if processes.index == 0:
            self._exchange(*merged_weights(model))
        processes.wait()

    def remove_weights(self) -> None:
        """Delete the weights written for the server."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _exchange(self, network: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
        self.remove_weights()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        refuse_full_disk(self.folder.parent, sum(tensor.nbytes for tensor in weights.values()))
        network.save_pretrained(self.folder, state_dict=dict(weights))
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        endpoint = self._server.endpoint
        try:
            with closing(Transport(endpoint, _RELOAD)) as transport:
                transport.post(body, lambda value: value["results"])
        except NotServed:
            raise UserError(
                f"{endpoint.shown_url} can't reload weights: start vLLM with VLLM_SERVER_DEV_MODE=1 in its "
                "environment, on this machine or one that sees its folders"
            ) from None
        except Refused as error:
            raise UserError(f"{endpoint.shown_url} refuses the weights in {self.folder}: {error}") from None


def merged_weights(model: PreTrainedModel | PeftModel) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Return the base model, and its weights by name with the adapters merged into them.

    Sums are computed in float32 and rounded once. The model is not changed. A tied weight has one name.
    """
    network: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, LoraLayer)}
    weights: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        module, _, weight_name = name.partition(".base_layer.")
        if ".lora_" in name or ".original_module." in name:
            continue
        if weight_name == "weight" and module in layers:
            layer: Any = layers[module]
            changes = (layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
            tensor = sum(changes, tensor.float()).to(tensor.dtype).cpu()  # the GPU must not hold a second model
        weights[name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")] = tensor
    return network, {name: tensor for name, tensor in weights.items() if name not in network.all_tied_weights_keys}

"""Check, before the first question, that a server serves the expected checkpoint."""

from __future__ import annotations

import math
from typing import Final

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.models.loading import Loaded
from reflectune.models.remote.images import ImageUrls
from reflectune.models.remote.served_engine import ServedEngine
from reflectune.models.remote.token_server import TokenServer
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.schemes.base import Scheme

_QUESTION: Final = "What is it made of?"
LEAST_MASS: Final = 0.1
"""Minimum total probability of a gate's two tokens for a fine-tuned checkpoint."""
_LIKELY: Final = 20
"""Number of most likely tokens to request: vLLM's default maximum."""
_BIAS: Final = 20.0
_TOLERANCE: Final = 1e-3


def served_engine(loaded: Loaded, server: TokenServer) -> ServedEngine:
    """Return the engine of a served checkpoint, after checking that the server behaves like the checkpoint.

    Checked are the model's name, the ids of the reflection tokens and of a rendered question with an image, and that
    log-probabilities are the model's own, before any processing.

    Raises:
        UserError: The server differs. The message names the difference and the fix.
    """
    url = server.endpoint.shown_url
    longest = server.find(loaded.name)
    renderer = loaded.renderer
    for role, token_id in renderer.token_ids.items():
        token = loaded.scheme.tokens[role] if loaded.scheme else ""
        if (found := server.tokenize(prompt=token, add_special_tokens=False)) != [token_id]:
            raise UserError(
                f"{url} reads {token} as tokens {found}, and {loaded.name} as {token_id}: the tokenizers differ; "
                f"serve the checkpoint's folder, or a copy that `reflectune export` wrote"
            )
    engine = ServedEngine(loaded, server, longest)
    image = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    prefix = renderer.prefix(_QUESTION, image)
    part = {"type": "image_url", "image_url": {"url": ImageUrls(lossless=True).of(image)}}
    message = {"role": "user", "content": [part, {"type": "text", "text": _QUESTION}]}
    if (found := server.tokenize(messages=[message], chat_template_kwargs={"enable_thinking": False})) != prefix.ids:
        raise UserError(
            f"{url} tokenizes a question differently ({len(found)} ids) than {loaded.name} ({len(prefix.ids)}): its "
            "chat template, its tokenizer or its image processor differs; serve the checkpoint's folder, without "
            "--chat-template"
        )
    _check_log_probabilities(engine, prefix)
    if loaded.scheme is not None and loaded.is_tuned and loaded.scheme.gates:
        _check_gate(engine, loaded.scheme, loaded.name, image)
    return engine


def _check_log_probabilities(engine: ServedEngine, prefix: Rendered) -> None:
    """Raise a UserError if log-probabilities are not normalized, or change with a logit bias."""
    url = engine.server.endpoint.shown_url
    [likely] = engine.ask(prefix, {"max_tokens": 1, "logprobs": _LIKELY})
    ids = [*likely.first]
    mass = sum(math.exp(min(value, 1.0)) for value in likely.first.values())
    listed = {"logprobs": len(ids) + 1, "logprob_token_ids": [*ids, ids[0]]}
    [biased] = engine.ask(prefix, {"max_tokens": 1, **listed, "logit_bias": {str(ids[0]): _BIAS}})
    change = max(abs(biased.first.get(i, value) - value) for i, value in likely.first.items())
    if mass > 1 + _TOLERANCE or change > _TOLERANCE:
        reason = "a bias changes them"
        if change <= _TOLERANCE:
            reason = f"the probabilities of {len(ids)} tokens sum to {mass:.3g}"
        raise UserError(
            f"{url} gives log-probabilities that are not the model's own ({reason}); start vLLM with "
            "--logprobs-mode raw_logprobs"
        )


def _check_gate(engine: ServedEngine, scheme: Scheme, name: str, image: Image.Image) -> None:
    """Raise a UserError if the served model gives the first gate's tokens a low probability."""
    renderer, gate = engine.renderer, scheme.gates[0]
    state = engine.read([scheme.open(renderer, _QUESTION, image)])
    branch = scheme.retrieval_gate(renderer)[0][:-1]
    words = renderer.ids_of(gate.positive, gate.negative)
    both = engine.branch(state, [[branch]]).probabilities(words)[0] if branch else state.probabilities(words)
    if (mass := float(both.sum())) < LEAST_MASS:
        raise UserError(
            f"the model behind {engine.server.endpoint.shown_url} gives {scheme.tokens[gate.positive]} and "
            f"{scheme.tokens[gate.negative]} together only {mass:.2%}: it is not {name}; serve that checkpoint's folder"
        )

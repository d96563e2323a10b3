"""Exported checkpoints answer over HTTP as plain transformers does, in a real vLLM."""

import base64
import io
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.models.loading import Loaded, load

QUESTIONS = (
    "What is the height of the instrument?",
    "Which colour is it?",
    "When was the tower built?",
    "Who drew it?",
)


def log_probs_of(server: Any, question: str, draw_image: Image.Image, ids: list[int]) -> list[float]:
    """Return the log-probabilities of tokens at the beginning of a served reply."""
    encoded = io.BytesIO()
    draw_image.save(encoded, "PNG")
    address = f"data:image/png;base64,{base64.b64encode(encoded.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": question}]
    body = {"model": server.model, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
    asked = {"temperature": 0, "logprobs": True, "logprob_token_ids": ids, "return_tokens_as_token_ids": True}
    reply = server.ask("chat/completions", body | asked | {"skip_special_tokens": False})
    listed = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    found = {int(row["token"].removeprefix("token_id:")): row["logprob"] for row in listed}
    return [found[number] for number in ids]


@torch.no_grad()
def expected_of(loaded: Loaded, question: str, draw_image: Image.Image, ids: list[int]) -> list[float]:
    """Return the same of transformers, from a reading of the whole row."""
    rendered = loaded.renderer.prefix(question, draw_image)
    row = torch.tensor([rendered.ids])
    model: Any = loaded.model
    log_probs: list[float] = model(input_ids=row, **rendered.vision).logits[0, -1].log_softmax(-1)[ids].tolist()
    return log_probs


@pytest.mark.slow
def test_a_real_vllm_loads_an_exported_adapter_and_reads_the_same_gates(served, draw_image) -> None:
    """`test_pipelines.py` reads those of a merged export."""
    server = served("llava", adapter=True)
    loaded = load(server.checkpoint)
    ids = list(loaded.renderer.token_ids.values())
    gates = []
    for number, question in enumerate(QUESTIONS):
        shown = draw_image(number).resize((150, 100))  # the processor scales it
        found, expected = log_probs_of(server, question, shown, ids), expected_of(loaded, question, shown, ids)
        assert found == pytest.approx(expected, abs=1e-3)
        gates.append(torch.tensor(found[:2]).softmax(0)[0].item())

    assert max(gates) - min(gates) > 0.05  # they differ from question to question
    assert server.ask("models")["data"][-1]["id"] == server.model
    assert "version 0.32" in server.log.read_text()

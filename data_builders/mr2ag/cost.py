"""Estimate the requests of the annotator `llm` and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.annotators.llm import conversation
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mr2ag.builder import ExampleBuilder
from reflectune.models.remote.client import request_key
from reflectune.models.remote.endpoint import Endpoint

SAMPLE = 256
"""Maximum questions that an estimate reads, evenly spaced."""
MEASURED = 20
"""Minimum number of cached replies whose tokens are used for an estimate."""

_CHARACTERS_PER_TOKEN = 4
"""Rough average for English text, used without cached replies."""


@dataclass(frozen=True)
class AnnotationEstimate:
    """Requests, tokens and cost of an annotation.

    Attributes:
        requests: Requests still to send.
        cached: Replies that are cached already.
        prompt_tokens: Tokens to send.
        completion_tokens: Tokens to receive: at most, or by the average of the cached replies.
        measured: Number of cached replies used; 0 if there are too few.
        sampled: Number of questions read; 0 for all.
        first: Text of the first request.
    """

    requests: int
    cached: int
    prompt_tokens: int
    completion_tokens: int
    measured: int
    sampled: int
    first: str

    def describe(self, endpoint: Endpoint) -> str:
        """Return the estimate in two lines."""
        cached = f" ({self.cached:,} more are answered already)" if self.cached else ""
        at_most = "about" if self.measured else "at most"
        per_reply = "" if self.measured else f" ({endpoint.max_tokens} each)"
        basis = [
            *([f"from {self.sampled} evenly spaced questions"] if self.sampled else []),
            *([f"by the {self.measured:,} cached replies"] if self.measured else []),
        ]
        lines = [
            f"{endpoint.model} would be asked about {self.requests:,} paragraphs{cached}: "
            f"about {self.prompt_tokens:,} tokens to send, {at_most} {self.completion_tokens:,} to receive{per_reply}"
            + (f"; estimated {' and '.join(basis)}" if basis else "")
        ]
        if endpoint.input_price or endpoint.output_price:
            cost = endpoint.cost(self.prompt_tokens, self.completion_tokens)
            prices = f"{endpoint.input_price:g} and {endpoint.output_price:g} for a million tokens sent and received"
            lines.append(f"cost: {at_most} {cost:,.2f}, at {prices}")
        else:
            lines.append("cost unknown: set `llm_input_price` and `llm_output_price`, of a million tokens")
        return "\n".join(lines)


def estimate(
    builder: ExampleBuilder, questions: Sequence[Question], endpoint: Endpoint, cache: Path
) -> AnnotationEstimate:
    """Estimate the requests for questions. Nothing is sent or written.

    Args:
        builder: Builder of the examples.
        questions: All knowledge-based questions.
        endpoint: The server and model.
        cache: File of replies, which may be missing.
    """
    rows = read_rows(cache) if cache.is_file() else ()
    cached = {row["id"]: (row["prompt_tokens"], row["completion_tokens"]) for row in rows}
    # Questions that differ only in their images share requests: InfoSeek has many images per question.
    questions = list({(q.text, canonical_answer(q), q.entity_ids, q.evidence): q for q in questions}.values())
    count = min(len(questions), SAMPLE)
    sample = [questions[position * len(questions) // count] for position in range(count)]
    prompts: dict[str, str] = {}
    for question in sample:
        with suppress(UserError):  # a bad row, which the build reports
            for passage in builder.candidates(question):
                messages = conversation((question, passage))
                prompts.setdefault(request_key(endpoint, endpoint.request(messages)), messages[0]["content"])
    scale = len(questions) / max(1, len(sample))
    left = [prompt for key, prompt in prompts.items() if key not in cached]
    requests = round(len(left) * scale)
    measured = len(cached) if len(cached) >= MEASURED else 0
    sent, received = (sum(column) for column in zip(*cached.values(), strict=True)) if measured else (0, 0)
    characters = sum(map(len, left)) * scale
    return AnnotationEstimate(
        requests=requests,
        cached=round((len(prompts) - len(left)) * scale),
        prompt_tokens=round(requests * sent / measured) if measured else round(characters / _CHARACTERS_PER_TOKEN),
        completion_tokens=round(requests * received / measured) if measured else requests * endpoint.max_tokens,
        measured=measured,
        sampled=len(sample) if len(sample) < len(questions) else 0,
        first=next(iter(left), "").rstrip(),
    )

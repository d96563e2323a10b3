"""What the annotator `llm` is asked: how much that is before the first request, and the same as files of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.annotators.llm import conversation
from reflectune.data_builders.annotators.protocol import Annotation, Case
from reflectune.data_builders.annotators.string import by_string
from reflectune.data_builders.mr2ag.builder import ExampleBuilder
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.formats.dataset import Dataset
from reflectune.models.remote.batches import BatchFolder, Results, Written
from reflectune.models.remote.client import RemoteModel, request_key
from reflectune.models.remote.endpoint import Endpoint

SAMPLE = 256
"""Questions, at even distances, that an estimate is made from."""
MEASURED = 20
"""So many replies that are kept tell what others will cost."""

_LETTERS_A_TOKEN = 4
"""Of English text, roughly; as long as no reply told how many tokens a request has."""
_CHUNK = 64


@dataclass(frozen=True)
class Estimate:
    """What an annotation will cost.

    Attributes:
        requests: Still to be sent.
        kept: Replies that are there already.
        prompt_tokens: To send.
        completion_tokens: To receive: at most, or as many as kept replies have on average.
        measured: Kept replies that the tokens are reckoned from; 0 if there are too few.
        sampled: Questions that it was made from; 0 for all.
        first: What is asked first.
    """

    requests: int
    kept: int
    prompt_tokens: int
    completion_tokens: int
    measured: int
    sampled: int
    first: str

    def told(self, endpoint: Endpoint) -> str:
        """The estimate, in two lines."""
        kept = f" ({self.kept:,} more are answered already)" if self.kept else ""
        at_most = "about" if self.measured else "at most"
        each = "" if self.measured else f" ({endpoint.max_tokens} each)"
        basis = [
            *([f"from {self.sampled} questions at even distances"] if self.sampled else []),
            *([f"by the {self.measured:,} replies that are kept"] if self.measured else []),
        ]
        lines = [
            f"{endpoint.model} would be asked about {self.requests:,} paragraphs{kept}: "
            f"about {self.prompt_tokens:,} tokens to send, {at_most} {self.completion_tokens:,} to receive{each}"
            + (f"; estimated {' and '.join(basis)}" if basis else "")
        ]
        if endpoint.input_price or endpoint.output_price:
            cost = endpoint.cost(self.prompt_tokens, self.completion_tokens)
            prices = f"{endpoint.input_price:g} and {endpoint.output_price:g} for a million tokens sent and received"
            lines.append(f"cost: {at_most} {cost:,.2f}, at {prices}")
        else:
            lines.append("cost unknown: set `llm_input_price` and `llm_output_price`, of a million tokens")
        return "\n".join(lines)


def estimate(builder: ExampleBuilder, questions: Sequence[Question], config: BuildConfig, cache: Path) -> Estimate:
    """What the annotator would be asked and what that costs; nothing is sent or written.

    Args:
        builder: Of the build.
        questions: All that it is about.
        config: The build's.
        cache: The file of replies, which need not be there.
    """
    endpoint = config.endpoint()
    kept = _kept(cache)
    some = _evenly(questions, SAMPLE)
    prompts: dict[str, str] = {}
    for question in some:
        with suppress(UserError):  # a bad row: the build says so
            for passage in builder.candidates(question):
                messages = conversation((question, passage))
                prompts.setdefault(request_key(endpoint, endpoint.request(messages)), messages[0]["content"])
    scale = len(questions) / max(1, len(some))
    left = [prompt for key, prompt in prompts.items() if key not in kept]
    requests = round(len(left) * scale)
    measured = len(kept) if len(kept) >= MEASURED else 0
    sent, received = (sum(column) for column in zip(*kept.values(), strict=True)) if measured else (0, 0)
    letters = sum(map(len, left)) * scale
    return Estimate(
        requests=requests,
        kept=round((len(prompts) - len(left)) * scale),
        prompt_tokens=round(requests * sent / measured) if measured else round(letters / _LETTERS_A_TOKEN),
        completion_tokens=round(requests * received / measured) if measured else requests * endpoint.max_tokens,
        measured=measured,
        sampled=len(some) if len(some) < len(questions) else 0,
        first=next(iter(prompts.values()), "").rstrip(),
    )


def ask_by_batch(dataset: Dataset, questions: Sequence[Question], config: BuildConfig, model: RemoteModel) -> bool:
    """Keep the replies of the batch's result files, and write files of what is still to be asked.

    Returns:
        Whether nothing is left to ask: the build can go on.

    Raises:
        UserError: A result file is damaged, or a row is bad and `on_error` is stop.
    """
    batch = BatchFolder(config.llm_batch)
    results = batch.read_results(model)
    written = batch.write(_requests(dataset, questions, config, model), results)
    if results.answered:
        print(f"{batch.folder}: {results}")
    if not (written.files or written.waiting):
        return True
    if written.files:
        builder = ExampleBuilder(dataset, None, by_string, config)
        print(estimate(builder, questions, config, model.cache).told(model.endpoint))
    print(_told(batch, results, written))
    return False


def _requests(
    dataset: Dataset, questions: Sequence[Question], config: BuildConfig, model: RemoteModel
) -> Iterator[tuple[str, dict[str, object]]]:
    """What the builder will ask, by the builder itself: bad rows are told before anything is paid."""
    cases: list[Case] = []

    def collect(some: Sequence[Case]) -> list[Annotation]:
        cases.extend(some)
        return [Annotation("unclear") for _ in some]

    builder = ExampleBuilder(dataset, None, collect, config)
    for start in range(0, len(questions), _CHUNK):
        builder.knowledge(questions[start : start + _CHUNK])
        yield from model.unanswered([conversation(case) for case in cases]).items()
        cases.clear()


def _told(batch: BatchFolder, results: Results, written: Written) -> str:
    lines = [f"{path}: {count:,} requests, to be given to the batch API" for path, count in written.files]
    lines += [f"{path}: {count:,} requests without a result yet" for path, count in sorted(written.waiting.items())]
    again = sum(results.errors.values())
    lines += [f"{again:,} of them failed before and are asked again"] if again else []
    lines.append(f"put the result files into {batch.folder}, and run the same command again")
    return "\n".join(lines)


def _kept(cache: Path) -> dict[str, tuple[int, int]]:
    """The tokens sent and received for each reply that is kept."""
    if not cache.is_file():
        return {}
    return {row["id"]: (row["prompt_tokens"], row["completion_tokens"]) for row in read_rows(cache)}


def _evenly(questions: Sequence[Question], count: int) -> list[Question]:
    if len(questions) <= count:
        return list(questions)
    return [questions[position * len(questions) // count] for position in range(count)]

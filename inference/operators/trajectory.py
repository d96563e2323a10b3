"""Execute the trajectories of many questions at once: equal steps of different questions form one batch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from reflectune.core.errors import UnusableInput
from reflectune.core.images import Images
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.models import ServedModel
from reflectune.inference.operators.request_pool import RequestPool
from reflectune.inference.operators.requests import (
    ANSWERING,
    JudgeEachReply,
    JudgeEachRequest,
    JudgeReply,
    JudgeRequest,
    ModelName,
    Prompt,
    RerankReply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    SimilarityReply,
    SimilarityRequest,
    StepReply,
    StepRequest,
    WriteReply,
    WriteRequest,
    YesNoRequest,
)
from reflectune.inference.operators.step_log import StepLog
from reflectune.inference.operators.trajectory_state import TrajectoryState
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.trace import PassageTrace, Trace, publish

SearchFunction = Callable[[Sequence[tuple[Images, SearchRequest]]], Sequence[SearchReply]]
"""Function from images and searches to their results."""
Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Unit vectors of texts: (texts, dimensions)."""
TooLong = Callable[[Sequence[str]], list[bool]]
"""True for each text that is longer than an encoder reads."""
RerankFunction = Callable[[Sequence[tuple[Images, RerankRequest]]], Sequence[RerankReply]]
"""Function from images and texts with passages to the reranker's scores."""
_WAITING: Final = 0.25
"""Requests queued in addition to those under way, as a share of them, so that no thread is idle during a search."""


class Model(Protocol):
    """A model on this machine that executes steps in batches."""

    def write(self, prompts: Sequence[tuple[Images, Prompt]], max_tokens: int) -> list[WriteReply]:
        """Generate a reply to each prompt."""
        ...

    def judge(self, prompts: Sequence[tuple[Images, Prompt]], yes: str, no: str) -> list[JudgeReply]:
        """Compute P(yes) and P(no) of each prompt."""
        ...

    def judge_each(self, prompts: Sequence[tuple[Images, Prompt]], yes: str, no: str) -> list[JudgeEachReply]:
        """Compute P(yes) and P(no) of each prompt with each of its documents alone."""
        ...


def none_too_long(texts: Sequence[str]) -> list[bool]:
    """Return False for each text."""
    return [False for _ in texts]


def _missing(*_: object) -> Any:
    raise ValueError("this pipeline needs a tool that it was not given")


@dataclass(frozen=True)
class Tools:
    """Models and functions that execute steps.

    Attributes:
        models: Models by the name that a step uses.
        search: Searches.
        embed: Encodes texts for comparison.
        rerank: Scores passages.
        budget: Limits of a question and of the run.
        retries: True to retry once if a reply can't be parsed.
        too_long: Finds texts that `embed` truncates.
    """

    models: Mapping[ModelName, Model | ServedModel]
    search: SearchFunction = _missing
    embed: Embed = _missing
    rerank: RerankFunction = _missing
    budget: Budget = dataclasses.field(default_factory=Budget)
    retries: bool = False
    too_long: TooLong = none_too_long


@dataclass(frozen=True)
class TrajectoryResult:
    """The result of a trajectory.

    Attributes:
        answer: The answer.
        ended: Reason for the end, e.g. `after 3 iterations`, `queries repeat`, `nothing was found`.
        confidence: The answer's score, if known.
        passages: Passages found, in order.
        chosen: Position in `passages` of the source of the answer; None unless it is a single one.
        used: Positions in `passages` of those that the answer was generated from, if not all.
        fallback: The fallback used if the trajectory gave no answer; "" otherwise.
        records: Reasoning records, in order.
        counts: The pipeline's own counts, in addition to the steps' counts.
        judged: Judgements of passages by the relevance gate.
    """

    answer: str
    ended: str
    confidence: float | None = None
    passages: tuple[Passage, ...] = ()
    chosen: int | None = None
    used: tuple[int, ...] = ()
    fallback: str = ""
    records: tuple[str, ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    judged: Mapping[Passage, JudgeReply] = dataclasses.field(default_factory=dict)


Trajectory = Callable[[Question], Steps[TrajectoryResult]]
"""Function that starts a question's trajectory."""


class TrajectoryPipeline:
    """A pipeline in which each question follows a trajectory of steps.

    Every round executes one kind of step for all questions that wait for it, choosing the kind with the most requests.
    Questions at different iterations thus share a batch, as do a question's steps that don't depend on each other.

    Requests to a served model are sent as soon as a trajectory yields them. If all models are served, there are no
    rounds: further questions are started until `llm_concurrency` requests are under way and a few more are queued.

    Args:
        start: Starts a question's trajectory.
        tools: Models and functions that execute steps.
        takes_texts: True if it also answers questions without an image.
    """

    def __init__(
        self,
        name: str,
        start: Trajectory,
        tools: Tools,
        *,
        takes_texts: bool = False,
    ) -> None:
        self.name, self.tools, self.takes_texts = name, tools, takes_texts
        self._start = start

    def guided(
        self, wrap: Callable[[Question, Steps[TrajectoryResult]], Steps[TrajectoryResult]]
    ) -> TrajectoryPipeline:
        """Return a copy of the pipeline that wraps each trajectory by `wrap`."""
        start = self._start
        return TrajectoryPipeline(
            self.name, lambda question: wrap(question, start(question)), self.tools, takes_texts=self.takes_texts
        )

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order."""
        ended = {state.position: state for state in self._execute_all(zip(questions, images, strict=True))}
        return [_trace(self.name, ended[position]) for position in range(len(questions))]

    def stream(
        self, asked: Iterable[tuple[Question, Images]], failed: Callable[[Question, UnusableInput], Trace]
    ) -> Iterator[Trace]:
        """Yield the trace of each question when its trajectory ends.

        Args:
            asked: Questions with their images. The next one is taken when its trajectory can start.
            failed: Returns the trace of a question that can't be used.
        """
        for state in self.guided(_keeping_errors)._execute_all(asked):
            error = state.outcome if isinstance(state.outcome, UnusableInput) else None
            yield failed(state.question, error) if error else _trace(self.name, state)

    def _execute_all(self, asked: Iterable[tuple[Question, Images]]) -> Iterator[TrajectoryState]:
        """Execute the trajectories of questions, and yield each when it ends."""
        served = [model for model in self.tools.models.values() if isinstance(model, ServedModel)]
        threads = max((model.concurrency for model in served), default=1)
        all_served = len(served) == len(self.tools.models)
        max_requests = threads + int(_WAITING * threads) + 1
        remaining = enumerate(asked)
        states: list[TrajectoryState] = []
        has_more = True
        with RequestPool[tuple[TrajectoryState, int]](threads) as pool:
            while states or has_more:
                while has_more and not (
                    all_served and pool.load + sum(bool(state.due) for state in states) >= max_requests
                ):
                    following = next(remaining, None)
                    if following is None:
                        has_more = False
                    else:
                        states.append(self._begin(*following))
                self._end_spent([state for state in states if state.due])
                yield from (state for state in states if not state.waiting)
                states = [state for state in states if state.waiting]
                self._send(states, pool)
                group = _largest_group(states) if all_served or not pool.load else []
                received = self._execute(group)
                for (state, position), replies, seconds in pool.collect(wait=not group):
                    is_each = isinstance(state.waiting[position], JudgeEachRequest)
                    read = sum(it.read for it in replies) if is_each else 0
                    reply = JudgeEachReply(tuple(replies), read) if is_each else replies[0]
                    received.append((state, position, reply, seconds))
                for state, position, reply, seconds in received:
                    state.receive(position, reply, seconds)
                changed = dict.fromkeys(state for state, *_ in received)
                publish(Trace(it.question.id, self.name, steps=tuple(it.log.steps)) for it in changed)

    def _begin(self, position: int, asked: tuple[Question, Images]) -> TrajectoryState:
        """Begin the trajectory of a question."""
        question, image = asked
        shown = dataclasses.replace(question, image="" if image is None else question.image or "image")
        steps = self._start(shown)
        state = TrajectoryState(position, question, image, steps, self.tools.models, retries=self.tools.retries)
        state.advance()
        return state

    def _send(self, states: Sequence[TrajectoryState], pool: RequestPool[tuple[TrajectoryState, int]]) -> None:
        """Send the requests to served models."""
        for state in states:
            for position in [*state.due]:
                request = state.waiting[position]
                if not isinstance(request, WriteRequest | YesNoRequest):
                    continue
                model = self.tools.models[request.model]
                if isinstance(model, ServedModel):
                    state.due.remove(position)
                    pool.send((state, position), model.requests(state.image, request))

    def _end_spent(self, states: Sequence[TrajectoryState]) -> None:
        """End trajectories that exceed their budget before their next step."""
        budget = self.tools.budget
        spent = budget.spent()
        for state in states:
            if state.may_end and (limit := budget.reached(state.log.tokens, spent)) is not None:
                state.end(limit)

    def _execute(
        self, group: Sequence[tuple[TrajectoryState, int]]
    ) -> list[tuple[TrajectoryState, int, StepReply, float]]:
        """Execute requests of one kind as a batch.

        Returns:
            The state, the request's position in it, the reply, and the seconds of each request.
        """
        if not group:
            return []
        requests: list[Any] = [state.waiting[position] for state, position in group]
        start = time.perf_counter()
        replies = self._replies([state.image for state, _ in group], requests)
        seconds = (time.perf_counter() - start) / len(group)
        for state, position in group:
            state.due.remove(position)
        return [(state, position, reply, seconds) for (state, position), reply in zip(group, replies, strict=True)]

    def _replies(self, images: Sequence[Images], requests: Sequence[Any]) -> Sequence[StepReply]:
        first, tools = requests[0], self.tools
        if isinstance(first, WriteRequest | YesNoRequest):
            model = tools.models[first.model]
            assert not isinstance(model, ServedModel)  # `_send` sent its requests
            prompts = [(image, request.prompt) for image, request in zip(images, requests, strict=True)]
            if isinstance(first, WriteRequest):
                return model.write(prompts, first.max_tokens)
            judge = model.judge if isinstance(first, JudgeRequest) else model.judge_each
            return judge(prompts, first.yes, first.no)
        if isinstance(first, RerankRequest):
            return tools.rerank(list(zip(images, requests, strict=True)))
        if isinstance(first, SearchRequest):
            return tools.search(list(zip(images, requests, strict=True)))
        return similarities(requests, tools.embed, tools.too_long)


def _keeping_errors(_: Question, steps: Steps[Any]) -> Steps[Any]:
    try:
        return (yield from steps)
    except UnusableInput as error:
        return error


def similarities(
    requests: Sequence[SimilarityRequest], embed: Embed, too_long: TooLong = none_too_long
) -> list[SimilarityReply]:
    """Compute each request's highest cosine similarities; every text is encoded once."""
    texts = list(dict.fromkeys(text for request in requests for text in (*request.texts, *request.others)))
    vectors = dict(zip(texts, embed(texts), strict=True))

    def highest(text: str, others: Sequence[str]) -> float:
        return max(float(vectors[text] @ vectors[other]) for other in others)

    return [
        SimilarityReply(tuple(highest(text, request.others) for text in request.texts), sum(too_long(request.texts)))
        for request in requests
    ]


def _largest_group(states: Sequence[TrajectoryState]) -> list[tuple[TrajectoryState, int]]:
    """Return the largest group of requests of one kind, as states and positions; the first of equally large ones."""
    groups: dict[tuple[object, ...], list[tuple[TrajectoryState, int]]] = {}
    for state in states:
        for position in state.due:
            groups.setdefault(_kind(state.waiting[position]), []).append((state, position))
    return max(groups.values(), key=len, default=[])


def _kind(request: StepRequest) -> tuple[object, ...]:
    """Return the attributes that requests of one batch have in common."""
    if isinstance(request, WriteRequest):
        return (WriteRequest, request.model, request.max_tokens, request.prompt.image)
    if isinstance(request, YesNoRequest):
        return (type(request), request.model, request.yes, request.no, request.prompt.image)
    return (type(request),)


def _trace(name: str, state: TrajectoryState) -> Trace:
    log = state.log
    answers = [step.text for step in log.steps if step.operator == "answer"]
    finished = [step.finished for step in log.steps if step.operator in ANSWERING]
    outcome = state.outcome or TrajectoryResult("".join(answers[-1:]), str(state.limit), fallback="budget")
    return Trace(
        question_id=state.question.id,
        pipeline=name,
        answer=outcome.answer,
        confidence=outcome.confidence,
        cut=not all(finished[-1:]),
        retrieved=any(step.operator == "search" for step in log.steps),
        hits=tuple(log.hits.values()),
        passages=tuple(_judged(passage, outcome.judged.get(passage)) for passage in outcome.passages),
        chosen=outcome.chosen,
        used=outcome.used,
        fallback=outcome.fallback,
        seconds={operator: round(seconds, 6) for operator, seconds in log.seconds.items()},
        tokens={**log.tokens, **outcome.counts},
        steps=tuple(log.steps),
        error=_refusal(outcome, log),
        ended=outcome.ended if state.limit is None else str(state.limit),
        limit={} if state.limit is None else {state.limit.key: state.limit.value},
    )


def _judged(passage: Passage, judgement: JudgeReply | None) -> PassageTrace:
    if judgement is None or not judgement.shown:
        return PassageTrace(passage)
    return PassageTrace(passage, s_rel=judgement.yes, s_irr=judgement.no)


def _refusal(outcome: TrajectoryResult, log: StepLog) -> str:
    """Return the error of a trajectory without an answer because a server refused a request; "" for others."""
    refused = [step for step in log.steps if step.refused]
    if outcome.answer.strip() or not refused:
        return ""
    return f"the server refused to {refused[-1].operator} ({refused[-1].refused}); shorten the prompt"

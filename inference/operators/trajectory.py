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
from reflectune.inference.operators.course import Course
from reflectune.inference.operators.models import ServedModel
from reflectune.inference.operators.request_pool import RequestPool
from reflectune.inference.operators.requests import (
    ANSWERING,
    JudgeEachReply,
    JudgeEachRequest,
    JudgeReply,
    JudgeRequest,
    LikenReply,
    LikenRequest,
    ModelName,
    Prompt,
    RerankReply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    StepReply,
    StepRequest,
    WriteReply,
    WriteRequest,
    YesNoRequest,
)
from reflectune.inference.operators.step_log import StepLog
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
"""Share of requests that wait for a thread, so that none is idle during a search."""


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
        retries: True to ask once more for a reply that can't be read.
        too_long: Finds texts that `embed` doesn't read whole.
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
        used: Positions in `passages` of those that the answer was read from, if not all.
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

    Requests to a served model are sent as soon as a trajectory comes to them. If all models are served, there are no
    rounds: questions begin while fewer requests than `llm_concurrency` are under way, and a few wait for a thread.

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
        self, guide: Callable[[Question, Steps[TrajectoryResult]], Steps[TrajectoryResult]]
    ) -> TrajectoryPipeline:
        """Return a copy that wraps each trajectory in `guide`."""
        begin = self._start
        return TrajectoryPipeline(
            self.name, lambda question: guide(question, begin(question)), self.tools, takes_texts=self.takes_texts
        )

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order."""
        ended = {course.place: course for course in self._ended(zip(questions, images, strict=True))}
        return [_trace(self.name, ended[place]) for place in range(len(questions))]

    def stream(
        self, asked: Iterable[tuple[Question, Images]], failed: Callable[[Question, UnusableInput], Trace]
    ) -> Iterator[Trace]:
        """Yield the trace of each question when it ends. Questions are taken as they begin.

        Args:
            asked: Questions with their images.
            failed: Returns the trace of a question that can't be used.
        """
        for course in self.guided(_keeping_errors)._ended(asked):
            error = course.outcome if isinstance(course.outcome, UnusableInput) else None
            yield failed(course.question, error) if error else _trace(self.name, course)

    def _ended(self, asked: Iterable[tuple[Question, Images]]) -> Iterator[Course]:
        """Yield trajectories as they end."""
        served = [model for model in self.tools.models.values() if isinstance(model, ServedModel)]
        threads = max((model.concurrency for model in served), default=1)
        most = threads + int(_WAITING * threads) + 1 if len(served) == len(self.tools.models) else 0
        beginning, courses, asks_more = enumerate(asked), list[Course](), True
        with RequestPool[tuple[Course, int]](threads) as pool:
            while courses or asks_more:
                while asks_more and (not most or pool.load + sum(bool(course.due) for course in courses) < most):
                    if asks_more := (it := next(beginning, None)) is not None:
                        courses.append(self._begun(*it))
                self._end_spent([course for course in courses if course.due])
                yield from (course for course in courses if not course.waiting)
                courses = [course for course in courses if course.waiting]
                self._send(courses, pool)
                group = _largest_group(courses) if most or not pool.load else []
                received = self._execute(group)
                for (course, place), replies, seconds in pool.collect(wait=not group):
                    is_each = isinstance(course.waiting[place], JudgeEachRequest)
                    read = sum(it.read for it in replies) if is_each else 0
                    reply = JudgeEachReply(tuple(replies), read) if is_each else replies[0]
                    received.append((course, place, reply, seconds))
                for course, place, reply, seconds in received:
                    course.receive(place, reply, seconds)
                changed = dict.fromkeys(course for course, *_ in received)
                publish(Trace(it.question.id, self.name, steps=tuple(it.log.steps)) for it in changed)

    def _begun(self, place: int, asked: tuple[Question, Images]) -> Course:
        """Begin the trajectory of a question."""
        question, image = asked
        shown = dataclasses.replace(question, image="" if image is None else question.image or "image")
        course = Course(place, question, image, self._start(shown), self.tools.models, retries=self.tools.retries)
        course.advance()
        return course

    def _send(self, courses: Sequence[Course], pool: RequestPool[tuple[Course, int]]) -> None:
        """Send the requests to served models."""
        for course in courses:
            for place in [*course.due]:
                request = course.waiting[place]
                if not isinstance(request, WriteRequest | YesNoRequest):
                    continue
                model = self.tools.models[request.model]
                if isinstance(model, ServedModel):
                    course.due.remove(place)
                    pool.send((course, place), model.requests(course.image, request))

    def _end_spent(self, courses: Sequence[Course]) -> None:
        """End trajectories that exceed their budget before their next step."""
        budget = self.tools.budget
        spent = budget.spent()
        for course in courses:
            if course.may_end and (limit := budget.reached(course.log.tokens, spent)) is not None:
                course.end(limit)

    def _execute(self, chosen: Sequence[tuple[Course, int]]) -> list[tuple[Course, int, StepReply, float]]:
        """Execute requests of one kind; return their trajectories, places, replies and seconds."""
        if not chosen:
            return []
        requests: list[Any] = [course.waiting[place] for course, place in chosen]
        start = time.perf_counter()
        replies = self._replies([course.image for course, _ in chosen], requests)
        seconds = (time.perf_counter() - start) / len(chosen)
        for course, place in chosen:
            course.due.remove(place)
        return [(course, place, reply, seconds) for (course, place), reply in zip(chosen, replies, strict=True)]

    def _replies(self, images: Sequence[Images], requests: Sequence[Any]) -> Sequence[StepReply]:
        first, tools = requests[0], self.tools
        if isinstance(first, WriteRequest | YesNoRequest):
            model = tools.models[first.model]
            assert not isinstance(model, ServedModel)  # `_send` takes its requests
            prompts = [(image, request.prompt) for image, request in zip(images, requests, strict=True)]
            if isinstance(first, WriteRequest):
                return model.write(prompts, first.max_tokens)
            judge = model.judge if isinstance(first, JudgeRequest) else model.judge_each
            return judge(prompts, first.yes, first.no)
        if isinstance(first, RerankRequest):
            return tools.rerank(list(zip(images, requests, strict=True)))
        if isinstance(first, SearchRequest):
            return tools.search(list(zip(images, requests, strict=True)))
        return likenesses(requests, tools.embed, tools.too_long)


def _keeping_errors(_: Question, steps: Steps[Any]) -> Steps[Any]:
    try:
        return (yield from steps)
    except UnusableInput as error:
        return error


def likenesses(requests: Sequence[LikenRequest], embed: Embed, too_long: TooLong = none_too_long) -> list[LikenReply]:
    """Compute the highest cosine similarities of comparisons; every text is encoded once."""
    texts = list(dict.fromkeys(text for request in requests for text in (*request.texts, *request.others)))
    vectors = dict(zip(texts, embed(texts), strict=True))

    def highest(text: str, others: Sequence[str]) -> float:
        return max(float(vectors[text] @ vectors[other]) for other in others)

    return [
        LikenReply(tuple(highest(text, request.others) for text in request.texts), sum(too_long(request.texts)))
        for request in requests
    ]


def _largest_group(courses: Sequence[Course]) -> list[tuple[Course, int]]:
    """Return the largest group of requests of one kind, as trajectories and places; of equal ones the first."""
    groups: dict[tuple[object, ...], list[tuple[Course, int]]] = {}
    for course in courses:
        for place in course.due:
            groups.setdefault(_kind(course.waiting[place]), []).append((course, place))
    return max(groups.values(), key=len, default=[])


def _kind(request: StepRequest) -> tuple[object, ...]:
    """Return the attributes that requests of one batch have in common."""
    if isinstance(request, WriteRequest):
        return (WriteRequest, request.model, request.max_tokens, request.prompt.image)
    if isinstance(request, YesNoRequest):
        return (type(request), request.model, request.yes, request.no, request.prompt.image)
    return (type(request),)


def _trace(name: str, course: Course) -> Trace:
    log = course.log
    answers = [step.text for step in log.steps if step.operator == "answer"]
    finished = [step.finished for step in log.steps if step.operator in ANSWERING]
    outcome = course.outcome or TrajectoryResult("".join(answers[-1:]), str(course.limit), fallback="budget")
    return Trace(
        question_id=course.question.id,
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
        ended=outcome.ended if course.limit is None else str(course.limit),
        limit={} if course.limit is None else {course.limit.key: course.limit.value},
    )


def _judged(passage: Passage, judgement: JudgeReply | None) -> PassageTrace:
    if judgement is None or not judgement.shown:
        return PassageTrace(passage)
    return PassageTrace(passage, s_rel=judgement.yes, s_irr=judgement.no)


def _refusal(outcome: TrajectoryResult, log: StepLog) -> str:
    """Return the error of a trajectory that a server's refusal left without an answer; "" for others."""
    refused = [step for step in log.steps if step.refused]
    if outcome.answer.strip() or not refused:
        return ""
    return f"the server refused to {refused[-1].operator} ({refused[-1].refused}); shorten the prompt"

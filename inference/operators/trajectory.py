"""Runs the trajectories of many questions at once: equal steps of different questions are one batch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reflectune.core.hashing import fingerprint
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import Budget, BudgetSpent, Limit, Spent
from reflectune.inference.operators.journal import Journal
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeEachRequest,
    JudgeReply,
    JudgeRequest,
    LikenReply,
    LikenRequest,
    ModelName,
    Picture,
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
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.models.rendering.thoughts import without_thoughts

SearchFunction = Callable[[Sequence[tuple[Picture, SearchRequest]]], Sequence[SearchReply]]
"""What looks things up: for each picture and search what was found."""
Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Unit vectors of texts: (texts, dimensions)."""
RerankFunction = Callable[[Sequence[RerankRequest]], Sequence[RerankReply]]
"""What compares texts with passages."""


class Model(Protocol):
    """A model as steps see it: on this machine, or behind a server."""

    def write(self, prompts: Sequence[tuple[Picture, Prompt]], max_tokens: int) -> list[WriteReply]:
        """A reply to each prompt."""
        ...

    def judge(self, prompts: Sequence[tuple[Picture, Prompt]], yes: str, no: str) -> list[JudgeReply]:
        """P(yes) and P(no) of each prompt."""
        ...

    def judge_each(self, prompts: Sequence[tuple[Picture, Prompt]], yes: str, no: str) -> list[JudgeEachReply]:
        """P(yes) and P(no) of each prompt with each of its documents alone."""
        ...


@dataclass(frozen=True)
class Tools:
    """What steps are carried out with.

    Attributes:
        models: By what a step calls them.
        search: Looks things up; None for pipelines that don't.
        embed: Encodes texts to compare them; None for pipelines that don't.
        rerank: Compares texts with passages; None for pipelines that don't.
        budget: How much may be used.
    """

    models: Mapping[ModelName, Model]
    search: SearchFunction | None = None
    embed: Embed | None = None
    rerank: RerankFunction | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)


@dataclass(frozen=True)
class TrajectoryResult:
    """What a trajectory ends with.

    Attributes:
        answer: The answer.
        ended: Why it ended, e.g. `after 3 iterations`, `queries repeat`, `nothing was found`.
        confidence: The answer's score, if it is known.
        passages: What was read, in order.
        chosen: Position in `passages` of the one that the answer is from; None if there is no single one.
        used: Positions in `passages` of what the answer was read from, where that is not all of them.
        fallback: How it was answered where the trajectory came to no answer; "" if it did come to one.
        records: What was written down of each search, in order.
        counts: What the pipeline has counted, beside the steps' own counts.
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


@dataclass
class _Course:
    """A trajectory under way."""

    question: Question
    image: Picture
    steps: Steps[TrajectoryResult]
    waiting: StepRequest | None = None
    log: StepLog = dataclasses.field(default_factory=StepLog)
    begun: set[tuple[object, ...]] = dataclasses.field(default_factory=set)
    limit: Limit | None = None
    outcome: TrajectoryResult | None = None

    def go_on(self, reply: StepReply | None) -> None:
        """Take the trajectory to its next request, or to its end."""
        try:
            self.waiting = self._seen(next(self.steps) if reply is None else self.steps.send(reply))
        except StopIteration as end:
            self.waiting, self.outcome = None, end.value

    def _seen(self, request: StepRequest) -> StepRequest:
        """A request as it is carried out: no prompt shows the picture of a question that has none."""
        if self.image is not None or not isinstance(request, (WriteRequest, YesNoRequest)):
            return request
        return dataclasses.replace(request, prompt=dataclasses.replace(request.prompt, picture=False))

    @property
    def may_end(self) -> bool:
        """Whether a budget that is used up can still end it: once, and not when it asks for its answer, or its form."""
        answers = isinstance(self.waiting, WriteRequest) and self.waiting.operator in ("answer", "extract")
        return self.waiting is not None and self.limit is None and not (answers and self.log.steps)

    def end(self, limit: Limit) -> None:
        """Have it answer from what it has, or else end with its last answer; one that has not begun ends with none."""
        self.limit = limit
        try:
            if not self.log.steps:
                raise BudgetSpent(limit)
            self.waiting = self._seen(self.steps.throw(BudgetSpent(limit)))
        except StopIteration as end:
            self.waiting, self.outcome = None, end.value
        except BudgetSpent:
            answers = [step.text for step in self.log.steps if step.operator == "answer"]
            self.waiting, self.outcome = None, TrajectoryResult("".join(answers[-1:]), str(limit), fallback="budget")


class TrajectoryPipeline:
    """A pipeline whose questions each follow a trajectory of steps.

    In every round one kind of step is carried out, the one that most questions wait for, for all of them at once. So
    questions that are at different iterations still fill one batch. A journal keeps each round's replies before the
    next begins; a run that was cut off is handed them again, in the same company, and goes on inside its trajectories.

    Args:
        name: What its traces are filed under.
        start: Begins a question's trajectory.
        tools: What steps are carried out with.
        journal: Keeps what was replied; None keeps nothing.
        takes_texts: Whether its trajectories answer questions without a picture, too.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[Question], Steps[TrajectoryResult]],
        tools: Tools,
        journal: Journal | None = None,
        *,
        takes_texts: bool = False,
    ) -> None:
        self.name, self.takes_texts = name, takes_texts
        self._start, self._tools, self._journal = start, tools, journal

    def guided(
        self, guide: Callable[[Question, Steps[TrajectoryResult]], Steps[TrajectoryResult]]
    ) -> TrajectoryPipeline:
        """The same pipeline without a journal, of each trajectory of which `guide` makes the steps carried out."""
        begin = self._start
        return TrajectoryPipeline(self.name, lambda question: guide(question, begin(question)), self._tools)

    def run(self, questions: Sequence[Question], images: Sequence[Picture]) -> list[Trace]:
        """One trace per question, in order."""
        courses = [
            _Course(question, image, self._start(_told(question, image)))
            for question, image in zip(questions, images, strict=True)
        ]
        for course in courses:
            course.go_on(None)
        batch, number = fingerprint([question.id for question in questions]), 0
        while any(course.waiting for course in courses):
            key = f"{batch} {number}"
            spent = self._end_spent(key, courses)
            waiting = [course for course in courses if course.waiting is not None]
            if not waiting:
                break
            chosen = _largest_group(waiting)
            requests = [course.waiting for course in chosen if course.waiting is not None]
            replies, seconds = self._replies(key, chosen, requests, spent)
            for course, request, raw in zip(chosen, requests, replies, strict=True):
                reply = _spoken(request, raw)
                course.log.add(request, reply, seconds / len(chosen))
                self._count_computed(course, request, reply)
                course.go_on(reply)
            number += 1
        return [_trace(self.name, course) for course in courses]

    def _end_spent(self, key: str, courses: Sequence[_Course]) -> Spent:
        """End the trajectories whose budget is used up before a round; what of the run's budget is used then.

        A round that the journal has was begun with what is noted there: the replies that came later don't count.
        """
        budget, noted = self._tools.budget, self._journal.spent(key) if self._journal is not None else None
        spent = budget.spent() if noted is None else noted
        for course in courses:
            if course.may_end and (limit := budget.reached(course.log.tokens, spent)) is not None:
                course.end(limit)
        return spent

    def _replies(
        self, key: str, courses: Sequence[_Course], requests: Sequence[StepRequest], spent: Spent
    ) -> tuple[Sequence[StepReply], float]:
        """What is replied in a round, and the seconds that it took; from the journal if it is there."""
        if self._journal is not None and (kept := self._journal.get(key, requests)) is not None:
            return kept
        start = time.perf_counter()
        replies = self._carry_out([course.image for course in courses], requests)
        seconds = time.perf_counter() - start
        if self._journal is not None:
            self._journal.put(key, requests, replies, seconds, spent)
        return replies, seconds

    def _count_computed(self, course: _Course, request: StepRequest, reply: StepReply) -> None:
        """Count the tokens that were read, what prompts about a picture share once; dropped where that isn't known."""
        if not isinstance(reply, (WriteReply, JudgeReply, JudgeEachReply)) or not isinstance(
            request, (WriteRequest, YesNoRequest)
        ):
            return
        if reply.shared is None:
            course.log.tokens.pop("computed", None)
        elif "computed" in course.log.tokens:
            beginning = (id(self._tools.models[request.model]), request.prompt.system, reply.shared)
            course.log.tokens["computed"] += reply.read - (reply.shared if beginning in course.begun else 0)
            course.begun.add(beginning)

    def _carry_out(self, images: Sequence[Picture], requests: Sequence[StepRequest]) -> Sequence[StepReply]:
        first = requests[0]
        if isinstance(first, WriteRequest | JudgeRequest | JudgeEachRequest):
            prompts = [
                request.prompt
                for request in requests
                if isinstance(request, WriteRequest | JudgeRequest | JudgeEachRequest)
            ]
            illustrated, model = list(zip(images, prompts, strict=True)), self._tools.models[first.model]
            if isinstance(first, WriteRequest):
                return model.write(illustrated, first.max_tokens)
            judge = model.judge if isinstance(first, JudgeRequest) else model.judge_each
            return judge(illustrated, first.yes, first.no)
        if isinstance(first, RerankRequest):
            if self._tools.rerank is None:
                raise ValueError(f"{self.name} reranks passages, but was given nothing to rerank them with")
            return self._tools.rerank([request for request in requests if isinstance(request, RerankRequest)])
        if isinstance(first, SearchRequest):
            if self._tools.search is None:
                raise ValueError(f"{self.name} searches, but was given nothing to search with")
            searches = [request for request in requests if isinstance(request, SearchRequest)]
            return self._tools.search(list(zip(images, searches, strict=True)))
        if self._tools.embed is None:
            raise ValueError(f"{self.name} compares texts, but was given nothing to compare them with")
        compared = [request for request in requests if isinstance(request, LikenRequest)]
        return likenesses(compared, self._tools.embed)


def _spoken(request: StepRequest, reply: StepReply) -> StepReply:
    """A reply as trajectories and traces have it: without a reasoning model's thoughts, unless they are asked for."""
    if not isinstance(reply, WriteReply) or (isinstance(request, WriteRequest) and request.keeps_thoughts):
        return reply
    return dataclasses.replace(reply, text=without_thoughts(reply.text))


def _told(question: Question, image: Picture) -> Question:
    """A question whose `image` is "" if there is no picture, and only then: a picture may come without its path."""
    return dataclasses.replace(question, image="" if image is None else question.image or "image")


def likenesses(requests: Sequence[LikenRequest], embed: Embed) -> list[LikenReply]:
    """What is replied to comparisons: cosine similarities, with every text encoded once."""
    texts = list(dict.fromkeys(text for request in requests for text in (*request.texts, *request.others)))
    vectors = dict(zip(texts, embed(texts), strict=True))

    def highest(text: str, others: Sequence[str]) -> float:
        return max(float(vectors[text] @ vectors[other]) for other in others)

    return [LikenReply(tuple(highest(text, request.others) for text in request.texts)) for request in requests]


def _largest_group(courses: Sequence[_Course]) -> list[_Course]:
    """Of the trajectories that wait, those that wait for the same kind of step: the most, of equal ones the first."""
    groups: dict[tuple[object, ...], list[_Course]] = {}
    for course in courses:
        groups.setdefault(_kind(course.waiting), []).append(course)
    return max(groups.values(), key=len)


def _kind(request: StepRequest | None) -> tuple[object, ...]:
    """What requests must have in common to be carried out together."""
    if isinstance(request, WriteRequest):
        return (WriteRequest, request.model, request.max_tokens, request.prompt.picture)
    if isinstance(request, YesNoRequest):
        return (type(request), request.model, request.yes, request.no, request.prompt.picture)
    return (type(request),)


def _trace(name: str, course: _Course) -> Trace:
    outcome, log = course.outcome, course.log
    if outcome is None:
        raise ValueError(f"the trajectory of question {course.question.id} has no outcome")
    return Trace(
        question_id=course.question.id,
        pipeline=name,
        answer=outcome.answer,
        confidence=outcome.confidence,
        retrieved=any(step.operator == "search" for step in log.steps),
        hits=tuple(log.hits.values()),
        passages=tuple(PassageTrace(passage) for passage in outcome.passages),
        chosen=outcome.chosen,
        used=outcome.used,
        fallback=outcome.fallback,
        seconds={operator: round(seconds, 6) for operator, seconds in log.seconds.items()},
        tokens={**log.tokens, **outcome.counts},
        steps=tuple(log.steps),
        ended=outcome.ended if course.limit is None else str(course.limit),
        limit={} if course.limit is None else {course.limit.key: course.limit.value},
    )

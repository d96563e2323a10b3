"""State of one question's trajectory while it waits for replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reflectune.core.images import Images, each_image
from reflectune.core.types import Question
from reflectune.inference.operators.budget import BudgetSpent, Limit
from reflectune.inference.operators.requests import (
    ANSWERING,
    JudgeEachReply,
    JudgeReply,
    ModelName,
    StepReply,
    StepRequest,
    WriteReply,
    WriteRequest,
    YesNoRequest,
)
from reflectune.inference.operators.step_log import StepLog, unreadable
from reflectune.inference.operators.vocabulary import Steps
from reflectune.models.rendering.thoughts import without_thoughts

REMINDER: Final = "\n\nYour last reply could not be read. Reply in exactly the requested form, and briefly."
"""Appended to a prompt that is sent a second time."""


@dataclass(eq=False)
class TrajectoryState:
    """State of a question's trajectory.

    Attributes:
        position: Position of the question among those of the run.
        waiting: Requests that the trajectory waits for; several if they don't depend on each other.
        due: Positions in `waiting` of the requests that have not been executed.
        replies: Replies by position in `waiting`.
        unlogged: Executed steps of each request, kept until all earlier requests' steps are logged.
        limit: The budget that ended the trajectory.
        outcome: Its result; None if a budget ended it without one.
        retries: True to retry once if a reply can't be parsed.
    """

    position: int
    question: Question
    image: Images
    steps: Steps[Any]
    models: Mapping[ModelName, object]
    waiting: list[StepRequest] = dataclasses.field(default_factory=list)
    due: list[int] = dataclasses.field(default_factory=list)
    replies: dict[int, StepReply] = dataclasses.field(default_factory=dict)
    unlogged: list[list[tuple[StepRequest, StepReply, float, bool]]] = dataclasses.field(default_factory=list)
    log: StepLog = dataclasses.field(default_factory=StepLog)
    prefixes: set[tuple[object, ...]] = dataclasses.field(default_factory=set)
    limit: Limit | None = None
    outcome: Any = None
    is_list: bool = False
    retries: bool = False

    def advance(self) -> None:
        """Advance the trajectory by its replies, to its next requests or to its end."""
        replies = tuple(self.replies[position] for position in range(len(self.waiting)))
        first = replies[0] if replies else None
        self._proceed(lambda: self.steps.send(replies if self.is_list else first))

    def receive(self, position: int, raw: StepReply, seconds: float) -> None:
        """Store the reply to a request, or retry it; advance once all replies are there."""
        request = self.waiting[position]
        reply = _without_thoughts(request, raw)
        retry = _retry(request, reply) if self.retries else None
        self.unlogged[position].append((request, reply, seconds, retry is not None))
        if retry is None:
            self.replies[position] = reply
        else:
            self.waiting[position] = retry
            self.due.append(position)
        for earlier, steps in enumerate(self.unlogged):
            while steps:
                self._log(*steps.pop(0))
            if earlier not in self.replies:
                return
        self.advance()

    def _proceed(self, step: Callable[[], StepRequest | tuple[StepRequest, ...]]) -> None:
        try:
            requests = step()
        except StopIteration as end:
            self.waiting, self.outcome = [], end.value
        else:
            self.is_list = isinstance(requests, tuple)
            self.waiting = [self._with_images(it) for it in (requests if isinstance(requests, tuple) else (requests,))]
        self.due = [*range(len(self.waiting))]
        self.replies = {}
        self.unlogged = [[] for _ in self.waiting]

    def _with_images(self, request: StepRequest) -> StepRequest:
        """Set `Prompt.image` and `Prompt.more_images` by the number of the question's images."""
        more = len(each_image(self.image)) - 1
        if not more or not isinstance(request, (WriteRequest, YesNoRequest)) or not request.prompt.image:
            return request
        prompt = dataclasses.replace(request.prompt, image=more > 0, more_images=max(more, 0))
        return dataclasses.replace(request, prompt=prompt)

    def _log(self, request: StepRequest, reply: StepReply, seconds: float, retried: bool) -> None:
        """Log a step, and count its computed tokens, with a shared prefix counted once.

        The count is dropped if a model doesn't report its prefix.
        """
        self.log.add(request, reply, seconds, retried=retried)
        if not isinstance(reply, (WriteReply, JudgeReply, JudgeEachReply)) or not isinstance(
            request, (WriteRequest, YesNoRequest)
        ):
            return
        if reply.shared is None:
            self.log.tokens.pop("computed", None)
        elif "computed" in self.log.tokens:
            prefix = (id(self.models[request.model]), request.prompt.system, reply.shared)
            self.log.tokens["computed"] += reply.read - (reply.shared if prefix in self.prefixes else 0)
            self.prefixes.add(prefix)

    @property
    def may_end(self) -> bool:
        """True if a spent budget may end the trajectory now: only once, and not at the request for the answer."""
        answering = all(isinstance(it, WriteRequest) and it.operator in ANSWERING for it in self.waiting)
        is_whole = len(self.due) == len(self.waiting) > 0
        return is_whole and self.limit is None and not (answering and self.log.steps)

    def end(self, limit: Limit) -> None:
        """Make the trajectory answer from its records. Without records, or a step, it ends without an outcome."""
        self.limit = limit
        try:
            if not self.log.steps:
                raise BudgetSpent(limit)
            self._proceed(lambda: self.steps.throw(BudgetSpent(limit)))
        except BudgetSpent:
            self.waiting, self.due = [], []


def _without_thoughts(request: StepRequest, reply: StepReply) -> StepReply:
    """Remove a reasoning model's thoughts from a reply, unless the request keeps them."""
    if not isinstance(reply, WriteReply) or (isinstance(request, WriteRequest) and request.keeps_thoughts):
        return reply
    return dataclasses.replace(reply, text=without_thoughts(reply.text))


def _retry(request: StepRequest, reply: StepReply) -> WriteRequest | None:
    """Return the request with a reminder of the form if its reply can't be parsed.

    Returns:
        None if the reply can be parsed or was refused, if it is a retry's, or if the request isn't for text.
    """
    if not isinstance(request, WriteRequest) or not isinstance(reply, WriteReply):
        return None
    prompt = request.prompt
    last = prompt.rounds[-1][1] if prompt.rounds else prompt.template
    if reply.refused or last.endswith(REMINDER) or not unreadable(request, reply):
        return None
    if prompt.rounds:
        prompt = dataclasses.replace(prompt, rounds=(*prompt.rounds[:-1], (prompt.rounds[-1][0], last + REMINDER)))
    else:
        prompt = dataclasses.replace(prompt, template=last + REMINDER)
    return dataclasses.replace(request, prompt=prompt)

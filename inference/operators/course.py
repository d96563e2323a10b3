"""The trajectory of one question while it waits for replies."""

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

AGAIN: Final = "\n\nYour last reply could not be read. Reply in exactly the requested form, and briefly."
"""Reminder at the end of a prompt that is asked again."""


@dataclass(eq=False)
class Course:
    """A question's trajectory.

    Attributes:
        place: Place of the question.
        waiting: Requests that it waits for; several if they don't depend on each other.
        due: Places of those that are not executed yet.
        replies: Replies by place.
        unlogged: Of each place the steps executed, until those before them are logged.
        limit: The budget that ended it.
        outcome: Its result; None if a budget ended it without one.
        retries: True to ask once more for a reply that can't be read.
    """

    place: int
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
        replies = tuple(self.replies[place] for place in range(len(self.waiting)))
        self._proceed(lambda: self.steps.send(replies if self.is_list else replies[0] if replies else None))

    def receive(self, place: int, raw: StepReply, seconds: float) -> None:
        """Take the reply to a request, or ask once more; advance with the last one."""
        request = self.waiting[place]
        reply = _without_thoughts(request, raw)
        again = _again(request, reply) if self.retries else None
        self.unlogged[place].append((request, reply, seconds, again is not None))
        if again is None:
            self.replies[place] = reply
        else:
            self.waiting[place] = again
            self.due.append(place)
        for earlier, steps in enumerate(self.unlogged):
            while steps:
                self._add(*steps.pop(0))
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
            self.waiting = [self._seen(it) for it in (requests if isinstance(requests, tuple) else (requests,))]
        self.due, self.replies, self.unlogged = [*range(len(self.waiting))], {}, [[] for _ in self.waiting]

    def _seen(self, request: StepRequest) -> StepRequest:
        """Clear `Prompt.image` in requests of a question without an image; count further images in the others."""
        more = len(each_image(self.image)) - 1
        if not more or not isinstance(request, (WriteRequest, YesNoRequest)) or not request.prompt.image:
            return request
        prompt = dataclasses.replace(request.prompt, image=more > 0, more_images=max(more, 0))
        return dataclasses.replace(request, prompt=prompt)

    def _add(self, request: StepRequest, reply: StepReply, seconds: float, retried: bool) -> None:
        """Log a step, and count computed tokens: shared prefixes once; drop the count if one is unknown."""
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
        """True if a spent budget can still end it: once, and not at its request for the answer or the extraction."""
        answering = all(isinstance(it, WriteRequest) and it.operator in ANSWERING for it in self.waiting)
        is_whole = len(self.due) == len(self.waiting) > 0
        return is_whole and self.limit is None and not (answering and self.log.steps)

    def end(self, limit: Limit) -> None:
        """Make it answer from its records, or else end, without an outcome; so it ends without a step."""
        self.limit = limit
        try:
            if not self.log.steps:
                raise BudgetSpent(limit)
            self._proceed(lambda: self.steps.throw(BudgetSpent(limit)))
        except BudgetSpent:
            self.waiting, self.due = [], []


def _without_thoughts(request: StepRequest, reply: StepReply) -> StepReply:
    """Remove a reasoning model's thoughts from a reply, unless they are requested."""
    if not isinstance(reply, WriteReply) or (isinstance(request, WriteRequest) and request.keeps_thoughts):
        return reply
    return dataclasses.replace(reply, text=without_thoughts(reply.text))


def _again(request: StepRequest, reply: StepReply) -> WriteRequest | None:
    """Return the request with a reminder if its reply can't be read; None for others, refused and second ones."""
    if not isinstance(request, WriteRequest) or not isinstance(reply, WriteReply):
        return None
    prompt = request.prompt
    last = prompt.rounds[-1][1] if prompt.rounds else prompt.template
    if reply.refused or last.endswith(AGAIN) or not unreadable(request, reply):
        return None
    if prompt.rounds:
        again = dataclasses.replace(prompt, rounds=(*prompt.rounds[:-1], (prompt.rounds[-1][0], last + AGAIN)))
    else:
        again = dataclasses.replace(prompt, template=last + AGAIN)
    return dataclasses.replace(request, prompt=again)

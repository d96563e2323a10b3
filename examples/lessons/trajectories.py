"""Choose an agent's trajectories for SFT by rejection: the right answer, in the format, with few calls."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of
from reflectune.core.paths import Roots, resolve_below
from reflectune.core.types import FollowUp, Question
from reflectune.data_builders.annotators.proofreading import PageArticle, PageLabel
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import PassageHit
from reflectune.inference.operators.requests import (
    Prompt,
    SearchReply,
    SearchRequest,
    StepReply,
    WriteReply,
    WriteRequest,
)
from reflectune.inference.operators.tool_calls import keeps_format
from reflectune.inference.pipelines.promsa import Promsa, PromsaSettings
from reflectune.inference.running.opening import is_current
from reflectune.inference.trace import Step, Trace
from reflectune.metrics.scoring.registry import AnswerMetric
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample


@dataclass(frozen=True)
class Trajectory:
    """A question with an agent's last prompt, which has all earlier rounds, its last reply and its calls."""

    question: Question
    prompt: Prompt
    reply: str
    calls: int

    @property
    def replies(self) -> list[str]:
        """All replies in order."""
        return [*(said for said, _ in self.prompt.rounds), self.reply]

    def example(self) -> PromptedExample:
        """Return the training example: every reply is supervised, no tool's result is."""
        first, *later = self.replies
        results = [result for _, result in self.prompt.rounds]
        return PromptedExample(
            self.question.id,
            self.question.image,
            self.question.text,
            (PromptedBranch("vqa", reply=first),),
            source=f"promsa {self.calls} calls",
            template=self.prompt.template,
            system=self.prompt.system,
            follow_ups=tuple(map(FollowUp, results, later)),
        )


@dataclass
class Chosen:
    """Trajectories that are kept, at most one a question, and the reasons why others are left out."""

    kept: dict[str, Trajectory] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    traces: int = 0

    def statistics(self) -> dict[str, Any]:
        """Count the trajectories."""
        calls = Counter(trajectory.calls for trajectory in self.kept.values())
        return {
            "examples": len(self.kept),
            "traces": self.traces,
            "replies": sum(len(trajectory.replies) for trajectory in self.kept.values()),
            "by_calls": {str(number): calls[number] for number in sorted(calls)},
            "left_out": dict(sorted(self.left_out.items())),
        }


def choose(
    traces: Iterable[Trace],
    questions: Mapping[str, Question],
    roots: Sequence[Path],
    settings: PromsaSettings,
    correctness: AnswerMetric,
    max_calls: int,
) -> Chosen:
    """Choose at most one trajectory a question: of those that may be kept the one with the fewest calls.

    Args:
        traces: Traces of ProMSA.
        questions: The questions to train on, by id.
        roots: Folders of their images.
        settings: The settings that the traces were written with.
        correctness: Metric of an answer.
        max_calls: Maximum calls of a trajectory.

    Raises:
        UserError: A trace is of other settings of the pipeline.
    """
    chosen = Chosen()
    for trace in traces:
        chosen.traces += 1
        if trace.question_id not in questions:
            chosen.left_out["no question to train on"] += 1
            continue
        if not is_current(trace, questions[trace.question_id], roots):
            chosen.left_out["question edited since"] += 1
            continue
        if trace.error or trace.limit:
            chosen.left_out["failed" if trace.error else "ended by a budget"] += 1
            continue
        trajectory = replay(questions[trace.question_id], trace, settings)
        if reason := rejected(trajectory, trace, correctness, max_calls):
            chosen.left_out[reason] += 1
            continue
        known = chosen.kept.get(trace.question_id)
        if known is not None:
            chosen.left_out["a further trajectory of its question"] += 1
        if known is None or trajectory.calls < known.calls:
            chosen.kept[trace.question_id] = trajectory
    return chosen


def rejected(trajectory: Trajectory, trace: Trace, correctness: AnswerMetric, max_calls: int) -> str:
    """Return why a trajectory is left out; "" if it is kept."""
    if correctness(trace.answer, trajectory.question) < 1:
        return "wrong answer"
    if not all(map(keeps_format, trajectory.replies)) or trace.fallback:
        return "not in the format"
    if trace.tokens["calls_unread"] or trace.tokens.get("replies_retried", 0):
        return "an unreadable call"
    return f"more than {max_calls} calls" if trajectory.calls > max_calls else ""


def replay(question: Question, trace: Trace, settings: PromsaSettings) -> Trajectory:
    """Follow a trace's steps through the pipeline, which gives every prompt as it was.

    Raises:
        UserError: The trace is of other settings.
    """
    passages = {read.passage.id: read.passage for read in trace.passages}
    steps, course = deque(trace.steps), Promsa(settings, "texts")(question)
    reply: StepReply | None = None
    prompt, said = Prompt("{question}", {"question": question.text}), ""
    try:
        while True:
            request = next(course) if reply is None else course.send(reply)
            step = steps.popleft()
            if isinstance(request, SearchRequest) and step.operator == "search":
                hits: dict[str, tuple[PassageHit, ...]] = {}
                for found in step.found:
                    if found.passage_id in passages:
                        hit = PassageHit(passages[found.passage_id], found.score, found.rank, found.base)
                        hits[found.base] = (*hits.get(found.base, ()), hit)
                reply = SearchReply((hits,))
            elif isinstance(request, WriteRequest) and step.operator == request.operator:
                step = _last_try(step, steps, request)
                reply = WriteReply(step.text)
                if request.prompt.form == "action":
                    prompt, said = request.prompt, step.text
            else:
                raise IndexError
    except IndexError:
        raise _other_settings(trace) from None
    except StopIteration as ended:
        if steps or ended.value.ended != trace.ended:
            raise _other_settings(trace) from None
    calls = trace.tokens["image_search_calls"] + trace.tokens["text_search_calls"]
    return Trajectory(question, prompt, said, calls)


def _last_try(step: Step, steps: deque[Step], request: WriteRequest) -> Step:
    """Return the step itself, or the one that asked once more for its unreadable reply."""
    is_asked_again = (
        request.prompt.form == "action"
        and steps
        and (steps[0].operator, steps[0].iteration) == (step.operator, step.iteration)
    )
    return steps.popleft() if is_asked_again else step


def _other_settings(trace: Trace) -> UserError:
    return UserError(
        f"the trace of question {trace.question_id} doesn't follow from these settings of promsa; give the keys that "
        "it was written with (call_passages, image_calls, text_calls, turns, page_summaries)"
    )


def also_held_out(training: Sequence[Question], dataset: Dataset, held_out: Sequence[str]) -> dict[str, str]:
    """Return the split of each training question, by id, that is also in a held-out split.

    Two questions are the same if their ids are equal, or their words and the bytes of their images.

    Args:
        training: Questions of the data set to train on.
        dataset: The data set.
        held_out: Its held-out splits.
    """
    ids_by_content: dict[tuple[str, str], list[str]] = {}
    for question in training:
        content = (_words(question), _image_hash(question, dataset.image_roots))
        ids_by_content.setdefault(content, []).append(question.id)
    ids = {question.id for question in training}
    texts = {words for words, _ in ids_by_content}
    found: dict[str, str] = {}
    for split in held_out:
        for question in dataset.stream(split):
            if question.id in ids:
                found[question.id] = split
            if (words := _words(question)) in texts:  # few images are hashed
                content = (words, _image_hash(question, dataset.image_roots))
                found |= dict.fromkeys(ids_by_content.get(content, ()), split)
    return found


def _words(question: Question) -> str:
    return " ".join(question.text.lower().split())


def _image_hash(question: Question, roots: Roots) -> str:
    return sha256_of(resolve_below(question.image, roots)) if question.image else ""


def page_article(trajectory: Trajectory) -> PageArticle:
    """Return a trajectory's article on the page for proof-reading: each reply with the tool's result."""
    results = [*(result for _, result in trajectory.prompt.rounds), ""]
    labels = [
        PageLabel(f"reply {number}", details=[said, result], subject=f"reply {number}")
        for number, (said, result) in enumerate(zip(trajectory.replies, results, strict=True), start=1)
    ]
    question = trajectory.question
    return PageArticle(
        question.id, question.image, question.text, [f"{trajectory.calls} calls"], labels, question.answers
    )

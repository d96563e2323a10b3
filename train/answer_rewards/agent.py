"""Train an agent's trajectories by TN-GSPO or GSPO: its calls search our indexes, and only its replies are trained.

TN-GSPO (ProMSA, arXiv 2606.27974) divides GSPO's mean log-ratio of a sequence by 1 + c · H, H the number of its calls.
Each set of replies is used for one update, where all ratios are 1. So TN-GSPO only divides their gradient by 1 + c · H.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor, nn
from transformers import TrainingArguments
from trl import GRPOConfig

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.operators.requests import SearchReply, SearchRequest, StepReply, WriteReply, WriteRequest
from reflectune.inference.operators.tool_calls import keeps_format
from reflectune.inference.operators.trajectory import SearchFunction, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.pipelines.promsa import Promsa, PromsaSettings, first_turn
from reflectune.metrics.scoring.registry import Worth
from reflectune.models.attention.positions import longest_sequence
from reflectune.models.loading import Loaded
from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.train.answer_rewards.agent_config import AgentGrpoConfig
from reflectune.train.answer_rewards.prompts import prompt_id, rows_of
from reflectune.train.answer_rewards.rewards import Reward
from reflectune.train.answer_rewards.run import ReplyTraining, prompt_processor, refuse_too_few
from reflectune.train.answer_rewards.trainer import AnswerTrainer
from reflectune.train.data.examples import image_problem
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.runs.checkpointed_trainer import Run


@dataclass
class _Sampled:
    """A sampled trajectory: the ids after its prompt, with 1 for those of the agent and 0 for tools' results."""

    image: Image.Image
    prompt: Rendered
    steps: Steps[TrajectoryResult]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    waiting: Any = None
    answer: str = ""

    def advance(self, reply: StepReply | None) -> None:
        """Advance to the next request, or to the end."""
        try:
            self.waiting = next(self.steps) if reply is None else self.steps.send(reply)
        except StopIteration as end:
            self.waiting, self.answer = None, end.value.answer if end.value.fallback == "" else ""

    def extend(self, ids: Sequence[int], *, by_agent: bool) -> None:
        """Append ids."""
        self.ids += ids
        self.mask += [int(by_agent)] * len(ids)

    @property
    def calls(self) -> int:
        """Number of replies whose tool's result was read."""
        return max(len(self.replies) - 1, 0)


class AgentRollout:
    """TRL's `rollout_func`: samples trajectories with the trained model and our searches.

    Args:
        questions: Questions by id.
        roots: Folders of their images.
        pipeline: Starts a question's trajectory.
        search: Runs the searches.
        renderer: The model's.
        rendered: Returns a prompt by its id.
        longest: Maximum tokens of a trajectory, its prompt included.
        reply_tokens: Maximum tokens of a reply.
    """

    def __init__(
        self,
        questions: Mapping[str, Question],
        roots: Roots,
        pipeline: Promsa,
        search: SearchFunction,
        renderer: Renderer,
        rendered: Callable[[str], Rendered],
        *,
        longest: int,
        reply_tokens: int,
    ) -> None:
        self._questions, self._roots, self._search = questions, roots, search
        self._pipeline, self._renderer, self._rendered = pipeline, renderer, rendered
        self._longest, self._reply_tokens = longest, reply_tokens

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return the trajectories, one a prompt: TRL's keys, and the columns that the rewards read."""
        trainer.begin_rollouts()
        courses = [self._begin(self._questions[prompt_id(prompt)]) for prompt in prompts]
        while waiting := [course for course in courses if course.waiting is not None]:
            searching = [course for course in waiting if isinstance(course.waiting, SearchRequest)]
            if searching:
                found: Sequence[SearchReply] = self._search([(it.image, it.waiting) for it in searching])
                for course, reply in zip(searching, found, strict=True):
                    course.advance(reply)
            else:
                self._write([course for course in waiting if self._continues(course)], trainer)
        return {
            "prompt_ids": [course.prompt.ids for course in courses],
            "completion_ids": [course.ids for course in courses],
            "logprobs": None,
            "env_mask": [course.mask for course in courses],
            "answer": [course.answer for course in courses],
            "formed": [bool(course.answer) and all(map(keeps_format, course.replies)) for course in courses],
            "calls": [course.calls for course in courses],
        }

    def _begin(self, question: Question) -> _Sampled:
        image = load_image(question.image, root=self._roots, needed_by=f"question {question.id}")
        steps = self._pipeline(question)
        course = _Sampled(image, self._rendered(question.id), steps)
        course.advance(None)
        return course

    def _continues(self, course: _Sampled) -> bool:
        """Append the result of the last call; return False at the end: without room for a further reply."""
        request = course.waiting
        assert isinstance(request, WriteRequest)
        if not request.prompt.rounds:
            return True
        result = self._renderer.after_reply(request.prompt.rounds[-1][1])
        end = [] if course.ids[-1] == self._renderer.end_token_id else [self._renderer.end_token_id]
        length = len(course.prompt.ids) + len(course.ids) + len(end) + len(result)
        if length + self._reply_tokens > self._longest:
            course.waiting = None
            return False
        course.extend([*end, *result], by_agent=False)
        return True

    def _write(self, courses: Sequence[_Sampled], trainer: Any) -> None:
        """Sample a reply of each trajectory."""
        if not courses:
            return
        rows = [[*course.prompt.ids, *course.ids] for course in courses]
        sampled = trainer.sample(rows, [course.prompt for course in courses])
        for course, ids in zip(courses, sampled, strict=True):
            course.extend(ids, by_agent=True)
            text = self._renderer.decode([token for token in ids if token != self._renderer.end_token_id])
            course.replies.append(text)
            course.advance(WriteReply(text, tokens=len(ids)))


def reward_functions(questions: Mapping[str, Question], correctness: Worth, max_calls: int) -> list[Reward]:
    """Return TRL's reward functions: accuracy, format, and the share of the calls that were used, a cost."""

    def accuracy(answer: Sequence[str], question_id: Sequence[str], **_: Any) -> list[float | None]:
        return [float(correctness(text, questions[key])) for text, key in zip(answer, question_id, strict=True)]

    def format_kept(formed: Sequence[bool], **_: Any) -> list[float | None]:
        return [*map(float, formed)]

    def calls_used(calls: Sequence[int], **_: Any) -> list[float | None]:
        return [min(number / max_calls, 1.0) for number in calls]

    return [accuracy, format_kept, calls_used]


def calls_of(mask: Tensor) -> Tensor:
    """Return the number of tools' results in each row of TRL's `tool_mask`, (rows, tokens): its runs of 0.

    Example:
        >>> calls_of(torch.tensor([[1, 0, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1]])).tolist()
        [2, 0]
    """
    return ((mask[:, :-1] == 1) & (mask[:, 1:] == 0)).sum(-1)


def with_less_gradient(logps: Tensor, mask: Tensor, horizon: float) -> Tensor:
    """Return log-probabilities, (rows, tokens), of the same values, whose gradient is divided by 1 + c · H.

    Args:
        logps: Log-probabilities.
        mask: TRL's `tool_mask`.
        horizon: c.
    """
    fixed = logps.detach()
    return fixed + (logps - fixed) / (1 + horizon * calls_of(mask).unsqueeze(1))


class AgentTrainer(AnswerTrainer):
    """Trains trajectories by GSPO or TN-GSPO.

    Args:
        horizon: c of TN-GSPO; 0 for GSPO.
        kwargs: Those of `AnswerTrainer`.
    """

    def __init__(self, *args: Any, horizon: float, **kwargs: Any) -> None:
        self._horizon = horizon
        self._loss_inputs: dict[str, Any] | None = None
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        self._loss_inputs = inputs = dict(inputs)
        try:
            loss: Tensor = super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's, inside the loss with less gradient; TRL divides the sum of log-ratios by the length L."""
        logps, *others = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        inputs = self._loss_inputs
        if inputs is not None and "tool_mask" in inputs:
            logps = with_less_gradient(logps, inputs["tool_mask"], self._horizon)
        return (logps, *others)


class AgentTraining(ReplyTraining):
    """Training of an agent's trajectories.

    Args:
        settings: The pipeline's settings.
        bases: Opens the search, and names the base of text_search.
    """

    sampled, algorithm = "trajectories", "GSPO"
    whole_model_for = "trajectories are sampled"
    _config: AgentGrpoConfig

    def __init__(
        self,
        config: AgentGrpoConfig,
        dataset: Dataset,
        hashes: Mapping[str, str],
        correctness: Worth,
        settings: PromsaSettings,
        bases: Callable[[], tuple[SearchFunction, str]],
    ) -> None:
        super().__init__(config, dataset, hashes, correctness)
        self._settings, self._bases = settings, bases
        if config.horizon:
            self.algorithm = "TN-GSPO"

    def arguments(self, common: Mapping[str, Any]) -> GRPOConfig:
        """Make TRL's arguments."""
        config = self._config
        args = super().arguments(common)
        args.reward_weights = [config.accuracy_reward, config.format_reward, -config.call_cost]
        return args

    def reward_text(self) -> str:
        """Return the sum of weighted rewards as text."""
        return f"{super().reward_text()} - {self._config.call_cost:g} x the share of calls used"

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of questions, which prompts are made of, and of the inputs of rewards."""
        return {**super().fingerprints(), "data_fingerprint": self._dataset.fingerprint}

    def load_data(self, args: TrainingArguments) -> None:
        """Read the questions, drawn by seed; their prompts are the pipeline's first ones."""
        assert isinstance(args, GRPOConfig)  # from `arguments`
        config = self._config
        questions = [it for it in self._dataset.stream(config.split) if it.answers and it.image and not it.more_images]
        if not questions:
            raise UserError(f"`split`: no question of {config.split} has an answer and one image; name another split")
        drawn = random.Random(config.seed).sample(questions, len(questions))[: config.limit]
        self._questions = {question.id: question for question in drawn}
        self._roots = self._dataset.image_roots
        found = ((question.id, image_problem(question.image, self._roots)) for question in drawn)
        if problems := [f"question {name}: {problem}" for name, problem in found if problem]:
            raise UserError(f"`dataset`: {len(problems)} of {len(drawn)} questions have no image; {problems[0]}")
        self._examples = [
            PromptedExample(
                question.id,
                question.image,
                question.text,
                (PromptedBranch("vqa", reply=question.answers[0]),),
                template=first_turn(question),
                system=self._settings.system,
            )
            for question in drawn
        ]
        refuse_too_few(len(drawn), args)

    def trainer(self, run: Run, loaded: Loaded, batch: GlobalBatch) -> AnswerTrainer:
        """Make TRL's trainer with our searches."""
        config = self._config
        processor = prompt_processor(config, self._examples, self._roots, loaded)
        search, text_base = self._bases()
        rollout = AgentRollout(
            self._questions,
            self._roots,
            Promsa(self._settings, text_base),
            search,
            loaded.renderer,
            processor.rendered,
            longest=longest_sequence(loaded.model, config.max_tokens),
            reply_tokens=config.max_new_tokens,
        )
        max_calls = sum(self._settings.calls.values())
        return AgentTrainer(
            run,
            rows_of(self._examples),
            processor,
            reward_functions(self._questions, self._correctness, max(max_calls, 1)),
            rollout,
            horizon=config.horizon,
            server=self.server(loaded),
        )

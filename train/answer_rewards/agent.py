"""Train an agent's trajectories by GSPO or TN-GSPO: calls search our indexes, and only replies are trained.

TN-GSPO (ProMSA, arXiv 2606.27974) divides GSPO's mean log-ratio of a sequence by 1 + c · H, where H is the number of
its calls. Each batch of replies is used for one update only, so all ratios are 1, and TN-GSPO amounts to dividing the
gradient by 1 + c · H.
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
from reflectune.metrics.scoring.registry import AnswerMetric
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
    """A sampled trajectory. `mask` is 1 for ids that the agent generated, 0 for tools' results."""

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
        """Number of tool calls whose result was appended."""
        return max(len(self.replies) - 1, 0)


class AgentRollout:
    """TRL's `rollout_func`: samples trajectories with the model in training and our searches.

    Args:
        questions: Questions by id.
        roots: Folders of their images.
        pipeline: Starts a question's trajectory.
        search: Runs the searches.
        renderer: Renderer of the model.
        rendered: Returns a prompt by its id.
        longest: Maximum tokens of a trajectory, including its prompt.
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
        """Return a trajectory for each prompt: TRL's keys, and the columns that the reward functions read."""
        trainer.begin_rollouts()
        trajectories = [self._begin(self._questions[prompt_id(prompt)]) for prompt in prompts]
        while waiting := [trajectory for trajectory in trajectories if trajectory.waiting is not None]:
            searching = [trajectory for trajectory in waiting if isinstance(trajectory.waiting, SearchRequest)]
            if searching:
                found: Sequence[SearchReply] = self._search(
                    [(trajectory.image, trajectory.waiting) for trajectory in searching]
                )
                for trajectory, reply in zip(searching, found, strict=True):
                    trajectory.advance(reply)
            else:
                self._write([trajectory for trajectory in waiting if self._continues(trajectory)], trainer)
        return {
            "prompt_ids": [trajectory.prompt.ids for trajectory in trajectories],
            "completion_ids": [trajectory.ids for trajectory in trajectories],
            "logprobs": None,
            "env_mask": [trajectory.mask for trajectory in trajectories],
            "answer": [trajectory.answer for trajectory in trajectories],
            "formed": [
                bool(trajectory.answer) and all(map(keeps_format, trajectory.replies)) for trajectory in trajectories
            ],
            "calls": [trajectory.calls for trajectory in trajectories],
        }

    def _begin(self, question: Question) -> _Sampled:
        image = load_image(question.image, root=self._roots, needed_by=f"question {question.id}")
        steps = self._pipeline(question)
        trajectory = _Sampled(image, self._rendered(question.id), steps)
        trajectory.advance(None)
        return trajectory

    def _continues(self, trajectory: _Sampled) -> bool:
        """Append the last call's result. Return False if a further reply could exceed the maximum length."""
        request = trajectory.waiting
        assert isinstance(request, WriteRequest)
        if not request.prompt.rounds:
            return True
        result = self._renderer.after_reply(request.prompt.rounds[-1][1])
        end = [] if trajectory.ids[-1] == self._renderer.end_token_id else [self._renderer.end_token_id]
        length = len(trajectory.prompt.ids) + len(trajectory.ids) + len(end) + len(result)
        if length + self._reply_tokens > self._longest:
            trajectory.waiting = None
            return False
        trajectory.extend([*end, *result], by_agent=False)
        return True

    def _write(self, trajectories: Sequence[_Sampled], trainer: Any) -> None:
        """Sample a reply for each trajectory."""
        if not trajectories:
            return
        rows = [[*trajectory.prompt.ids, *trajectory.ids] for trajectory in trajectories]
        sampled = trainer.sample(rows, [trajectory.prompt for trajectory in trajectories])
        for trajectory, ids in zip(trajectories, sampled, strict=True):
            trajectory.extend(ids, by_agent=True)
            text = self._renderer.decode([token for token in ids if token != self._renderer.end_token_id])
            trajectory.replies.append(text)
            trajectory.advance(WriteReply(text, tokens=len(ids)))


def reward_functions(questions: Mapping[str, Question], correctness: AnswerMetric, max_calls: int) -> list[Reward]:
    """Return TRL's reward functions: accuracy, format, and the share of allowed calls that were used (a cost)."""

    def accuracy(answer: Sequence[str], question_id: Sequence[str], **_: Any) -> list[float | None]:
        return [float(correctness(text, questions[key])) for text, key in zip(answer, question_id, strict=True)]

    def format_kept(formed: Sequence[bool], **_: Any) -> list[float | None]:
        return [*map(float, formed)]

    def calls_used(calls: Sequence[int], **_: Any) -> list[float | None]:
        return [min(number / max_calls, 1.0) for number in calls]

    return [accuracy, format_kept, calls_used]


def count_calls(mask: Tensor) -> Tensor:
    """Count the tool results (runs of 0) in each row of TRL's `tool_mask`, (rows, tokens).

    Example:
        >>> count_calls(torch.tensor([[1, 0, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1]])).tolist()
        [2, 0]
    """
    return ((mask[:, :-1] == 1) & (mask[:, 1:] == 0)).sum(-1)


def scale_gradient_by_calls(logps: Tensor, mask: Tensor, horizon: float) -> Tensor:
    """Return the log-probabilities unchanged, (rows, tokens), but with their gradient divided by 1 + c · H.

    Args:
        logps: Log-probabilities.
        mask: TRL's `tool_mask`.
        horizon: c.
    """
    fixed = logps.detach()
    return fixed + (logps - fixed) / (1 + horizon * count_calls(mask).unsqueeze(1))


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
        """Call TRL's method; inside the loss, scale the gradients. TRL divides the sum of log-ratios by the length."""
        logps, *others = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        inputs = self._loss_inputs
        if inputs is not None and "tool_mask" in inputs:
            logps = scale_gradient_by_calls(logps, inputs["tool_mask"], self._horizon)
        return (logps, *others)


class AgentTraining(ReplyTraining):
    """Training of an agent's trajectories.

    Args:
        settings: The pipeline's settings.
        bases: Opens the searches; returns the search function and the name of the text base.
    """

    sampled, algorithm = "trajectories", "GSPO"
    whole_model_for = "trajectories are sampled"
    _config: AgentGrpoConfig

    def __init__(
        self,
        config: AgentGrpoConfig,
        dataset: Dataset,
        hashes: Mapping[str, str],
        correctness: AnswerMetric,
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
        """Draw questions by seed; each prompt is the first turn of the pipeline."""
        assert isinstance(args, GRPOConfig)  # from `arguments`
        config = self._config
        questions = [
            question
            for question in self._dataset.stream(config.split)
            if question.answers and question.image and not question.more_images
        ]
        if not questions:
            raise UserError(f"`split`: no question of {config.split} has an answer and one image; name another split")
        drawn = random.Random(config.seed).sample(questions, len(questions))[: config.limit]
        self._questions = {question.id: question for question in drawn}
        self._roots = self._dataset.image_roots
        image_problems = ((question.id, image_problem(question.image, self._roots)) for question in drawn)
        if problems := [f"question {key}: {problem}" for key, problem in image_problems if problem]:
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

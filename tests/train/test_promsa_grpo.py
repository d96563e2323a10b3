"""ProMSA's GSPO with tiny random models: the ids of a trajectory, TN-GSPO's gradient, rewards, and a training."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.hits import PassageHit
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import Prompt, SearchReply, SearchRequest
from reflectune.inference.pipelines.promsa import SYSTEM, Promsa, PromsaSettings, first_turn
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.train.answer_rewards.agent import (
    AgentRollout,
    AgentTrainer,
    AgentTraining,
    count_calls,
    reward_functions,
    scale_gradient_by_calls,
)
from reflectune.train.answer_rewards.agent_config import AgentGrpoConfig
from reflectune.train.answer_rewards.prompts import PromptProcessor
from reflectune.train.runs.arguments import common_arguments
from reflectune.train.runs.skeleton import run

IMAGE = '<thinking>Which one?</thinking>\n<tool_call>{"name": "image_search", "arguments": {}}</tool_call>'
RIGHT = "<thinking>Of wood.</thinking>\n<answer>oak</answer>"
WRONG = "<thinking>Of stone.</thinking>\n<answer>stone</answer>"
SETTINGS = PromsaSettings(call_passages=1)
TEXT = "- tower: It is <image> made of oak."


def search(asked: Sequence[tuple[Any, SearchRequest]]) -> list[SearchReply]:
    hit = PassageHit(Passage("e", 0, 0, "tower", "", "", "It is <image> made of oak."), 0.9, 1, "pairs")
    return [SearchReply(({"pairs": (hit,)},)) for _ in asked]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    questions = [Question(f"q{n}", "a.png", "What is it made of?", ("oak",), split="train") for n in range(4)]
    write_questions(tmp_path, "train", questions)
    write_json(tmp_path / "dataset.json", {"name": "t", "metric": "infoseek", "fingerprint": "f", "image_root": "."})
    return tmp_path


@pytest.fixture
def config(world: Path, tuned_checkpoint):
    def build(family: str = "llava", **changes: Any) -> AgentGrpoConfig:
        values = {"model": tuned_checkpoint(IMAGE + RIGHT, "plain", family, "full"), "dataset": str(world)}
        values |= {"index": str(world), "output_dir": str(world / "out"), "device": "cpu", "max_new_tokens": 4}
        values |= {"generations": 4, "per_device_train_batch_size": 4, "max_steps": 1, "save_steps": 1}
        return AgentGrpoConfig(**{**values, "learning_rate": 1e-2, "warmup": 0, "logging_steps": 1, **changes})

    return build


def scripted(renderer: Any, replies: Iterator[str]) -> Any:
    return lambda rows, prompts: [renderer.reply_ids(next(replies)) for _ in rows]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_trajectory_has_the_ids_that_the_pipeline_reads(family: str, world: Path, tuned_checkpoint) -> None:
    loaded = load(tuned_checkpoint(IMAGE + RIGHT, "plain", family, "full"))
    renderer, image = loaded.renderer, Image.open(world / "a.png")
    model = LocalModel(PrefixEngine(loaded), 1)
    question = Dataset(world).questions("train")[0]
    first = Prompt(first_turn(question), {"question": question.text}, system=SYSTEM)
    _, begun = model.fit(image, first, 8)
    rendered = lambda name: begun  # noqa: E731
    trainer = SimpleNamespace(sample=scripted(renderer, iter([IMAGE, RIGHT])), begin_rollouts=lambda: None)
    asked = [[{"role": "user", "content": [{"type": "text", "text": question.id}]}]]
    keys: Any = {"longest": 9999, "reply_tokens": 150}
    rollout = AgentRollout(
        {question.id: question}, (world,), Promsa(SETTINGS, "pairs"), search, renderer, rendered, **keys
    )
    row = {name: value and value[0] for name, value in rollout(asked, trainer).items()}
    _, second = model.fit(image, Prompt(first.template, first.texts, system=SYSTEM, rounds=((IMAGE, TEXT),)), 8)
    assert [*row["prompt_ids"], *row["completion_ids"]] == [*second.ids, *renderer.reply_ids(RIGHT)]
    by_agent = [token for token, mine in zip(row["completion_ids"], row["env_mask"], strict=True) if mine]
    assert by_agent == [*renderer.reply_ids(IMAGE), *renderer.reply_ids(RIGHT)]
    assert (row["answer"], row["formed"], row["calls"]) == ("oak", True, 1)
    assert count_calls(torch.tensor([row["env_mask"]])).tolist() == [1]


def test_tn_gspo_divides_a_trajectorys_gradient_by_its_calls() -> None:
    logps = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]], requires_grad=True)
    mask, scale = torch.tensor([[1, 0, 1], [1, 1, 1]]), torch.tensor([[1.5], [1.0]])  # one call, no call
    less = scale_gradient_by_calls(logps, mask, 0.5)
    assert torch.equal(less, logps)
    (gradient,) = torch.autograd.grad(less.sum(), logps)
    torch.testing.assert_close(gradient, (1 / scale).expand(2, 3))


def test_rewards_are_accuracy_format_and_the_share_of_calls() -> None:
    questions = {"q": Question("q", "a.png", "What?", ("oak",))}
    functions = reward_functions(questions, lambda answer, question: float(answer in question.answers), 6)
    columns = {"answer": ["oak", ""], "formed": [True, False], "calls": [3, 9], "question_id": ["q", "q"]}
    assert [function(**columns, completions=[]) for function in functions] == [[1, 0], [1, 0], [0.5, 1]]


def test_a_step_of_several_turns_has_a_gradient(config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are sampled by TRL in every turn, and exchanged for readable ones: a random model writes none."""
    settings = config("qwen2_vl", per_device_train_batch_size=2, gradient_accumulation_steps=2)
    dataset, replies = Dataset(Path(settings.dataset)), itertools.cycle([IMAGE, RIGHT, WRONG, IMAGE, RIGHT])
    sample, say = AgentTrainer.sample, scripted(load(settings.model).renderer, replies)

    def sampled(trainer: AgentTrainer, rows: Any, prompts: Any) -> Any:
        assert len(sample(trainer, rows, prompts)) == len(rows)
        return say(rows, prompts)

    read, fields = list[int](), PromptProcessor.fields

    def counted(processor: PromptProcessor, prompts: Any, rows: Any) -> Any:
        read.append(len(rows))
        return fields(processor, prompts, rows)

    monkeypatch.setattr(AgentTrainer, "sample", sampled)
    monkeypatch.setattr(PromptProcessor, "fields", counted)
    worth = lambda answer, question: float(answer in question.answers)  # noqa: E731
    run(settings, AgentTraining(settings, dataset, {}, worth, SETTINGS, lambda: (search, "pairs")))
    log = read_json(Path(settings.output_dir, "checkpoint-1/trainer_state.json"), "log")["log_history"]
    assert any(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in log if "grad_norm" in row)
    assert any(row.get("rewards/calls_used/mean", 0) > 0 for row in log)
    assert max(read) == 2  # of 4 trajectories


def test_questions_without_one_image_are_left_out_or_refused_before_training(config, world: Path) -> None:
    def load_data() -> None:
        training = AgentTraining(settings, Dataset(world), {}, lambda *_: 1.0, SETTINGS, lambda: (search, "pairs"))
        training.load_data(training.arguments(common_arguments(settings)))

    settings = config()
    load_data()
    kept = Question("q0", "a.png", "Which is older?", ("oak",), split="train")
    write_questions(world, "train", [kept, replace(kept, id="q1", image="b.png")])
    with pytest.raises(UserError, match=r"1 of 2 questions have no image; question q1: image not found: .*b\.png"):
        load_data()
    write_questions(world, "train", [replace(kept, more_images=("a.png",))])
    with pytest.raises(UserError, match="no question of train has an answer and one image"):
        load_data()


def test_settings_that_do_not_fit_are_refused(config) -> None:
    values = config().model_dump() | {"index": "", "page_summaries": "reader"}
    problems = " ".join(find_problems(AgentGrpoConfig, values))
    for words in ("`index` is needed by trajectories", "`page_summaries` is none in training"):
        assert words in problems

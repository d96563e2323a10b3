"""Answers that validation reads: those that plain greedy generation gives, for both schemes, with and without LoRA."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Passage
from reflectune.examples.miniature.models.architecture import Family
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.loading import Loaded, load
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample, ReflectionExample
from reflectune.models.schemes.passages import PassageScheme
from reflectune.models.schemes.prompts import PromptScheme
from reflectune.models.schemes.registry import find_scheme
from reflectune.train.runs import answers
from reflectune.train.runs.answers import AnswerReader, check_answers, has_answer, is_right
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import prepare_model
from tests.narrow_models import plain_inputs


def plainly(loaded: Loaded, model: Any, example: ReflectionExample, root: Path) -> str:
    """Decode greedily after the reflection token by transformers' own `generate`."""
    image = load_image(example.image, root=root)
    prefix = loaded.renderer.prefix(example.question, image)
    gold = [branch for branch in example.branches if branch.relevant][:1]
    tail = PassageScheme.of(loaded.renderer).direct_branch(loaded.renderer, example.style)
    if gold:
        tail = PassageScheme.of(loaded.renderer).passage_branch(loaded.renderer, gold[0].passage)
        tail = [*tail, loaded.renderer.token_id("relevant")]
    return generated(loaded, model, [*prefix.ids, *tail], prefix.vision)


def generated(loaded: Loaded, model: Any, ids: list[int], vision: Any) -> str:
    inputs = plain_inputs(loaded.model, ids, vision)
    ends = [loaded.renderer.end_token_id]
    with torch.no_grad():
        out = model.eval().generate(**inputs, max_new_tokens=32, do_sample=False, eos_token_id=ends)
    return loaded.renderer.strip(loaded.renderer.decode([token for token in out[0][len(ids) :] if token not in ends]))


def with_answers(examples: list[ReflectionExample], printed: list[str]) -> list[ReflectionExample]:
    """Replace every other question's answer by the model's, and the others by something else."""
    changed = []
    for number, (example, text) in enumerate(zip(examples, printed, strict=True)):
        answer = text if number % 2 else "something else"
        branches = tuple(dataclasses.replace(b, answer=answer if b.relevant else "") for b in example.branches)
        changed.append(dataclasses.replace(example, answer="" if branches else answer, branches=branches))
    return changed


@pytest.mark.parametrize(("family", "method"), [("llava", "lora"), ("qwen2_vl", "full")])
def test_an_answer_is_what_plain_greedy_generation_says(
    family: Family, method: Literal["full", "lora"], base_model, data_folder, examples
) -> None:
    some, root = examples[:2] + examples[18:20], data_folder / "images"
    loaded = load(str(base_model(family)), scheme="mr2ag")
    model = prepare_model(loaded, SftConfig(method=method))
    torch.manual_seed(1)
    with torch.no_grad():  # as if it had been trained: adapters and new rows that do something
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    printed = [plainly(loaded, model, example, root) for example in some]
    changed = with_answers(some, printed)

    reader = AnswerReader(loaded, changed, root, count=4, seed=0, batch_size=3)
    right = {example.id: verdict for example, verdict in zip(reader.sample, reader.read(0, 1), strict=True)}
    shared = [reader.read(rank, 3) for rank in range(3)]

    assert [right[example.id] for example in some] == [False, True] * 2
    assert sorted(verdict for share in shared for verdict in share) == sorted(right.values())


def test_mmkb_rags_answers_follow_its_prompt_for_them(base_model, data_folder, examples) -> None:
    loaded, root = load(str(base_model("qwen2_vl")), scheme="mmkb_rag"), data_folder / "images"
    prompted = []
    for number, example in enumerate(examples[:6]):
        passages: tuple[Passage, ...] = tuple(b.passage for b in example.branches if b.relevant)
        image = load_image(example.image, root=root)
        prefix = loaded.renderer.question_prefix(example.question, image)
        ids = [*prefix.ids, *PromptScheme.of(loaded.renderer).prompt_branch(loaded.renderer, "vqa", passages)]
        printed = generated(loaded, loaded.model, ids, prefix.vision)
        branches = (PromptedBranch("ret", role="retrieve"),)
        branches += (PromptedBranch("vqa", passages, reply=printed if number % 2 else "something else"),)
        prompted.append(PromptedExample(example.id, example.image, example.question, branches))
    silent = PromptedExample("x", "red.png", "?", (PromptedBranch("ret", role="retrieve"),))

    reader = AnswerReader(loaded, [*prompted, silent], root, count=100, seed=0, batch_size=4)
    right = {example.id: verdict for example, verdict in zip(reader.sample, reader.read(0, 1), strict=True)}

    scheme = Scheme.of(loaded.renderer)
    assert not has_answer(silent, scheme)
    assert not has_answer(dataclasses.replace(prompted[0], style="free"), scheme)
    assert [right[example.id] for example in prompted] == [False, True] * 3


def test_answers_in_sentences_are_not_scored_by_exact_match(base_model, data_folder, examples) -> None:
    loaded = load(str(base_model()), scheme="mr2ag")
    free = [dataclasses.replace(example, style="free") for example in examples[:20]]

    reader = AnswerReader(loaded, [*free, *examples[20:]], data_folder / "images", count=99, seed=0, batch_size=3)

    assert {example.id for example in reader.sample} == {example.id for example in examples[20:]}
    with pytest.raises(UserError, match="has no answer to compare with"):
        check_answers(free, find_scheme("mr2ag"), data_folder)


def test_the_sample_is_drawn_by_seed(base_model, data_folder, examples) -> None:
    loaded = load(str(base_model()), scheme="mr2ag")

    def sample(seed: int) -> list[str]:
        reader = AnswerReader(loaded, examples, data_folder / "images", count=5, seed=seed, batch_size=3)
        return [example.id for example in reader.sample]

    assert sample(0) == sample(0) != sample(1)
    assert len(set(sample(0))) == 5


def test_reading_answers_leaves_training_as_it_is_and_may_choose_the_best(
    config, data_folder, history, losses, assert_equal_weights, monkeypatch
) -> None:
    """With dropout, so that a random number drawn in between would show. Answers are short: nothing ends them."""
    monkeypatch.setattr(answers, "MAX_NEW_TOKENS", 4)
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)
    write_examples(data_folder / "val.parquet", examples[:3] + examples[18:21])
    reads: dict[str, Any] = {"eval_data": str(data_folder), "max_steps": 2, "eval_steps": 1, "eval_answers": 5}
    without, read = config("without", method="lora", max_steps=2), config("read", method="lora", **reads)
    chosen = config("chosen", method="lora", best_metric="answer_exact_match", **reads)
    for run in (without, read, chosen):
        fine_tune(run)

    assert_equal_weights(without.output_dir, read.output_dir)
    assert losses(without.output_dir) == losses(read.output_dir) == losses(chosen.output_dir)
    accuracies = [row["eval_answer_exact_match"] for row in history(read.output_dir) if "eval_loss" in row]
    assert len(accuracies) == 2
    assert all(value * 5 == pytest.approx(round(value * 5)) for value in accuracies)
    assert_equal_weights(chosen.output_dir, Path(chosen.output_dir, "best"))


def test_data_without_answers_is_refused_before_training(config, prompted_folder) -> None:
    silent = PromptedExample("a", "red.png", "?", (PromptedBranch("ret", role="retrieve"),))
    write_examples(prompted_folder / "val.parquet", [silent])
    folder = str(prompted_folder)

    with pytest.raises(UserError, match=r"`eval_answers`: .*val\.parquet has no answer to compare with"):
        fine_tune(config(train_data=folder, eval_data=folder, scheme="mmkb_rag", eval_answers=2))


@pytest.mark.parametrize(
    ("printed", "answer", "right"),
    [
        ("red&&blue", "red&&blue", True),
        ("blue, red", "red&&blue", True),
        ("red and grey", "red&&blue", False),
        ("The red.", "red", True),
        ("red, blue", "red", False),
        ("the", "a&&the", False),
    ],
)
def test_a_list_is_right_where_an_evaluation_says_so(printed: str, answer: str, right: bool) -> None:
    plain: Any = SimpleNamespace(strip=str)
    generation: Any = SimpleNamespace(text=printed)
    assert is_right(plain, generation, answer) is right

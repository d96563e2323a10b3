"""α weighs an answer against the thoughts before it; a reply counts as much as it did."""

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image

from reflectune.core.types import FollowUp
from reflectune.inference.operators import parsing
from reflectune.inference.pipelines.reag import ANSWER, THINK_SYSTEM
from reflectune.models.attention.collation import TreeCollator, loss_terms, model_inputs
from reflectune.models.attention.tree import IGNORE
from reflectune.models.loading import Loaded, load
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.train.data.examples import ANSWER_MARK, EncodedExamples, weigh_answers

THOUGHTS, ANSWERED = "<think>It is a tower on a rock.</think>", "<answer>1603</answer>"


@pytest.fixture(params=["llava", "qwen2_vl"])
def loaded(request: pytest.FixtureRequest, base_model) -> Loaded:
    return load(str(base_model(request.param)), scheme="plain")


def example(*replies: str) -> PromptedExample:
    branches = tuple(PromptedBranch("vqa", reply=reply) for reply in replies)
    return PromptedExample(
        "q", "red.png", "When was it founded?", branches, template=ANSWER, documents="A tower.", system=THINK_SYSTEM
    )


@pytest.mark.parametrize("answer_weight", [0.0, 0.8, 1.0])
def test_the_loss_is_the_weighted_sum_of_both_parts_means(loaded: Loaded, answer_weight: float) -> None:
    """α · mean over the answer's tokens + (1 - α) · mean over the thoughts', from log-probabilities read apart."""
    image, asked = Image.new("RGB", (64, 64), "red"), example(THOUGHTS + ANSWERED)
    tree = PLAIN.encode(loaded.renderer, asked, image)
    weighed = weigh_answers(tree, [(THOUGHTS + ANSWERED,)], loaded.renderer, answer_weight)
    summed, weight = loss_terms(loaded.model, TreeCollator(loaded.model)([weighed]))

    ids = tree.branches[0].ids
    decoded = [loaded.renderer.decode(ids[index:]).replace(" ", "") for index in range(len(ids))]
    border = max(index for index, rest in enumerate(decoded) if ANSWER_MARK in rest)
    batch = TreeCollator(loaded.model)([tree])
    targets = batch["labels"][0, 1:]
    logits = loaded.model(**model_inputs(batch), use_cache=False).logits[0, :-1].float()
    kept = targets != -100
    losses = torch.nn.functional.cross_entropy(logits[kept], targets[kept], reduction="none")
    expected = answer_weight * losses[border:].mean() + (1 - answer_weight) * losses[:border].mean()
    assert float(weight) == pytest.approx(len(ids), rel=1e-5)
    torch.testing.assert_close(summed / weight, expected, rtol=1e-4, atol=1e-5)


def test_other_replies_stay_as_they_are(loaded: Loaded) -> None:
    image, replies = Image.new("RGB", (64, 64), "red"), ("1603", ANSWERED, THOUGHTS + ANSWERED)
    tree = PLAIN.encode(loaded.renderer, example(*replies), image)
    weighed = weigh_answers(tree, [(reply,) for reply in replies], loaded.renderer, 0.8)
    assert weighed.branches[:2] == tree.branches[:2]
    assert weighed.branches[2].weights != tree.branches[2].weights
    assert weighed.branches[2].labels == tree.branches[2].labels


def test_each_reply_of_a_conversation_is_weighed_in_its_place(loaded: Loaded) -> None:
    image, call = Image.new("RGB", (64, 64), "red"), "<think>I owe an <answer> later.</think><search>tower</search>"
    single = PLAIN.encode(loaded.renderer, example(THOUGHTS + ANSWERED), image)
    (alone,) = single.branches
    (expected,) = weigh_answers(single, [(THOUGHTS + ANSWERED,)], loaded.renderer, 0.8).branches
    talk = dataclasses.replace(example(call), follow_ups=(FollowUp("Found: 1603.", THOUGHTS + ANSWERED),))
    tree = PLAIN.encode(loaded.renderer, talk, image)
    (weighed,) = weigh_answers(tree, [(call, THOUGHTS + ANSWERED)], loaded.renderer, 0.8).branches
    count = len(alone.ids)
    assert weighed.weights[-count:] == expected.weights[-count:] != alone.weights[-count:]
    first = [weight for weight, label in zip(weighed.weights, weighed.labels, strict=True) if label != IGNORE][:-count]
    assert len({*first}) == 2
    assert sum(first) == pytest.approx(len(first))


def test_the_trainers_examples_are_weighed_if_the_config_says_so(loaded: Loaded, data_folder: Path) -> None:
    def encoded(answer_weight: float | None) -> tuple[float, ...]:
        asked = [example(THOUGHTS + ANSWERED)]
        dataset = EncodedExamples(
            asked, loaded.renderer, data_folder / "images", max_tokens=4096, answer_weight=answer_weight
        )
        return dataset[0].trees[0].branches[0].weights

    assert len(set(encoded(None))) == 1
    assert len(set(encoded(0.8))) == 2


def test_the_pipeline_reads_the_answer_from_where_the_weight_begins() -> None:
    assert parsing.answer(THOUGHTS + ANSWERED) == "1603"
    assert ANSWERED.startswith(ANSWER_MARK)

"""MMKB-RAG with `prompts: search_result`: one P_SRT in training, in the checkpoint, and when it is asked."""

import dataclasses
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.formats.hits import Hit, describe_ranks
from reflectune.formats.reflection_data import stream_examples, write_examples
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.examples import PromptedExample
from reflectune.models.schemes.mmkb_rag import SCHEME
from reflectune.models.schemes.registry import find_scheme
from reflectune.train.gate_rewards.run import GateTraining
from reflectune.train.grpo import GrpoConfig
from reflectune.train.runs.supervised import fine_tune


@pytest.fixture
def placed(prompted_folder):
    """The folder with each document's place in the search results."""
    path = prompted_folder / "train.parquet"
    examples = [
        dataclasses.replace(e, branches=tuple(dataclasses.replace(b, found="1 of 2") for b in e.branches))
        for e in stream_examples(path, PromptedExample, lambda example: "")
    ]
    write_examples(path, examples)
    return prompted_folder


def test_a_place_has_rank_number_and_similarities_in_the_prompt() -> None:
    assert describe_ranks((Hit("e2", 0.812, 1), Hit("e1", 0.7349, 2)))["e1"] == "2 of 2 (similarity 0.73; first 0.81)"
    prompts = find_scheme("mmkb_rag", "search_result").prompts
    assert prompts["srt"].startswith("Search result {found}. Document: {passage} Does this")
    assert {**prompts, "srt": ""} == {**SCHEME.prompts, "srt": ""}
    for name, variant in (("mmkb_rag", "rank"), ("mr2ag", "search_result")):
        with pytest.raises(UserError, match=f"`prompts: {variant}` is unknown; {name} has"):
            find_scheme(name, variant)


def test_a_checkpoint_asks_with_the_prompt_of_its_training(config, placed, tuned_checkpoint) -> None:
    run = config(prompts="search_result", scheme="mmkb_rag", train_data=str(placed), max_steps=1)
    fine_tune(run)
    loaded = load(run.output_dir, scheme="mmkb_rag")
    assert loaded.scheme == find_scheme("mmkb_rag", "search_result")

    example = next(e for e in stream_examples(placed / "train.parquet", PromptedExample, loaded.scheme.problem))
    srt = next(branch for branch in example.branches if branch.prompt == "srt")
    trained, labels = loaded.scheme.prompt_reply(loaded.renderer, srt)
    image = Image.new("RGB", (70, 64), "gold")
    question = Question("q", "gold.png", example.question, ("1",), (), "train")
    reader = PromptedReader(PrefixEngine(loaded), 4, 4)
    passage, opened = srt.documents[0], reader.open([question], [image])
    scores = [reader.judge(opened, [[passage]], [{passage.entry_id: place}])[0][0] for place in ("1 of 2", "2 of 2")]
    assert scores[0] != scores[1]

    asked = loaded.scheme.prompt_branch(loaded.renderer, "srt", [passage], found="1 of 2")
    assert asked == trained[: len(trained) - sum(label >= 0 for label in labels)]
    with pytest.raises(UserError, match="reads a document's place in the search results"):
        reader.judge(opened, [[passage]], [{}])

    soft = dataclasses.replace(example, branches=(dataclasses.replace(srt, weight=0.25),))
    (segment,) = loaded.scheme.encode(loaded.renderer, soft, image).branches
    assert segment.weights == tuple(0.25 * (label >= 0) for label in labels)

    by_reward: Any = GateTraining(GrpoConfig(model=run.output_dir), dataset=None, hashes={}, measuring=None)
    with pytest.raises(UserError, match="training by reward doesn't support that"):
        by_reward.before_training(loaded, args=None)

    plain = tuned_checkpoint("What is it? It is oak.", "mmkb_rag")
    assert load(plain).scheme == SCHEME
    with pytest.raises(UserError, match="was trained without `prompts: search_result`"):
        load(plain, scheme="mmkb_rag", prompts="search_result")


def test_documents_without_a_place_are_refused_before_training(config, prompted_folder) -> None:
    run = config(prompts="search_result", scheme="mmkb_rag", train_data=str(prompted_folder))
    with pytest.raises(UserError, match="reads a document's place"):
        fine_tune(run)

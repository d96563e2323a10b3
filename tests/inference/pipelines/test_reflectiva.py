"""ReflectiVA against its released procedure: a loop of separate `generate` calls, one a decision."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Passage, Question, Section
from reflectune.formats.hits import Hit
from reflectune.formats.passages import split_passages
from reflectune.inference.pipelines.gated import GatedSettings, random_position
from reflectune.inference.pipelines.reflectiva import ReflectiVA, ReflectivaReader
from reflectune.inference.trace import Trace
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.reflectiva import SCHEME
from reflectune.models.weights.tokens import known_tokens
from reflectune.retrieval.retrievers.queries import Query
from tests.inference.families import ONE_FAMILY

MAX_NEW = 6
SEED = 2
TEXTS = (
    *("What is it made of?", "Who made it?", "Where is it?", "Is it old?", "Oak?", "How tall is the tower?"),
    *("What does it eat?", "When was it built, and by whom?", "Which colour?", "Name it.", "Why?", "Is it of oak?"),
)
SECTIONS = ("It is made of oak.", "Long ago, it was made of old grey stone.", "It stands on a hill. It is tall.")


class Knowledge:
    """Two entries of three sections."""

    def get(self, entry_id: str) -> Entry:
        sections = tuple(Section(f"H{n}", text) for n, text in enumerate(SECTIONS))
        return Entry(entry_id, f"Title {entry_id}", sections=sections)


class Finding:
    """Finds both entries for every query."""

    def search(self, queries: Sequence[Query], top_n: int) -> list[list[Hit]]:
        return [[Hit(f"e{n}", score=0.9 - n / 10, rank=n + 1, query="q") for n in range(2)][:top_n] for _ in queries]


def strong(loaded: Loaded) -> Loaded:
    """The model with weights so large that its decisions differ between questions."""
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return loaded


@pytest.fixture(scope="module")
def model(checkpoints: SimpleNamespace) -> Callable[[], Loaded]:
    return lambda: strong(load(checkpoints.base, scheme="reflectiva", seed=SEED))


@pytest.fixture(scope="module")
def questions(make: SimpleNamespace) -> list[Question]:
    return [make.question(number, text=text) for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    colours = ("red", "green", "blue", "white", "black", "orange")
    return [
        Image.effect_noise((64 + 8 * (n % 3), 64), 90).convert(mode="RGB")
        if n % 2
        else Image.new("RGB", (64, 64), colours[n // 2])
        for n in range(len(TEXTS))
    ]


@pytest.fixture
def pipeline(model: Callable[[], Loaded]) -> Callable[..., ReflectiVA]:
    def make(**settings: Any) -> ReflectiVA:
        reader, gated = ReflectivaReader(PrefixEngine(model()), MAX_NEW), {"lead": "none", "fallback": "random"}
        return ReflectiVA(reader, Finding(), Knowledge(), GatedSettings(**{**gated, **settings}))

    return make


class Released:
    """The released procedure, greedy: each step renders the whole conversation again and calls `generate`."""

    def __init__(self, loaded: Loaded) -> None:
        self.model, self.processor, self.end = loaded.model, loaded.processor, loaded.renderer.end_token_id
        self.ids = {role: loaded.processor.tokenizer.convert_tokens_to_ids(t) for role, t in SCHEME.tokens.items()}

    def answer(
        self, question: Question, image: Image.Image, passages: Sequence[Passage]
    ) -> tuple[list[int] | None, str]:
        """The passages that the answer is read from, None without retrieval, and the answer."""
        user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}
        token, text = self.generate([user], image, ("retrieve", "no_retrieve"))
        if token == self.ids["no_retrieve"]:
            return None, text
        relevant = [k for k, p in enumerate(passages) if self.is_relevant(user, image, passage_text(p))]
        read = relevant or [random_position(question.id, len(passages))]
        paragraph = "".join(passage_text(passages[k]) for k in read)
        turns = self.behind_gate(user, f"{paragraph}</paragraph>. Give a short answer.")
        return read, self.generate(turns, image)[1]

    def is_relevant(self, user: dict[str, Any], image: Image.Image, passage: str) -> bool:
        turns = self.behind_gate(user, f"{passage}</paragraph>")
        return self.generate(turns, image, ("relevant", "irrelevant"))[0] == self.ids["relevant"]

    def behind_gate(self, user: dict[str, Any], rest: str) -> list[dict[str, Any]]:
        said = {"role": "assistant", "content": [{"type": "text", "text": "[Retrieval]"}]}
        text = f"Consider this paragraph: <paragraph>{rest}"
        return [user, said, {"role": "user", "content": [{"type": "text", "text": text}]}]

    def generate(self, turns: list[dict[str, Any]], image: Image.Image, pair: Sequence[str] = ()) -> tuple[int, str]:
        """The first token of the reply, of a pair if one is given as a trained model would, and what follows it."""
        prompt = self.processor.apply_chat_template(turns, add_generation_prompt=True)
        inputs = self.processor(text=[prompt], images=[image], return_tensors="pt")
        start = inputs["input_ids"].shape[1]
        every = list(range(self.model.config.get_text_config().vocab_size))

        def allowed(batch: int, ids: torch.Tensor) -> list[int]:
            return [self.ids[role] for role in pair] if pair and len(ids) == start else every

        with torch.no_grad():
            made = self.model.generate(
                **inputs, max_new_tokens=MAX_NEW + bool(pair), do_sample=False, prefix_allowed_tokens_fn=allowed
            )[0, start:]
        kept = [i for i in made.tolist() if i not in (*self.ids.values(), self.end)]
        text = self.processor.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return int(made[0]), " ".join(text.split())


@ONE_FAMILY
def test_it_decides_and_answers_as_the_released_procedure_does(model, pipeline, questions, images) -> None:
    passages = [p for n in range(2) for p in split_passages(Knowledge().get(f"e{n}"), lead="none")]
    released = Released(model())
    expected = [released.answer(q, image, passages) for q, image in zip(questions, images, strict=True)]
    traces = pipeline(fallback="random").run(questions, images)
    passages_and_answers = [
        (list(trace.used) if trace.retrieved else None, " ".join(trace.answer.split())) for trace in traces
    ]
    assert passages_and_answers == expected
    read = [used for used, _ in expected]
    assert None in read  # every way through the procedure was taken
    assert any(used is not None and len(used) > 1 for used in read)
    assert any(trace.fallback == "random" for trace in traces)


@ONE_FAMILY
def test_nothing_relevant_is_answered_as_the_fallback_says(pipeline, questions, images) -> None:
    def lost(fallback: str) -> list[Trace]:
        traces = pipeline(fallback=fallback, gamma=0.0).run(questions, images)
        return [trace for trace in traces if trace.fallback]

    best = lost("best_product")
    assert best
    for trace in best:
        scores = [passage.s_rel for passage in trace.passages]
        assert [scores[place] for place in trace.used] == [max(scores)]
    assert all(not trace.used and trace.answer for trace in lost("closed_book"))
    assert all(not trace.used and trace.answer == "" for trace in lost("abstain"))


@ONE_FAMILY
def test_gamma_decides_whether_to_retrieve(pipeline, questions, images) -> None:
    assert all(trace.retrieved for trace in pipeline(gamma=0.0).run(questions, images))
    assert not any(trace.retrieved for trace in pipeline(gamma=1.0).run(questions, images))


@ONE_FAMILY
def test_a_released_checkpoint_is_taken_as_fine_tuned_and_another_one_is_not(checkpoints, tmp_path) -> None:
    base = load(checkpoints.base, scheme="reflectiva")
    assert not base.is_tuned
    del base.model.config.reflection_scheme  # the mark of our own checkpoints
    base.model.save_pretrained(tmp_path)
    base.processor.save_pretrained(tmp_path)
    released = load(str(tmp_path), scheme="reflectiva")
    assert released.is_tuned
    assert released.scheme == SCHEME
    assert known_tokens(released.processor.tokenizer, SCHEME) == set(SCHEME.tokens.values())
    assert all(torch.equal(a, b) for a, b in zip(released.model.parameters(), base.model.parameters(), strict=True))
    with pytest.raises(UserError, match="already has reflection tokens"):
        load(str(tmp_path), scheme=MR2AG.name)

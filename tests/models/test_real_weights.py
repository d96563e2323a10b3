"""Pocket's real weights: what is read over a shared prefix is what one plain call of transformers a branch gives.

The language model is cut to its first six layers and the vision tower to its first four, the image is drawn, and the
projector and the tokens are untrained. What transformers computes is taken before its attention is replaced.
"""

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from reflectune.core.types import Passage
from reflectune.models.attention.collation import TreeCollator
from reflectune.models.attention.shared import attention_of
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.schemes.examples import Branch, ReflectionExample
from reflectune.models.schemes.passages import PassageScheme
from reflectune.train.weights.parameters import add_adapters, projector_modules

pytestmark = pytest.mark.slow

QUESTIONS = {
    "When was the tower built?": [
        ("It was built in 1874 by Ada Byron.", "1874"),
        ("It has four floors, and a bell that rings at noon on each Sunday.", ""),
        ("Made of oak.", ""),
    ],
    "Who lives in this old house by the river, and since when?": [
        ("Nobody has lived in it since 1902, when the last keeper left.", "nobody"),
        ("A family of storks.", "storks"),
        ("The tower is 31 metres tall; its roof was painted red.", ""),
    ],
}
"""Each with the texts of its passages, and the answer where one is evidence."""
ROWS = [(q, k) for q in range(2) for k in range(3)]
NEW_TOKENS = 6


def tower() -> Image.Image:
    """A tower on a meadow, below the sun."""
    image = Image.new("RGB", (150, 110), (120, 180, 235))
    canvas = ImageDraw.Draw(image)
    canvas.rectangle((0, 80, 150, 110), fill=(60, 140, 50))
    canvas.rectangle((60, 20, 90, 85), fill=(150, 110, 70))
    canvas.polygon(((55, 20), (95, 20), (75, 2)), fill=(180, 40, 30))
    canvas.ellipse((110, 8, 135, 33), fill=(250, 220, 60))
    return image


def examples() -> list[ReflectionExample]:
    made = []
    for question, passages in QUESTIONS.items():
        branches = [
            Branch(Passage("e1", 0, k, "The Oak Tower", "A tower of oak.", "History", text), bool(answer), answer)
            for k, (text, answer) in enumerate(passages)
        ]
        made.append(ReflectionExample(question, "", question, True, branches=tuple(branches)))
    return made


@dataclass(frozen=True)
class Asked:
    """The questions as a model reads them, and what transformers says of each whole row.

    Attributes:
        prefixes: Image and question.
        branches: For each question the token ids of its passages' branches.
        replies: For each of `ROWS` a reply to score, behind [Relevant].
        log_probs: Of both retrieval tokens of each question, of both relevance tokens of each row, and of the replies'
            tokens, all in one row, in nats.
        answers: Greedy answers one a row, by transformers' own `generate`; or
            none.
    """

    prefixes: list[Rendered]
    branches: list[list[list[int]]]
    replies: list[list[int]]
    log_probs: Tensor
    answers: list[list[int]]


def ask(loaded: Loaded, plain: SimpleNamespace, new_tokens: int) -> Asked:
    """Read every row by itself, before the model's attention is replaced, and answer in as many tokens."""
    assert attention_of(loaded.model.config.get_text_config()) == "sdpa"
    renderer, scheme, made = loaded.renderer, PassageScheme.of(loaded.renderer), examples()
    prefixes = [renderer.prefix(example.question, tower()) for example in made]
    branches = [[scheme.passage_branch(renderer, b.passage) for b in example.branches] for example in made]
    replies = [renderer.reply_ids(made[q].branches[k].answer or "Ada Byron") for q, k in ROWS]
    gates = [plain.logits(loaded, prefix, []).float().log_softmax(-1)[0, gate_ids(loaded)[0]] for prefix in prefixes]
    relevance, scores, answers = [], [], []
    for (q, k), reply in zip(ROWS, replies, strict=True):
        more = [*branches[q][k], renderer.token_id("relevant"), *reply]
        read = plain.logits(loaded, prefixes[q], more, last=len(reply) + 2).float().log_softmax(-1)
        relevance.append(read[0, gate_ids(loaded)[1]])
        scores.append(read[1:-1].gather(1, torch.tensor(reply)[:, None])[:, 0])
        if new_tokens:
            inputs = plain.inputs(loaded.model, [*prefixes[q].ids, *branches[q][k]], prefixes[q].vision)
            ids = loaded.model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens)
            answers.append(ids[0, inputs["input_ids"].shape[1] :].tolist())
    return Asked(prefixes, branches, replies, torch.cat([*gates, *relevance, *scores]), answers)


def gate_ids(loaded: Loaded) -> list[list[int]]:
    """The two tokens of the retrieval gate, and of the relevance gate."""
    pairs = ("retrieve", "no_retrieve"), ("relevant", "irrelevant")
    return [[loaded.renderer.token_id(role) for role in pair] for pair in pairs]


def by_engine(loaded: Loaded, asked: Asked, keep_images: int) -> tuple[Tensor, list[list[int]]]:
    """Read the same log-probabilities, and answers where `asked` has some, by the engine, which shares prefixes."""
    engine, (retrieval, relevance) = PrefixEngine(loaded), gate_ids(loaded)
    engine.image_prefixes.keep(keep_images)
    opened = engine.read(asked.prefixes)
    state = engine.branch(opened, asked.branches)
    gates = [opened.probabilities(retrieval), *state.probabilities(relevance)]
    scores = engine.score(state, ROWS, [[loaded.renderer.token_id("relevant"), *reply] for reply in asked.replies])
    rows = ROWS if asked.answers else []
    answers = [answer.token_ids for answer in engine.generate(state, rows, max_new_tokens=NEW_TOKENS)]
    log_probs = [*(gate.log().flatten() for gate in gates), *(torch.tensor(score[1:]) for score in scores)]
    return torch.cat(log_probs), answers


@pytest.fixture(scope="module")
def loaded(pocket: str) -> Loaded:
    return load(pocket)


@pytest.fixture(scope="module")
def exact(loaded: Loaded, plain: SimpleNamespace) -> Asked:
    return ask(loaded, plain, NEW_TOKENS)


@pytest.fixture(params=[False, True], ids=["levels", "packed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On levels of keys and values, or on packed rows, as a GPU reads them."""
    if request.param:
        reader = functools.partial(PackedReader, compile_after=None)
        monkeypatch.setattr("reflectune.models.prefix.engine.packed_for", lambda *known, **_: reader(*known))


@pytest.mark.parametrize(("way", "keep_images"), [(False, 0), (True, 1)], ids=["levels", "packed"], indirect=["way"])
@pytest.mark.usefixtures("way")
def test_gates_scores_and_answers_are_those_of_plain_calls(loaded: Loaded, exact: Asked, keep_images: int) -> None:
    """On levels with each question's prefix read whole, on packed rows with the image of both read once.

    In float32; the largest difference measured is 2.7e-5 nats, and 2.1e-5 with all 30 layers.
    """
    log_probs, answers = by_engine(loaded, exact, keep_images)
    assert float((log_probs - exact.log_probs).abs().max()) < 1e-4
    assert answers == exact.answers
    assert max(map(len, answers)) > 2


def test_in_half_precision_the_engine_rounds_about_as_plain_calls_do(pocket, plain, exact) -> None:
    """In bfloat16 both are far from float32, of log-probabilities of -55 … -11 nats, and not by the same roundings.

    The roundings depend on the number of threads and on the CPU's instructions. Measured with 1 to 4 threads, and with
    one without AMX: engine and plain calls differ by 0.27 … 0.61 nats at most and 0.12 … 0.19 in the root mean square;
    from float32 the engine is 0.10 … 0.15 away, plain calls are 0.08 … 0.14.
    """
    loaded = load(pocket, dtype="bfloat16")
    asked = ask(loaded, plain, new_tokens=0)
    log_probs, _ = by_engine(loaded, asked, keep_images=1)
    assert root_mean_square(log_probs - asked.log_probs) < 0.3
    assert root_mean_square(log_probs - exact.log_probs) < 0.25


def root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def test_a_batch_of_trees_teaches_what_plain_calls_teach(pocket: str, plain: SimpleNamespace) -> None:
    """The summed loss, and its gradients on the projector, adapters in the first and the last layer and tokens' rows.

    The largest difference measured of a gradient, relative to its norm, is 2.1e-6; of the loss 2.1e-8. A mask that lets
    a question's branches see one another changes a gradient by 0.9 of its norm.
    """
    loaded = load(pocket)
    model = adapted(loaded)
    trees = [PassageScheme.of(loaded.renderer).encode(loaded.renderer, example, tower()) for example in examples()]
    assert attention_of(loaded.model.config.get_text_config()) == "sdpa"
    expected = plain.learned(model, plain.rows(loaded.model, trees))
    batch = TreeCollator(model)(trees)
    actual = plain.learned(model, [batch])
    assert len(batch["pixel_values"]) == len(trees)  # of three rows each
    assert actual[1] == expected[1] == sum(tree.supervised for tree in trees)
    assert any("multi_modal_projector" in name for name in expected[2])
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    assert max(differences(actual[2], expected[2])) < 1e-4


def differences(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> list[float]:
    """By how much each gradient differs, relative to its norm."""
    assert actual.keys() == expected.keys()
    return [float((actual[name] - value).norm() / value.norm()) for name, value in expected.items()]


def adapted(loaded: Loaded) -> Any:
    """The model with adapters that have been trained a little, and a projector that trains with them."""
    torch.manual_seed(0)
    ids, targets = loaded.renderer.token_ids.values(), r".*language_model\.layers\.(0|5)\..*_proj"
    whole = projector_modules(loaded.model)
    model = add_adapters(loaded.model, ids, rank=8, alpha=16, dropout=0.0, targets=targets, whole=whole)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model

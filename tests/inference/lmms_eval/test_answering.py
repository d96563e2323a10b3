"""Modes on tiny random models: what each answers, what its gate is said to have decided, and what is refused."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.examples.lmms_eval.answering import (
    BenchmarkAnswerer,
    BenchmarkReply,
    BenchmarkRequest,
    cut,
    read_request,
)
from reflectune.examples.lmms_eval.config import BenchmarkConfig, BenchmarkSettings
from reflectune.inference.config import ModelSettings
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.passages import PassageScheme
from reflectune.retrieval.config import RetrieverConfig
from tests.inference.families import ONE_FAMILY, QWEN

TEXTS = ("What is it made of?", "Who made it?", "Where does it live?")
Answer = Callable[..., list[BenchmarkReply]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, make) -> Path:
    """Two entries, and for a red image the order in which they are found."""
    folder = tmp_path_factory.mktemp("world")
    make.data_set(folder, [make.entry(0), make.entry(1)], [], metric="exact_match")
    Image.new("RGB", (64, 64), "red").save(folder / "red.png")
    (folder / "ranked.jsonl").write_text(json.dumps({"image": "red.png", "entities": ["e1", "e0"]}))
    return folder


@pytest.fixture
def asked(images: list[Image.Image]) -> list[BenchmarkRequest]:
    """Three questions; the second one's answer may be longer than the others'."""
    limits = (2, 4, 2)
    return [BenchmarkRequest("task", n, *each) for n, each in enumerate(zip(TEXTS, images, limits, strict=True))]


@pytest.fixture
def answers(checkpoints: SimpleNamespace, world: Path, asked: list[BenchmarkRequest]) -> Answer:
    """Return the answers to the requests under changed keys."""
    common = {"device": "cpu", "model": checkpoints.tuned, "base_model": checkpoints.base}
    searched = {"dataset": str(world), "ranked_entities": str(world / "ranked.jsonl")}

    def answer(mode: str, requests: Sequence[BenchmarkRequest] | None = None, **more: Any) -> list[BenchmarkReply]:
        values = {**common, **(searched if mode == "pipeline" else {}), **more, "mode": mode}
        return list(answerer(BenchmarkConfig(**values)).answer(asked if requests is None else requests))

    return answer


def answerer(config: BenchmarkConfig) -> BenchmarkAnswerer:
    settings, models, retriever = (kind.of(config) for kind in (BenchmarkSettings, ModelSettings, RetrieverConfig))
    return BenchmarkAnswerer(settings, models, retriever, config.pipelines())


def texts(replies: Sequence[BenchmarkReply]) -> list[str]:
    return [reply.text for reply in replies]


@QWEN
def test_a_forced_answer_is_what_the_model_says_behind_no_retrieval_and_the_token_takes_none_of_its_limit(
    answers: Answer, asked: list[BenchmarkRequest], checkpoints: SimpleNamespace
) -> None:
    loaded = load(checkpoints.tuned)
    engine, renderer = PrefixEngine(loaded), loaded.renderer
    scheme = PassageScheme.of(renderer)
    expected = []
    for request in asked:
        prefix = engine.read([scheme.open(renderer, request.text, request.image)])
        token = [renderer.token_id("no_retrieve")]
        expected += engine.generate(prefix, [(0, 0)], token, max_new_tokens=request.max_new_tokens or 0)
    replies = answers("no_retrieval")
    assert texts(replies) == [renderer.strip(each.text) for each in expected]
    assert [reply.tokens for reply in replies] == [len(each.token_ids) for each in expected]
    assert any(reply.tokens == request.max_new_tokens for reply, request in zip(replies, asked, strict=True))


@ONE_FAMILY
def test_modes_agree_where_no_gate_opens(answers: Answer) -> None:
    keys = {"gamma": 1.0, "answer_style": "short"}
    forced, gated, whole = (answers(mode, **keys) for mode in ("no_retrieval", "gate", "pipeline"))
    assert texts(forced) == texts(gated) == texts(whole)
    assert [each.gate for each in forced] == [each.gate for each in gated] == [each.gate for each in whole]
    assert not any(each.opened for each in (*forced, *gated, *whole))


@ONE_FAMILY
def test_what_a_gate_would_look_up_is_answered_when_forced_unanswered_when_free_and_looked_up_by_the_pipeline(
    answers: Answer,
) -> None:
    forced, gated, whole = (answers(mode, gamma=0.0) for mode in ("no_retrieval", "gate", "pipeline"))
    assert all(each.opened for each in (*forced, *gated, *whole))
    assert texts(forced) == texts(answers("no_retrieval"))
    assert texts(gated) == ["", "", ""]
    assert whole[0].entries == ("e1", "e0")
    assert not any(each.entries for each in (*forced, *gated, *whole[1:]))


@pytest.mark.parametrize(
    ("family", "mode"), [("llava", "base"), ("qwen2_vl", "pipeline")], indirect=["family"], scope="session"
)
def test_batches_change_no_answer(answers: Answer, asked: list[BenchmarkRequest], mode: str) -> None:
    together = answers(mode, gamma=0.0)
    alone = [reply for request in asked for reply in answers(mode, [request], gamma=0.0, batch_questions=1)]
    assert texts(together) == texts(alone)
    assert [each.entries for each in together] == [each.entries for each in alone]


@ONE_FAMILY
def test_the_base_model_has_no_gate(answers: Answer) -> None:
    reply = answers("base")[0]
    assert (reply.gate, reply.opened) == (None, None)
    assert reply.decision == {"mode": "base", "checkpoint": reply.checkpoint, "style": "free"}
    assert reply.checkpoint != answers("no_retrieval")[0].checkpoint


def test_images_are_taken_batch_by_batch(answers: Answer, asked: list[BenchmarkRequest]) -> None:
    taken = []

    def requests() -> Any:
        for request in asked:
            taken.append(request.doc_id)
            yield request

    config = BenchmarkConfig(mode="base", base_model="miniature/llava", batch_questions=1, device="cpu")
    next(answerer(config).answer(requests()))
    assert taken == [0]


@ONE_FAMILY
def test_mmkb_rags_base_model_answers_what_its_gate_leaves(answers, prompted, asked) -> None:
    keys = {"model": prompted.tuned, "base_model": prompted.base, "gamma": 1.0}
    before, forced, gated = (answers(mode, **keys) for mode in ("base", "no_retrieval", "gate"))
    assert texts(before) == texts(forced) == texts(gated)
    assert texts(answers("gate", **{**keys, "gamma": 0.0})) == ["", "", ""]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param({"mode": "base"}, "`base_model` is needed by mode base", id="no base"),
        pytest.param({"mode": "gate"}, "`model` is needed by mode gate", id="no checkpoint"),
        pytest.param({"mode": "pipeline"}, "`index` is needed by mode pipeline", id="no index"),
        pytest.param({"mode": "pipeline"}, "`dataset` is needed", id="no data set"),
        pytest.param({"mode": "gate", "ret": False}, "mode gate reads the gate", id="no gate"),
    ],
)
def test_a_mode_says_what_it_lacks(keys: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in find_problems(BenchmarkConfig, dict(**keys)))


def test_a_mode_needs_only_what_it_reads() -> None:
    assert find_problems(BenchmarkConfig, {"mode": "base", "base_model": "miniature/llava"}) == []


@ONE_FAMILY
def test_a_model_that_does_not_reflect_is_named_as_the_base_it_is(answers, checkpoints) -> None:
    with pytest.raises(UserError, match="scheme plain, which doesn't reflect; give it as `base_model`"):
        answers("gate", model=checkpoints.plain)


IMAGE = Image.new("RGB", (8, 8))


@pytest.mark.parametrize(
    ("visuals", "generation", "message"),
    [
        pytest.param([], {}, r"mme, document 3: .*found 0 \(none\)", id="no image"),
        pytest.param([IMAGE, IMAGE], {}, r"found 2 \(Image, Image\)", id="two images"),
        pytest.param(["film.mp4"], {}, r"found 1 \(str\)", id="video"),
        pytest.param([IMAGE], {"do_sample": True}, "answers are greedy", id="samples"),
        pytest.param([IMAGE], {"temperature": 0.7}, "answers are greedy", id="temperature"),
        pytest.param([IMAGE], {"num_beams": 4}, "answers are greedy", id="beams"),
    ],
)
def test_what_can_not_be_answered_is_refused_in_a_line(visuals: Any, generation: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_request("mme", 3, "Is there a cat?", visuals, generation)
    assert "\n" not in str(error.value)


def test_a_request_takes_the_tasks_limit_and_stops() -> None:
    generation = {"max_new_tokens": 16, "temperature": 0.0, "num_beams": 1, "do_sample": False, "until": "\n\n"}
    grey = Image.new("L", (8, 8))
    request = read_request("mme", 3, "Is there a cat?", [grey], generation)
    assert (request.max_new_tokens, request.stops, request.image.mode) == (16, ("\n\n",), "RGB")
    assert read_request("mme", 3, "Is there a cat?", [grey], {"until": ["a", "b"]}).stops == ("a", "b")
    assert read_request("mme", 3, "Is there a cat?", [grey], {}).max_new_tokens is None


@settings(deadline=None)
@given(st.text("ab\n "), st.lists(st.text("ab\n", max_size=3), max_size=3))
def test_a_cut_answer_is_a_beginning_without_any_stop(text: str, stops: list[str]) -> None:
    whole = text.strip()
    short = cut(whole, stops)
    assert whole.startswith(short) or whole.lstrip().startswith(short)
    assert not any(stop in short for stop in stops if stop)


@ONE_FAMILY
@pytest.mark.parametrize(("keeps", "expected"), [(False, "a b c"), (True, "a b\n\nc")], ids=["one line", "lines"])
def test_lines_are_kept_if_asked_for(checkpoints: SimpleNamespace, keeps: bool, expected: str) -> None:
    loaded = load(checkpoints.tuned)
    renderer: Renderer = loaded.renderer
    renderer.keeps_lines = keeps
    written = "[No Retrieval] a  b \n\n c\n"
    assert renderer.strip(written) == expected


def test_an_answers_limit_is_at_most_half_of_the_context(asked: list[BenchmarkRequest]) -> None:
    config = BenchmarkConfig(mode="base", base_model="miniature/llava", device="cpu")
    half = PrefixEngine(load("miniature/llava")).max_length // 2
    (reply,) = answerer(config).answer([dataclasses.replace(asked[0], max_new_tokens=10**6)])
    assert reply.tokens is not None
    assert reply.tokens <= half

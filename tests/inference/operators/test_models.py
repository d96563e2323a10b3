"""Models behind a server that misbehaves, and on this machine: steps have replies, and nothing is asked for twice."""

import base64
import dataclasses
import json
import math
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image, open_image
from reflectune.core.types import Question
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.operators.parsing import SCHEMAS
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeEachRequest,
    JudgeRequest,
    Prompt,
    WriteRequest,
)
from reflectune.inference.operators.step_log import REPLIES, StepLog
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe
from reflectune.inference.scoring.trajectories import replies, reply_sentences
from reflectune.inference.trace import Trace
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.remote import images as sent_images
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.images import ImageUrls

IMAGE = Image.new("RGB", (8, 6), "red")
ASKED = Prompt("Question: {question}\n{documents}", {"question": "Who built it?"}, ("One.", "Two."))


def say(text: str) -> str:
    if "## Output" in text:
        return f"## Output\nQuestion: What of {len(text)}?"
    return f"I read {len(text.split())} words."


def run(model: Any, scripting: type[Any]) -> Trace:
    script = scripting(find=lambda query, base: [f"{base} {len(query)}"])
    trajectory = Pmsr(
        PmsrSettings(iterations=2, saturation=2.0, max_new_tokens=8, max_record_tokens=32), {"texts": 2, "pairs": 1}
    )
    tools = Tools({"reader": model, "answerer": model}, script.search, script.embed)
    (trace,) = TrajectoryPipeline("pmsr", trajectory, tools).run([Question("q", "image.png", "Who built it?")], [IMAGE])
    return dataclasses.replace(trace, seconds={})


def write(model: ServedModel, prompt: Prompt, image: Image.Image = IMAGE) -> Any:
    (send,) = model.requests(image, WriteRequest("answer", 0, prompt, 8))
    return send()


def judge(model: ServedModel, prompt: Prompt, kind: Any = JudgeRequest, image: Any = IMAGE, no: str = "No") -> Any:
    return [send() for send in model.requests(image, kind(0, prompt, no=no))]


@pytest.fixture
def remote(tmp_path: Path) -> Callable[[str], RemoteModel]:
    return lambda url: RemoteModel(Endpoint(url, "stub", timeout=5.0), tmp_path / "replies.jsonl")


def sent(server: Any) -> list[tuple[str, bytes]]:
    """Return the type and the bytes of each request's image, which stands before the text."""
    images = [body["messages"][-1]["content"][0]["image_url"]["url"] for _, body in server.requests]
    split = [url.removeprefix("data:").split(";base64,") for url in images]
    return [(mime, base64.b64decode(content)) for mime, content in split]


def test_an_image_travels_in_its_own_bytes_encoded_once(stub_server, remote, tmp_path, monkeypatch) -> None:
    Image.effect_noise((64, 48), 60).convert("RGB").save(path := tmp_path / "a.jpg", quality=70)
    encoded: list[Image.Image] = []
    encode = sent_images.encode_image

    def counted(image: Image.Image, most: int, **form: Any) -> tuple[str, bytes]:
        encoded.append(image)
        return encode(image, most, **form)

    monkeypatch.setattr(sent_images, "encode_image", counted)
    server = stub_server(say, first_token={"Yes": -0.1})
    with remote(server.url) as model:
        asked = ServedModel(model)
        judge(asked, ASKED, JudgeEachRequest, image := load_image(path))
        write(asked, ASKED, image)
    assert sent(server) == [("image/jpeg", path.read_bytes())] * 3
    assert len(encoded) == 1
    assert server.requests[-1][1]["messages"][0]["content"][1]["text"] == "Question: Who built it?\nOne.\nTwo."


def test_images_of_a_batch_are_encoded_once_and_bounded_by_their_size(monkeypatch) -> None:
    images = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in range(64)]
    encoded: list[Image.Image] = []
    form = "image/jpeg", b"0" * 300
    monkeypatch.setattr(sent_images, "encode_image", lambda image, most, **_: encoded.append(image) or form)
    urls = ImageUrls()
    assert len({urls.of(image) for _ in range(2) for image in images}) == 1
    assert len(encoded) == 64
    monkeypatch.setattr(sent_images, "MAX_ENCODED", 1_000)  # two images
    for place in (0, 1, 1, 0, 2, 0):
        urls.of(images[place])
    assert encoded[64:] == []  # kept from before, until one more is encoded
    urls.of(Image.new("RGB", (8, 8)))
    urls.of(images[0])
    assert encoded[65:] == [images[0]]
    encoded.clear()
    gone = weakref.ref(images.pop())
    assert gone() is None  # an image is not kept for its URL


def test_a_large_image_travels_within_max_pixels(stub_server, tmp_path) -> None:
    Image.effect_noise((64, 48), 60).convert("RGB").save(path := tmp_path / "a.png")
    server = stub_server(say)
    with RemoteModel(Endpoint(server.url, "stub", max_pixels=300), tmp_path / "replies.jsonl") as model:
        write(ServedModel(model), ASKED, load_image(path))
    ((mime, content),) = sent(server)
    assert (mime, open_image(content).size) == ("image/jpeg", (20, 15))


def test_a_refused_step_is_an_empty_reply_and_the_trajectory_goes_on(stub_server, remote, scripting) -> None:
    refuse = {"status": 400, "body": '{"error": {"message": "too long"}}'}
    server = stub_server(say, lambda text, number: refuse if "## Output" in text else {})
    with remote(server.url) as model:
        trace = run(ServedModel(model), scripting)
    refused = [step for step in trace.steps if step.operator == "rewrite"]
    assert [(step.text, step.finished) for step in refused] == [("", False)] * 2
    assert all("status 400" in step.refused for step in refused)
    assert trace.answer.startswith("I read")
    assert [trace.tokens[name] for name in REPLIES] == [2, 0, 0, 2, 0]
    assert trace.error == ""


def test_a_refused_answer_is_an_error_and_cut_and_unread_replies_are_counted(stub_server, remote, scripting) -> None:
    cut = json.dumps({"choices": [{"message": {"content": "Well,"}, "finish_reason": "length"}]})
    refuse = {"status": 413, "body": '{"error": {"message": "context too long"}}'}

    def fault(text: str, number: int) -> dict[str, Any]:
        return {"body": cut} if "## Output" in text else refuse if "Relevant Knowledge" in text else {}

    server = stub_server(say, fault)
    with remote(server.url) as model:
        trace = run(ServedModel(model), scripting)
        assert re.search("warning: of .* requests 3 refused and 2 truncated .*first: status 413", model.summary())
    assert trace.error.startswith("the server refused to answer (status 413")
    assert [trace.tokens[name] for name in REPLIES] == [1, 2, 2, 2, 0]
    counts = replies({"q": trace})
    (sentence,) = reply_sentences({"replies": {"pmsr": counts}})
    assert sentence == (
        f"warning: pmsr: of {counts['calls']} replies 1 were refused by the server, 2 were truncated at the "
        "maximum length, 2 couldn't be read, 2 had no query."
    )


def test_a_refused_document_is_judged_0_and_the_others_by_their_replies(stub_server, remote) -> None:
    refuse = {"status": 413, "body": "too long"}
    server = stub_server(
        say, lambda text, number: refuse if "Two." in text else {}, first_token={"Yes": -0.1, "No": -3.0}
    )
    with remote(server.url) as model:
        one, two = judge(ServedModel(model), ASKED, JudgeEachRequest)
    assert (one.shown, one.refused) == (1, "")
    assert (two.yes, two.no, two.shown) == (0, 0, 0)
    assert "status 413" in two.refused


def test_a_reply_without_log_probabilities_is_refused_alone(stub_server, remote) -> None:
    """A content filter answers so; the server's other replies have log-probabilities."""
    filtered = {"body": json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]})}
    server = stub_server(say, lambda text, number: filtered if "Two." in text else {}, first_token={"Yes": -0.1})
    prompts = [dataclasses.replace(ASKED, documents=(text,)) for text in ("One.", "Two.", "Three.")]
    with remote(server.url) as model:
        served = ServedModel(model)
        judged = [judge(served, prompt)[0] for prompt in prompts]
    assert [(round(it.yes, 3), it.written) for it in judged] == [(0.905, False), (0.0, False), (0.905, False)]
    assert [bool(it.refused) for it in judged] == [False, True, False]


def test_a_judgement_is_read_from_first_tokens(stub_server, remote) -> None:
    server = stub_server(say, first_token={"Yes": math.log(0.6), "Perhaps": math.log(0.3)})
    with remote(server.url) as model:
        (judged,) = judge(ServedModel(model), ASKED)
    assert (round(judged.yes, 6), judged.no, round(judged.share, 6), judged.shown) == (0.6, 0.0, 1.0, 2)
    assert judged.read > 0


def test_a_judgement_that_says_nothing_is_no_secret(stub_server, remote) -> None:
    """A reasoning model begins with its thoughts."""
    thoughts = {"<think>": math.log(0.9), "Well": math.log(0.1)}
    server = stub_server(lambda text: "<think>No?</think>Yes", first_token=thoughts)
    with remote(server.url) as model:
        with pytest.warns(UserWarning, match="begins with neither 'Yes' nor 'No'") as warned:
            (judged,) = judge(ServedModel(model), ASKED)
        options = json.loads(str(warned[0].message).partition("`llm_options` ")[2])
        model.endpoint = dataclasses.replace(model.endpoint, options=options)
        (written,) = judge(ServedModel(model), ASKED)
    assert judged.share == 0
    assert (written.share, written.written) == (1, True)


def served(*listed: tuple[str, float]) -> str:
    first = {"top_logprobs": [{"token": token, "logprob": value} for token, value in listed]}
    return json.dumps({"choices": [{"message": {"content": "x"}, "logprobs": {"content": [first]}}]})


def test_all_first_tokens_that_are_the_word_count(stub_server, remote) -> None:
    words = (" Yes", "\u2581Yes", "\u0120Yes", "\u010ayes", "\nYes", "Yes", '"Yes', "**YES", "\u201cYes")
    listed = [*((word, math.log(0.1)) for word in words), ("No", -3.0), ("Yesterday", -4.0), ("Not", -math.inf)]
    server = stub_server(say, lambda text, number: {"body": served(*listed)})
    with remote(server.url) as model:
        (judged,) = judge(ServedModel(model), ASKED)
    assert (judged.yes, judged.no) == pytest.approx((0.9, math.exp(-3)))


def test_a_probability_that_is_nan_is_an_error_and_not_kept(stub_server, remote) -> None:
    server = stub_server(say, lambda text, number: {"body": served(("Yes", math.nan), ("No", -0.1))})
    with remote(server.url) as model:
        with pytest.raises(UserError, match="NaN as the log-probability of 'Yes'"):
            judge(ServedModel(model), ASKED)
        assert model.usage()["replies"] == 0
        with pytest.raises(UserError, match="differ only by case"):
            judge(ServedModel(model), ASKED, no=" yes")


def test_each_document_is_judged_in_a_request_of_its_own(stub_server, remote) -> None:
    server = stub_server(say, first_token={"Yes": math.log(0.6), "No": math.log(0.3)})
    prompt = dataclasses.replace(ASKED, system="Be brief.", image=False)
    with remote(server.url) as model:
        alone = dataclasses.replace(prompt, documents=("Three.",))
        judged = [reply for each in (prompt, alone) for reply in judge(ServedModel(model), each, JudgeEachRequest)]
    assert [(round(each.yes, 6), each.shown) for each in judged] == [(0.6, 1)] * 3
    sent = sorted((body["messages"] for _, body in server.requests), key=str)
    assert sent == [
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": f"Question: Who built it?\n{document}"}]},
        ]
        for document in ("One.", "Three.", "Two.")
    ]


def test_a_prompt_that_is_too_long_for_a_server_is_read_with_fewer_documents(stub_server, remote) -> None:
    """The first requests of a run among them, and those about one document, which stay refused."""
    refuse = {"status": 400, "body": '{"error": {"message": "maximum context length"}}'}
    server = stub_server(
        say, lambda text, number: refuse if len(text) > 150 else {}, first_token={"Yes": math.log(0.6), "No": -3.0}
    )
    long = Prompt(ASKED.template, ASKED.texts, tuple(f"Document {n}, of some length." for n in range(10)))
    alone = dataclasses.replace(long, documents=("word " * 50,))
    with remote(server.url) as model:
        served = ServedModel(model)
        cut, refused, whole = (write(served, prompt) for prompt in (long, alone, ASKED))
        (judged,) = judge(served, long)
    assert (cut.shown, whole.shown, judged.shown) == (3, 2, 3)
    assert cut.text == say("\n".join(["Question: Who built it?", *long.documents[:3]]))
    assert (refused.text, refused.shown) == ("", 0)
    assert "maximum context length" in refused.refused
    with remote(server.url) as model, pytest.raises(UserError, match="refuses every request"):
        write(ServedModel(RemoteModel(model.endpoint, model.cache.with_name("none.jsonl"))), alone)


WITHOUT_LOG_PROBABILITIES = {
    "ignores the field": {},
    "refuses the field": {"status": 400, "body": '{"error": {"message": "logprobs are not supported"}}'},
}


@pytest.mark.parametrize("fault", WITHOUT_LOG_PROBABILITIES.values(), ids=WITHOUT_LOG_PROBABILITIES)
def test_a_server_without_log_probabilities_writes_the_word(fault: dict[str, Any], stub_server, remote) -> None:
    said = {"One.": "**Yes**, it names the builder.", "Two.": "No", "Three.": "Perhaps."}
    server = stub_server(lambda text: said[text.splitlines()[-1]])
    server.fault = lambda text, number: fault if "logprobs" in server.requests[-1][1] else {}
    prompt = dataclasses.replace(ASKED, documents=tuple(said))
    with remote(server.url) as model:
        judged = JudgeEachReply(tuple(judge(served := ServedModel(model), prompt, JudgeEachRequest)))
        asked = len(server.requests)
        judge(served, dataclasses.replace(prompt, documents=("Two.",)))
    assert [(one.yes, one.no, one.written) for one in judged.each] == [(1, 0, True), (0, 1, True), (0, 0, True)]
    assert len(server.requests) == asked  # read from the file of replies
    log = StepLog()
    log.add(JudgeEachRequest(0, prompt), judged, 0.0)
    assert log.steps[0].written
    assert (log.tokens["labels_written"], log.tokens["replies_unread"]) == (3, 1)
    log.add(JudgeRequest(0, prompt), judged.each[0], 0.0)
    counts = [sum(len(text.split()) for text in said.values()), len(said["One."].split())]
    assert [step.generated for step in log.steps] == counts
    assert log.tokens["generated"] == sum(counts)


def test_guided_replies_of_known_forms_are_json(stub_server, tmp_path) -> None:
    server = stub_server(lambda text: '{"analysis": "Which?", "queries": ["Who built it?"]}')
    with RemoteModel(Endpoint(server.url, "stub", guided=True), tmp_path / "replies.jsonl") as model:
        served = ServedModel(model)
        free, asked = (write(served, prompt) for prompt in (ASKED, dataclasses.replace(ASKED, form="queries")))
    assert read_queries(asked.text, 2) == ("Who built it?",)
    assert free.text
    forms = [body.get("response_format") for _, body in server.requests]
    assert forms == [None, {"type": "json_schema", "json_schema": {"name": "queries", "schema": SCHEMAS["queries"]}}]


def test_steps_are_done_by_the_models_that_are_named_for_them(stub_server, scripting, tmp_path) -> None:
    """MI-RAG's Table A4, with one file of replies and one count of requests for all models of a server."""
    server = stub_server(say)
    script = scripting(find=lambda query, base: [f"{base} {n}" for n in range(2)])
    steps = MiRag(MiRagSettings(iterations=1, max_new_tokens=8), {"texts": 2, "pairs": 2})
    names = {"rewrite": "small", "reason": "large"}
    with RemoteModel(Endpoint(server.url, "stub"), tmp_path / "replies.jsonl") as model:
        served = ServedModel(model, step_models=names)
        tools = Tools({"reader": served, "answerer": served}, script.search, script.embed)
        (trace,) = TrajectoryPipeline("mi_rag", steps, tools).run([Question("q", "i.png", "Who built it?")], [IMAGE])
        written = [step.operator for step in trace.steps if step.generated]
        assert model.summary().startswith(f"stub: {len(written)} replies, 0 more")
    asked = [names.get(operator, "stub") for operator in written]
    assert [body["model"] for _, body in server.requests] == asked
    assert set(asked) == {"small", "large", "stub"}


@pytest.mark.parametrize("retries", [False, True])
def test_a_config_says_whether_unreadable_replies_are_asked_for_again(retries: bool, remote) -> None:
    settings: Any = find_recipe("pmsr").settings(retry_unread=retries)
    with remote("http://localhost:9/v1") as model:
        parts: Any = PipelineParts(MagicMock(), texts=MagicMock(), remote=model, use=ModelUse(None, is_served=True))
        assert build_pipeline("pmsr", settings, parts).tools.retries is retries  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def local(checkpoints: SimpleNamespace) -> LocalModel:
    return LocalModel(PrefixEngine(load(checkpoints.base), 4096), batch_size=2)


def test_a_local_model_reads_a_prompt_whole_or_its_leading_documents(local: LocalModel) -> None:
    long = Prompt(ASKED.template, ASKED.texts, tuple("a word " * 40 for _ in range(400)))
    whole, cut = local.write([(IMAGE, ASKED), (IMAGE, long)], max_tokens=4)
    assert whole.shown == 2
    assert 0 < cut.shown < 400
    (alone,) = local.write([(IMAGE, ASKED)], max_tokens=4)  # the image is kept from before
    assert (alone.text, alone.read, alone.tokens) == (whole.text, whole.read, whole.tokens)
    assert alone.score == pytest.approx(whole.score, abs=1e-5)


def test_a_local_judgement_is_a_probability_of_the_full_softmax(local: LocalModel) -> None:
    (judged,) = local.judge([(IMAGE, ASKED)], "Yes", "No")
    assert 0 < judged.yes < 1
    assert 0 < judged.no < 1
    assert judged.yes + judged.no < 1
    with pytest.raises(UserError, match="can't tell"):
        local.judge([(IMAGE, ASKED)], "Yes", "Yes")


@pytest.mark.parametrize(
    ("name", "setting", "counts"),
    [("stub", 0, True), ("adapter", 0, True), ("stub", 4096, False)],
    ids=["of the server", "of an adapter's base", "a key and a rule"],
)
def test_documents_are_fitted_to_the_context_before_they_are_sent(
    name, setting, counts, stub_server, scripting, tmp_path
):
    """MI-RAG's 20 texts and 10 pairs of 200 words each: two texts for a pair are read, and nothing is refused."""
    server = stub_server(say, context=4096, counts=counts)
    server.says_context = not setting
    long = " word" * 199
    script = scripting(find=lambda query, base: [f"{base[:-1]}{n}{long}" for n in range(20 if base == "texts" else 10)])
    steps = MiRag(MiRagSettings(iterations=0, max_new_tokens=8), {"texts": 20, "pairs": 10})
    with RemoteModel(Endpoint(server.url, name, context=setting), tmp_path / "replies.jsonl") as model:
        served = ServedModel(model)
        tools = Tools({"reader": served, "answerer": served}, script.search, script.embed)
        (trace,) = TrajectoryPipeline("mi_rag", steps, tools).run([Question("q", "i.png", "Who built it?")], [IMAGE])
    assert server.refused == 0
    _, text = (body["messages"][0]["content"][1]["text"] for _, body in server.requests if body["max_tokens"] == 256)
    shown = re.findall(r"^(text|pair)(\d+) word", text, re.MULTILINE)
    texts, pairs = ([int(number) for kind, number in shown if kind == name] for name in ("text", "pair"))
    assert (texts, pairs) == ([*range(len(texts))], [*range(len(pairs))])
    assert abs(len(texts) - 2 * len(pairs)) <= 1
    assert trace.tokens["documents_left_out"] == 30 - len(texts) - len(pairs)
    if counts:  # as many as fit: each has 401 words with its title
        assert len(shown) == (4096 - 256 - 100 - 40) // 400
    (sentence,) = reply_sentences({"replies": {"mi_rag": replies({"q": trace})}})
    assert f"{trace.tokens['documents_left_out']} documents, the last ones of each" in sentence

import re
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.proofreading import write_page
from reflectune.data_builders.mmkb.labels import Labels
from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.mmkb.run import ProbeArticles
from reflectune.data_builders.probing.labels import RetLabel, SrtLabel
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer

EVIL = "</p><script>alert(1)</script> & \"' {{ 7 * 7 }}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    return tmp_path


def page(root: Path, text: str) -> str:
    """Return the page of a question with a relevant, an irrelevant and an unlabelled document, all with this text."""
    passages = [Passage(text, 0, number, text, text, text, text) for number in range(3)]
    replies = [ProbedAnswer(text, 1.0, -1.0), ProbedAnswer("", 0.0, None), None]
    documents = tuple(
        DocumentProbe(passage, 0.875, number, answers, -2.0 if answers else None, cut=number == 2)
        for number, (passage, answers) in enumerate(zip(passages, replies, strict=True), start=1)
    )
    probe = Probe(text, ProbedAnswer(text, 0.0, -1.0), documents, gold=text, gold_log_prob=-9.0)
    labels = Labels(
        ret=[RetLabel(text, True, 0.0)],
        srt=[SrtLabel(text, documents[0], True, 1.0), SrtLabel(text, documents[1], False, -1.0)],
        mct=[MctLabel(text, tuple(passages[:2]), (1,), text, 1)],
    )
    questions = {text: Question(text, "a.png", text, (text,), split="train")}
    write_page(root / "page.html", [probe], ProbeArticles(labels, questions), root, text)
    return (root / "page.html").read_text(encoding="utf-8")


def test_every_answer_is_shown_with_its_document(root: Path) -> None:
    text = page(root, "oak")
    assert re.findall(r'<section class="label (\w+)"', text) == ["none", "relevant", "irrelevant", "none"]
    assert "[Ret]</span> <b>oak</b> · alone · 0 right · log p(accepted) -9.0" in text
    place = "oak › oak · oak#0"
    assert f"<b>oak</b> · 1 right · log p(accepted) -2.0 · 1. S_ret 0.88 · {place}.0" in text
    assert f"<b>nothing</b> · 0 right, broken · log p(accepted) -2.0 · 2. S_ret 0.88 · cut · {place}.1" in text
    assert f"no label</span> <b>nothing</b> · 3. S_ret 0.88 · {place}.2" in text
    assert "MCT</span> <b>1. oak</b> · of oak#0.0, oak#0.1" in text
    assert text.count('<span class="lead">oak</span> <mark>oak</mark>') == 3
    assert "1 of 1 shown." in text


def test_no_text_of_questions_documents_or_replies_becomes_markup(root: Path) -> None:
    evil, plain = (page(root, text) for text in (EVIL, "oak"))
    assert re.findall(r"<[a-z]+", evil) == re.findall(r"<[a-z]+", plain)
    assert "default-src 'none'" in evil

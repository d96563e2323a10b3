"""Naive RAG over texts: what is found by the question's words is read, and the trace says whose it is."""

from reflectune.core.types import Passage
from reflectune.formats.hits import Hit, PassageHit
from reflectune.inference.pipelines import plain_reader
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.running.config import EvaluateConfig


def hit(entry: str, section: int, score: float, rank: int) -> PassageHit:
    return PassageHit(Passage(entry, section, 0, f"Title {entry}", "", "", "Text."), score, rank, "texts")


FOUND = [hit("b", 1, 0.9, 1), hit("a", 0, 0.8, 2), hit("b", 0, 0.7, 3)]


class Texts:
    def __init__(self) -> None:
        self.asked: list[tuple[list[str], int]] = []

    def search(self, queries, top):
        self.asked.append((list(queries), top))
        return [FOUND[:top] for _ in queries]


def test_the_passages_that_the_question_finds_are_read_in_their_order(make, scripted, knowledge, monkeypatch) -> None:
    reader, texts = scripted.reader(answers={"plain": ("oak", 0.5)}), Texts()
    questions = [make.question(0, text="Where does it live?"), make.question(1, text="What is it?")]
    monkeypatch.setattr(plain_reader, "Reader", lambda engine, max_new_tokens: reader)
    parts = PipelineParts(knowledge, engine=object(), texts=texts)
    traces = build_pipeline("text_rag", EvaluateConfig(passages=3), parts).run(questions, scripted.images(2))
    assert texts.asked == [(["Where does it live?", "What is it?"], 3)]
    assert reader.contexts == [["b#1.0", "a#0.0", "b#0.0"]] * 2
    assert [trace.answer for trace in traces] == ["oak", "oak"]
    assert [p.s_ret for p in traces[0].passages] == [0.9, 0.8, 0.9]
    assert traces[0].retrieved
    assert traces[0].hits == (  # an entry by its best passage
        Hit("b", 0.9, 1, "question", "texts", {"text": 0.9}),
        Hit("a", 0.8, 2, "question", "texts", {"text": 0.8}),
    )

from reflectune.core.types import Passage
from reflectune.retrieval.rerankers.words import WordReranker


def passage(entry_id: str, text: str) -> Passage:
    return Passage(entry_id, 0, 0, "", "", "", text)


def best_by_words(question: str, passages: list[Passage], count: int) -> list[Passage]:
    return [scored.passage for scored in WordReranker().rank([question], [passages], count)[0]]


def test_bm25_prefers_rare_words_and_keeps_the_order_of_ties() -> None:
    passages = [
        passage("a", "the tower the tower the tower"),
        passage("b", "the tower has a granite roof"),
        passage("c", "the tower has a slate floor"),
        passage("d", "the tower has a thatch floor"),
    ]
    order = [p.entry_id for p in best_by_words("Is the roof granite?", passages, 4)]
    assert order[0] == "b"
    assert order.index("c") < order.index("d")
    assert [p.entry_id for p in best_by_words("zzz", passages, 2)] == ["a", "b"]
    assert best_by_words("anything", [], 3) == []

import pytest

from reflectune.core.types import Passage
from reflectune.retrieval.rerankers.words import best_by_words


def passage(entry_id: str, text: str) -> Passage:
    return Passage(entry_id, 0, 0, "", "", "", text)


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


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("\u6771\u4eac\u306e\u4eba\u53e3\u306f", "\u6771\u4eac\u90fd\u306e\u4eba\u53e3"),  # Tokyo's population
        ("\uc11c\uc6b8\uc758 \uc778\uad6c", "\uc11c\uc6b8\uc740 \ud06c\ub2e4"),  # Seoul's population: Seoul is large
        (
            "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e\u0e2d\u0e22\u0e39\u0e48",
            "\u0e43\u0e19\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e",
        ),  # Bangkok
        ("Where is Zurich?", "Zu\u0308rich"),
    ],
)
def test_bm25_matches_words_of_any_script_and_form(question: str, text: str) -> None:
    # Kyoto's old town; Busan; rice; Basel
    others = [
        "\u4eac\u90fd\u306e\u65e7\u5e02\u8857",
        "\ubd80\uc0b0\uc740 \uba40\ub2e4",
        "\u0e02\u0e49\u0e32\u0e27",
        "Basel",
    ]
    passages = [passage(str(place), words) for place, words in enumerate([*others, text])]
    assert best_by_words(question, passages, 1) == [passages[-1]]

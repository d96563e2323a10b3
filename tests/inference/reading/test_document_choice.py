from hypothesis import given
from hypothesis import strategies as st

from reflectune.inference.reading.document_choice import (
    AUTO_WITHOUT_SRT,
    apply_mct,
    by_relevance,
    keep_entry,
    keep_first,
    keep_relevant,
)

scores = st.lists(st.none() | st.floats(0, 1), max_size=8)


def test_the_highest_score_is_first_and_equal_ones_keep_their_order() -> None:
    assert by_relevance([0.5, 0.9, None, 0.5, 0.1]) == [1, 0, 3, 4]
    assert by_relevance([]) == []


@given(scores, st.integers(1, 9))
def test_a_number_keeps_as_many_as_there_are(values: list[float | None], k: int) -> None:
    kept, below = keep_relevant(values, k, threshold=0.5)
    assert kept == by_relevance(values)[:k]
    assert not below


@given(scores, st.floats(0, 1))
def test_auto_keeps_what_reaches_the_threshold_and_at_least_one(values: list[float | None], threshold: float) -> None:
    kept, below = keep_relevant(values, 0, threshold)
    reaching = [place for place, value in enumerate(values) if value is not None and value >= threshold]
    judged = [value for value in values if value is not None]
    assert below is (bool(judged) and not reaching)
    if reaching:
        assert sorted(kept) == reaching
    elif judged:
        assert [values[place] for place in kept] == [max(judged)]
    else:
        assert kept == []


def test_without_srt_the_retrievers_order_stays() -> None:
    assert keep_first(10, 3) == [0, 1, 2]
    assert keep_first(2, 3) == [0, 1]
    assert keep_first(10, 0) == list(range(AUTO_WITHOUT_SRT))


@given(st.text(max_size=30), st.integers(2, 5), st.sampled_from(["filter", "merge", "rerank"]))
def test_any_reply_leaves_a_usable_order(reply: str, shown: int, how) -> None:
    kept = [9, 8, 7, 6, 5]
    places, mct = apply_mct(kept, reply, shown, how)
    assert len(set(places)) == len(places)
    assert set(places) <= set(kept)
    assert mct.merged is (places == [])
    assert not mct.problem or places == kept


def test_the_entry_with_the_highest_sum_keeps_its_documents_in_order() -> None:
    entries, scores = ["a", "b", "b", "a", "c"], [0.9, 0.5, 0.6, 0.1, 1.05]
    assert keep_entry([4, 2, 1, 0], entries, scores) == [2, 1]
    assert keep_entry([4, 2, 0], entries, scores) == [4]
    assert keep_entry([], entries, scores) == []

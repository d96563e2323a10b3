import pytest

from reflectune.models.rendering.thoughts import thought_tokens, without_thoughts


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param("<think>a</think> oak\n", "oak", id="first"),
        pytest.param("a</think>oak", "oak", id="opened by the prompt"),
        pytest.param("<THINK>a<think>b</think>oak", "oak", id="in any case"),
        pytest.param("<think>a</think>oak<think>b", "oak", id="twice"),
        pytest.param("<think>a", "", id="cut off"),
        pytest.param(" oak ```x``` \n", " oak ```x``` \n", id="none"),
    ],
)
def test_thoughts_are_cut_off_and_nothing_else(reply: str, expected: str) -> None:
    assert without_thoughts(reply) == expected


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        pytest.param(["oak"], 0, id="none"),
        pytest.param(["<think>", "a", "</think>", " oak", "</s>"], 3, id="tags of one token"),
        pytest.param(["<th", "ink>a", "</th", "ink", ">", "oak", "</s>"], 5, id="tags of several tokens"),
        pytest.param(["a", "</think>", "oak"], 2, id="opened by the prompt"),
        pytest.param(["<think>", "a", "</THINK>", "b", "</think>", "oak"], 5, id="twice"),
        pytest.param(["<think>", "a"], 2, id="cut off"),
    ],
)
def test_thoughts_end_at_the_token_that_closes_them(pieces: list[str], count: int) -> None:
    assert thought_tokens(range(len(pieces)), lambda ids: "".join(pieces[i] for i in ids)) == count

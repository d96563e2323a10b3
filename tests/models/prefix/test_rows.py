"""Rows are chains through levels: taking, compacting and extending them copies nothing that is shared."""

import torch

from reflectune.models.prefix.rows import Level, Rows, as_cache, cached, kept_bytes


def level(rows: int, tokens: int, real: list[int] | None = None) -> Level:
    """Keys and values that say which row and token they are."""
    values = torch.arange(rows)[:, None, None, None] * 100.0 + torch.arange(tokens)[None, None, :, None]
    counts = torch.tensor(real or [tokens] * rows)
    return Level([(values.clone(), values + 0.5) for _ in range(2)], torch.arange(tokens) < counts[:, None])


def chain() -> Rows:
    """Two questions of 3 and 2 tokens; branches of 2, 1 and 2 tokens, the first two of them the second one's."""
    first, second = level(2, 3, [3, 2]), level(3, 2, [2, 1, 2])
    where = (torch.tensor([1, 1, 0]), torch.arange(3))
    return Rows((first, second), where, torch.tensor([4, 3, 5]), torch.arange(12.0).view(3, 4))


def keys_of(rows: Rows, depth: int) -> list[float]:
    """The first key of the row that each row goes through."""
    return [rows.levels[depth].cache[1][0][place, 0, 0, 0].item() for place in rows.where[depth].tolist()]


def test_taking_repeats_and_reorders_without_copying():
    taken = chain().take(torch.tensor([2, 0, 2]))
    assert taken.next_position.tolist() == [5, 4, 5]
    assert keys_of(taken, 0) == [0, 100, 0]
    assert keys_of(taken, 1) == [200, 0, 200]
    assert kept_bytes(taken.levels) == kept_bytes(chain().levels)


def test_compacting_keeps_what_rows_go_through():
    few = chain().take(torch.tensor([1]))
    small = few.compact()
    assert [len(each.real) for each in small.levels] == [1, 1]
    for depth in range(2):
        assert keys_of(small, depth) == keys_of(few, depth)
    assert small.lengths().tolist() == few.lengths().tolist() == [3]
    assert kept_bytes(small.levels) < kept_bytes(few.levels)


def test_lengths_leave_padding_out():
    assert chain().lengths().tolist() == [4, 3, 5]


def test_a_level_hangs_under_each_row():
    deeper = chain().under(level(3, 1), torch.tensor([5, 4, 6]), torch.zeros(3, 4))
    assert [len(row) for row in deeper.where] == [3, 3, 3]
    assert deeper.lengths().tolist() == [5, 4, 6]
    assert len(deeper.shared()) == 3


def test_a_cache_begins_with_what_it_is_given():
    pairs = level(2, 3).cache
    for (keys, values), (k, v) in zip(cached(as_cache(pairs)), pairs, strict=True):
        assert keys is k
        assert values is v

import pytest
import torch

from reflectune.models.rows import Rows, join, stack, tail


def rows(count: int, tokens: int, start: float = 0.0) -> Rows:
    """Rows whose keys and values say which row and token they are."""
    values = start + torch.arange(count)[:, None, None, None] * 100.0 + torch.arange(tokens)[None, None, :, None]
    cache = [(values.clone(), values + 0.5) for _ in range(2)]
    return Rows(cache, torch.ones(count, tokens, dtype=torch.bool), torch.arange(count), torch.rand(count, 4))


def test_taking_repeats_and_reorders():
    made = rows(3, 2)
    taken = made.take(torch.tensor([2, 0, 2]))
    assert taken.onward.tolist() == [2, 0, 2]
    assert taken.cache[1][0][:, 0, 0, 0].tolist() == [200, 0, 200]


def test_joining_a_tail_to_its_beginning_gives_the_whole():
    whole = rows(2, 5)
    beginning = Rows(
        [(k[:, :, :3], v[:, :, :3]) for k, v in whole.cache], whole.real[:, :3], whole.onward, whole.hidden
    )
    again = join(beginning, tail(whole, 3))
    assert torch.equal(again.real, whole.real)
    for (k, v), (k0, v0) in zip(again.cache, whole.cache, strict=True):
        assert torch.equal(k, k0)
        assert torch.equal(v, v0)


@pytest.mark.parametrize("lengths", [(2, 4), (4, 2), (3, 3)])
def test_stacking_pads_with_tokens_that_are_not_real(lengths):
    parts = [rows(1, lengths[0]), rows(2, lengths[1], start=50)]
    made = stack(parts)
    assert made.real.sum(1).tolist() == [lengths[0], lengths[1], lengths[1]]
    assert made.real.shape == made.cache[0][0].shape[:1] + made.cache[0][0].shape[2:3] == (3, max(lengths))
    assert made.cache[0][0][1, 0, 0, 0] == 50

"""Reading in one pass, in several, or token by token comes to the same."""

import pytest
import torch

from reflectune.models.prefix.forward import Forward


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def loaded(request, make):
    return make.loaded(request.param)


@torch.no_grad()
def test_two_passes_are_one(loaded, make):
    forward = Forward(loaded.model)
    prefix = loaded.renderer.prefix("Who drew this tower?", make.image())
    whole, _ = forward.append(forward.prefill([prefix]), [[7, 8, 9, 10]])
    half = forward.append(forward.prefill([prefix]), [[7, 8]])[1]
    rest, rows = forward.append(half, [[9, 10]])
    torch.testing.assert_close(rest[0], whole[0, 2:], rtol=1e-4, atol=1e-5)
    assert len(rows.levels) == 3
    assert rows.lengths().item() == len(prefix.ids) + 4


@torch.no_grad()
def test_token_by_token_is_one_pass(loaded, make):
    forward = Forward(loaded.model)
    prefixes = [loaded.renderer.prefix(text, make.image(n)) for n, text in enumerate(["Who?", "What is it made of?"])]
    rows = forward.prefill(prefixes)
    ids = [[7, 8, 9], [10, 11, 12]]
    whole, _ = forward.append(rows, ids)
    written = rows.nothing_written()
    for step in range(3):
        tokens = torch.tensor([row_ids[step] for row_ids in ids])
        hidden, written = forward.decode_step(tokens, rows.next_position + step, rows.shared(), written)
        torch.testing.assert_close(hidden, whole[:, step], rtol=1e-4, atol=1e-5)
    assert written.cache[0][0].shape[2] == written.real.shape[1] == 3


@torch.no_grad()
def test_padding_is_not_read(loaded, make):
    forward = Forward(loaded.model)
    prefixes = [loaded.renderer.prefix(text, make.image(n)) for n, text in enumerate(["Who?", "What is it made of?"])]
    together = forward.prefill(prefixes)
    for n, prefix in enumerate(prefixes):
        alone = forward.prefill([prefix])
        torch.testing.assert_close(together.hidden[n], alone.hidden[0], rtol=1e-4, atol=1e-5)
        assert together.next_position[n] == alone.next_position[0]
        assert together.lengths()[n] == len(prefix.ids)

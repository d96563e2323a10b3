"""A device's name is either a device or an error that says so."""

import pytest
import torch

from reflectune.core.devices import find_device
from reflectune.core.errors import UserError


def test_auto_is_the_cpu_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert find_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"device `{name}` cannot be used: .*; use cpu, cuda"):
        find_device(name)


@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [
        ("auto", None, "cuda"),
        ("auto", "0", "cuda"),
        *((n, "3", "cuda:3") for n in ("auto", "cuda")),
        ("auto", "4", "cuda"),
    ],
)
def test_auto_is_each_processs_own_accelerator(
    monkeypatch: pytest.MonkeyPatch, name: str, rank: str | None, expected: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert find_device(name) == torch.device(expected)

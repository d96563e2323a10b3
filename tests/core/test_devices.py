"""A device's name is either a device or an error that says so."""

import pytest
import torch

from reflectune.core.devices import find_device, precision_warning
from reflectune.core.errors import UserError
from reflectune.inference.config import ModelSettings
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.sft import SftConfig


def test_auto_is_the_cpu_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert find_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "dtype", "device", "is_slow"),
    [
        ({"avx2": True, "avx512_bf16": False}, "bfloat16", "cpu", True),
        ({"avx2": True, "avx512_bf16": False}, "float32", "cpu", False),
        ({"avx2": True, "avx512_bf16": False}, "bfloat16", "cuda", False),
        *(({name: True}, "bfloat16", "cpu", False) for name in ("avx512_bf16", "amx_bf16", "bf16")),
    ],
)
def test_a_cpu_without_instructions_for_bfloat16_is_slow_in_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: str, device: str, is_slow: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    sentence = precision_warning(dtype, torch.device(device))
    assert ("float32 is several times as fast" in sentence) == is_slow == bool(sentence)


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


@pytest.mark.parametrize(
    ("device", "available", "has_bfloat16", "expected"),
    [
        ("auto", True, True, "bfloat16"),
        ("cuda:1", True, True, "bfloat16"),
        ("cuda", True, False, "float32"),
        ("cpu", True, True, "float32"),
        ("auto", False, True, "float32"),
    ],
)
def test_auto_is_bfloat16_on_a_gpu_that_computes_in_it(device, available, has_bfloat16, expected, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)

    assert ModelSettings(device=device).precision == expected
    assert ModelSettings(device=device).hashed()["dtype"] == expected
    assert ModelSettings(device=device, dtype="float16").precision == "float16"
    assert SftConfig(device=device.partition(":")[0]).precision == expected
    assert SftConfig(device=device.partition(":")[0]).hashed()["dtype"] == expected
    assert EstimateConfig(device=device.partition(":")[0]).precision == "bfloat16"  # a GPU's, on any machine


def test_a_launch_on_the_cpu_computes_there_in_float32(monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert (find_device("auto").type, SftConfig().precision) == ("cuda", "bfloat16")

    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert (find_device("auto").type, SftConfig().precision) == ("cpu", "float32")

from types import SimpleNamespace

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.data_builders.probing.config import GenerationSettings, WorkerSettings
from reflectune.data_builders.probing.probe import Prober
from reflectune.data_builders.probing.worker import ProbeWorker
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import Loaded

ADVICE = "set `dtype: bfloat16`, or lower `batch_questions`"


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), UserError, f"allocate 2 GiB; {ADVICE}"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), UserError, f"can't allocate memory; {ADVICE}"),
        (RuntimeError("shape mismatch"), RuntimeError, "^shape mismatch$"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_does_not_fit_into_memory_is_the_users_to_change(
    llava: Loaded, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception], message: str
) -> None:
    monkeypatch.setattr(Prober, "probe", lambda *_: (_ for _ in ()).throw(error))
    unused, metric = SimpleNamespace(), find_metric("infoseek")
    worker = ProbeWorker(unused, unused, llava, metric, GenerationSettings(), WorkerSettings())
    with pytest.raises(expected, match=message):
        worker.probe([])

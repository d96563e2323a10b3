"""Simulated GPUs give the CPU's results: packed rows with CUDA graphs, padded batches, and a model on two GPUs."""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.prefix.padded import PaddedReader
from tests.models.prefix.results import asked, assert_same, said

pytestmark = pytest.mark.usefixtures("printed")


@pytest.fixture(scope="module", params=["llava", "qwen2_vl", pytest.param("qwen3_5", marks=pytest.mark.slow)])
def loaded(request: pytest.FixtureRequest, make: SimpleNamespace) -> Loaded:
    return make.loaded(request.param)


@pytest.fixture(scope="module")
def questions(loaded: Loaded, make: SimpleNamespace) -> tuple[Any, ...]:
    return asked(loaded, make)


@pytest.fixture(scope="module")
def expected(loaded: Loaded, questions: tuple[Any, ...]) -> tuple[Any, ...]:
    return said(PrefixEngine(loaded), *questions)


def on_gpu(loaded: Loaded, **options: Any) -> PrefixEngine:
    model: Any = copy.deepcopy(loaded.model)
    return PrefixEngine(dataclasses.replace(loaded, model=model.to("cuda")), **options)


def test_packed_rows_and_graphs_give_the_cpus_results(
    loaded: Loaded, questions, expected, pretended: ModuleType, printed: list[str]
) -> None:
    with pretended.gpus() as machine:
        engine = on_gpu(loaded)
        assert isinstance(engine.reader, PackedReader)
        assert_same(said(engine, *questions), expected)
        engine.image_prefixes.keep(2)
        assert_same(said(engine, *questions), expected)  # from the graphs of the first time
    assert len(machine.graphs) == 2  # three rows, and two
    assert all(graph.replays > 2 for graph in machine.graphs)
    assert printed == []


@pytest.mark.filterwarnings("ignore:.*will be slower")
def test_padded_batches_give_the_cpus_results(loaded: Loaded, questions, expected, pretended: ModuleType) -> None:
    with pretended.gpus():
        engine = on_gpu(loaded, compiling=False)
        assert isinstance(engine.reader, PaddedReader)
        assert_same(said(engine, *questions), expected)


@pytest.mark.filterwarnings("ignore:.*will be slower")
def test_a_model_on_two_gpus_gives_the_cpus_results(
    loaded: Loaded, questions, expected, pretended: ModuleType, printed: list[str]
) -> None:
    with pretended.gpus(2), torch.no_grad():
        model: Any = copy.deepcopy(loaded.model)
        model = dispatch_model(model, pretended.halves(model, "cuda:0", "cuda:1"), skip_keys=["past_key_values"])
        engine = PrefixEngine(dataclasses.replace(loaded, model=model))
        assert isinstance(engine.reader, PaddedReader)
        assert_same(said(engine, *questions), expected)
    assert printed == ["questions are padded instead of packed, which is slower: the model is on several devices"]


def test_layers_dont_wait_for_the_gpu(
    loaded: Loaded, questions, expected, pretended: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do decoding steps, whose graphs couldn't be captured."""
    compute, waits = PackedReader.compute, []
    with pretended.gpus() as machine:

        def watch(*arguments: Any) -> None:
            before = len(machine.waits)
            compute(*arguments)
            waits.extend(machine.waits[before:])

        monkeypatch.setattr(PackedReader, "compute", watch)
        assert_same(said(on_gpu(loaded), *questions), expected)
        assert machine.waits  # for results
    assert waits == []


@pytest.mark.parametrize("problem", ["operation not permitted", "its results differ from eager execution"])
@pytest.mark.parametrize("loaded", ["qwen2_vl"], indirect=True)
def test_a_step_that_cannot_be_captured_runs_kernel_by_kernel(
    loaded: Loaded, questions, expected, pretended: ModuleType, monkeypatch, printed: list[str], problem: str
) -> None:
    """A refused capture leaves its stream current; a graph that was captured on another device is empty."""

    @contextmanager
    def refuse(machine: Any, *_: Any, **__: Any) -> Iterator[None]:
        yield
        machine.streams[-1] = pretended.Stream()
        raise RuntimeError(f"{problem}\nsee above")

    if problem.startswith("operation"):
        monkeypatch.setattr(pretended.Machine, "capture", refuse)
    monkeypatch.setattr(pretended.Graph, "replay", lambda graph: None)
    with pretended.gpus() as machine:
        (main,) = machine.streams
        assert_same(said(on_gpu(loaded), *questions), expected)
        assert machine.streams == [main]
    assert set(printed) == {f"decoding without CUDA graphs, which is slower: {problem}"}


def test_a_simulated_graph_refuses_what_waits_and_leaves_the_tensors(pretended: ModuleType) -> None:
    with pretended.gpus() as machine:
        number, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            number.add_(1)
            doubled = number * 2
        assert number.tolist() == [1, 1]
        graph.replay()
        graph.replay()
        assert (number.tolist(), doubled.tolist()) == ([3, 3], [6, 6])
        with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            number.tolist()
        first, before = torch.zeros(1, dtype=torch.long, device="cuda"), len(machine.waits)
        number[first].add_(torch.ones((), device="cuda"))
        assert len(machine.waits) == before
        number.cpu(), number[[0]], number[torch.tensor([0])], number.sum().item(), torch.ones(1).to("cuda")
        assert len(machine.waits) == before + 5
        with pytest.raises(pretended.DeviceMismatch):
            number + torch.ones(2)

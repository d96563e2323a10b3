"""Packed rows: few passes, work that is split where it must be, and decoding in buckets."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from reflectune.models.prefix import engine as engine_module
from reflectune.models.prefix import forward, packed
from reflectune.models.prefix.decoding import DecodeStep, rows_of_bucket
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.packed import PackedReader, packed_for
from tests.models.prefix.results import GATES, asked, assert_same, said

pytestmark = pytest.mark.usefixtures("printed")


@pytest.fixture(scope="module", params=["llava", "qwen2_vl", "qwen3_5"])
def loaded(request, make):
    return make.loaded(request.param)


def engine_of(loaded, budget=4096, compile_after=None) -> PrefixEngine:
    with mock.patch.object(engine_module, "packed_for", lambda *known, **_: PackedReader(*known, compile_after)):
        return PrefixEngine(loaded, budget)


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """Tokens of each pass that computes something."""
    tokens, compute = [], PackedReader.compute

    def spy(self, calls, plan, past):
        tokens.append(len(plan.row.ids))
        return compute(self, calls, plan, past)

    monkeypatch.setattr(PackedReader, "compute", spy)
    return tokens


@pytest.mark.parametrize("gate_first", [False, True])
def test_trees_are_read_in_one_pass_with_the_retrieval_gate(loaded, make, passes, gate_first):
    prefixes, branches = asked(loaded, make)
    tower = getattr(loaded.model.model, "vision_tower", None) or loaded.model.model.visual
    seen: list[int] = []
    hook = tower.register_forward_hook(lambda *_: seen.append(1))
    opened = engine_of(loaded).read(prefixes[::2])
    gates = opened.probabilities(GATES) if gate_first else None
    state = opened.engine.branch(opened, branches[::2])
    relevance = state.probabilities(GATES)
    gates = opened.probabilities(GATES) if gates is None else gates
    hook.remove()
    own, hung = (sum(map(len, part)) for part in ([p.ids for p in prefixes[::2]], [b for bs in branches for b in bs]))
    assert passes == ([own, hung] if gate_first else [own + hung])
    assert opened.engine.tokens_read == own + hung
    assert len(seen) == 1
    expected = PrefixEngine(loaded)
    plain = expected.read(prefixes[::2])
    torch.testing.assert_close(gates, plain.probabilities(GATES), rtol=1e-4, atol=1e-7)
    for actual, wanted in zip(relevance, expected.branch(plain, branches[::2]).probabilities(GATES), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-7)
    assert not any(vars(layer).get("_compiled_call_impl") for layer in loaded.model.model.language_model.layers)


@pytest.mark.parametrize("loaded", ["qwen2_vl"], indirect=True)
@pytest.mark.parametrize("most", [40, 250])
def test_what_is_out_of_memory_is_split_by_questions_and_branches(loaded, make, monkeypatch, printed, most):
    prefixes, branches = asked(loaded, make)
    expected, compute = said(PrefixEngine(loaded), prefixes, branches), PackedReader.compute
    least = max(most, *(len(prefix.ids) for prefix in prefixes))

    def full(self, calls, plan, past):
        if len(plan.row.ids) > least:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(self, calls, plan, past)

    monkeypatch.setattr(PackedReader, "compute", full)
    assert_same(said(engine_of(loaded), prefixes, branches), expected)
    assert all("out of memory" in line for line in printed)
    assert bool(printed) == (most < 250)
    monkeypatch.setattr(PackedReader, "compute", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory")))
    with pytest.raises(torch.OutOfMemoryError):
        engine_of(loaded).read(prefixes[:1]).probabilities(GATES)


@pytest.mark.parametrize("most", [1, 4])
def test_rows_that_are_out_of_memory_are_decoded_by_halves(loaded, make, monkeypatch, printed, most) -> None:
    prefixes, branches = asked(loaded, make)
    expected, load = said(PrefixEngine(loaded), prefixes, branches), DecodeStep.load

    def full(self, sequences, context):
        if len(sequences) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        load(self, sequences, context)

    monkeypatch.setattr(DecodeStep, "load", full)
    assert_same(said(engine_of(loaded), prefixes, branches), expected)
    assert all("half of the rows" in line for line in printed)
    assert bool(printed) == (most < 4)


@pytest.mark.parametrize("loaded", ["qwen2_vl"], indirect=True)
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("HIP out of memory"), MemoryError()], ids=repr
)
def test_padded_batches_that_are_out_of_memory_are_halved_and_stay_so(loaded, make, monkeypatch, printed, error):
    prefixes, branches = asked(loaded, make)
    expected = said(PrefixEngine(loaded), prefixes, branches)
    most, failed = max(len(prefix.ids) for prefix in prefixes), list[int]()

    def full(_, __, given):
        tokens = given["inputs_embeds"].shape[:2].numel()
        if tokens > most:
            failed.append(tokens)
            raise error

    hook = loaded.model.model.language_model.register_forward_pre_hook(full, with_kwargs=True)
    try:
        engine = PrefixEngine(loaded)
        engine.read(prefixes)
        assert engine.tokens_read == sum(len(prefix.ids) for prefix in prefixes)
        count = len(failed)
        assert_same(said(engine, prefixes, branches), expected)
        assert len(failed) == count == 1
        assert {"half as many tokens" in line for line in printed} == {True}
        most = 0
        with pytest.raises(type(error)):
            engine.read(prefixes[:1])
    finally:
        hook.remove()


@pytest.mark.parametrize("loaded", ["qwen2_vl"], indirect=True)
def test_logits_that_are_out_of_memory_are_computed_by_halves(loaded, make, monkeypatch, printed) -> None:
    prefixes, branches = asked(loaded, make)
    expected, compute = said(PrefixEngine(loaded), prefixes, branches), forward.Forward.log_probabilities

    def full(self, hidden, asked=()):
        if len(hidden) > 1 and [*asked] == GATES:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(self, hidden, asked)

    monkeypatch.setattr(forward.Forward, "log_probabilities", full)
    for engine in (engine_of(loaded), PrefixEngine(loaded)):
        assert_same(said(engine, prefixes, branches), expected)
    assert {"logits are out of memory" in line for line in printed} == {True}


def test_less_free_memory_makes_smaller_passes(loaded, make, monkeypatch, passes):
    prefixes, branches = asked(loaded, make)
    engine = engine_of(loaded)
    monkeypatch.setattr(engine.reader.forward, "token_bytes", 100.0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (16_000, 0))
    assert engine.reader.forward.fitting_tokens(4096) == 115
    assert_same(said(engine, prefixes, branches), said(PrefixEngine(loaded), prefixes, branches))
    assert max(passes) <= max(115, *(len(prefix.ids) for prefix in prefixes))


@pytest.mark.parametrize("loaded", ["qwen3_5"], indirect=True)
def test_states_of_linear_attention_make_no_pass_smaller_where_there_is_memory(loaded, make, monkeypatch, passes):
    prefixes, branches = asked(loaded, make)
    tokens = sum(len(prefix.ids) for prefix in prefixes[::2]) + sum(len(b) for own in branches for b in own)
    monkeypatch.setattr(packed, "PASS", 2 * loaded.model.num_parameters() * tokens)
    engine = engine_of(loaded, budget=10**6)
    engine.branch(engine.read(prefixes[::2]), branches[::2])
    assert passes == [tokens]


def raises(*_, **__):
    raise RuntimeError("no C compiler\nin the path")


@pytest.mark.parametrize("loaded", ["qwen2_vl"], indirect=True)
@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (lambda call: raises, "RuntimeError: no C compiler"),
        (
            lambda call: lambda *given, **more: call(*given, **more).flip(-1),
            "their results differ from plain layers",
        ),
    ],
)
def test_a_compiler_that_fails_is_named_and_done_without(loaded, make, monkeypatch, printed, broken, problem):
    prefixes, branches = asked(loaded, make)
    compiled = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, **how: broken(call) if "dynamic" in how else compiled(call, **how)
    )
    engine = engine_of(loaded, compile_after=0)
    assert_same(said(engine, prefixes, branches), said(PrefixEngine(loaded), prefixes, branches))
    assert printed[1:] == [f"layers are not compiled: {problem}"]
    assert engine.reader.compile_after is None


def test_compiled_layers_are_compared_after_a_first_pass_without_memory(loaded, make, monkeypatch, printed):
    prefixes, branches = asked(loaded, make)
    compiled, calls = torch.compile, []

    def broken(call):
        def layer(*given, **more):
            calls.append(call)
            if len(calls) == 1:
                raise torch.OutOfMemoryError("out of memory")
            return call(*given, **more).flip(-1)

        return layer

    monkeypatch.setattr(
        torch, "compile", lambda call, **how: broken(call) if "dynamic" in how else compiled(call, **how)
    )
    engine = engine_of(loaded, compile_after=0)
    assert_same(said(engine, prefixes, branches), said(PrefixEngine(loaded), prefixes, branches))
    assert printed[-1] == "layers are not compiled: their results differ from plain layers"


@pytest.mark.slow
@pytest.mark.parametrize("loaded", ["qwen2_vl"], indirect=True)  # with positions of three dimensions
def test_compiled_layers_are_few_graphs_for_all_lengths(loaded, make, monkeypatch):
    graphs: list[int] = []

    def backend(module, inputs):
        graphs.append(len(inputs))
        return module.forward

    torch.compiler.reset()
    compiled = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda call, **how: compiled(call, **({"backend": backend} if "dynamic" in how else {}), **how),
    )
    prefixes, branches = asked(loaded, make)
    engine, plain = engine_of(loaded, compile_after=0), PrefixEngine(loaded)
    counts = []
    for longer in (20, 1, 9, 14):
        more = [[branch * longer for branch in question_branches] for question_branches in branches]
        for gate_first in (False, True):
            opened, expected = engine.read(prefixes), plain.read(prefixes)
            if gate_first:
                torch.testing.assert_close(opened.probabilities(GATES), expected.probabilities(GATES))
            found, wanted = engine.branch(opened, more), plain.branch(expected, more)
            torch.testing.assert_close(found.probabilities(GATES), wanted.probabilities(GATES), rtol=1e-4, atol=1e-7)
        counts.append(len(graphs))
    assert counts[2] == counts[-1] <= 4  # with and without earlier keys, and where two lengths were equal by chance
    assert engine.reader.compile_after == 0


def test_buckets_share_their_memory_and_rows_end_by_themselves(loaded, make, monkeypatch):
    prefixes, branches = asked(loaded, make)
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", [*range(150)])  # a third of the tokens
    engine, plain = engine_of(loaded), PrefixEngine(loaded)
    rows = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    states = [each.branch(each.read(prefixes), branches) for each in (engine, plain)]
    sizes = []
    for count in (5, 1, 5, 2):
        actual, expected = (
            each.generate(state, rows[:count], max_new_tokens=11)
            for each, state in zip((engine, plain), states, strict=True)
        )
        assert [(a.token_ids, a.finished, a.text) for a in actual] == [
            (e.token_ids, e.finished, e.text) for e in expected
        ]
        assert [a.score for a in actual] == pytest.approx([e.score for e in expected], rel=1e-3)
        sizes.append(engine.reader.decoder.memory.numel())
    assert len(engine.reader.decoder.steps) == 3
    assert len(set(sizes)) == 1
    assert engine.generate(states[0], rows[:1], max_new_tokens=0)[0].token_ids == []
    assert [rows_of_bucket(count) for count in (1, 2, 3, 5, 8, 9, 32, 33)] == [1, 2, 4, 8, 8, 16, 32, 40]


def test_keys_of_another_precision_get_memory_of_their_own(loaded, make):
    prefixes, branches = asked(loaded, make)
    engine = engine_of(loaded)
    expected = engine.generate(engine.branch(engine.read(prefixes), branches), [(0, 0)], max_new_tokens=3)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = engine.generate(engine.branch(engine.read(prefixes), branches), [(0, 0)], max_new_tokens=3)
    assert engine.reader.decoder.memory.dtype == torch.bfloat16
    engine.reader.free()
    assert (engine.reader.decoder.memory.numel(), len(engine.reader.decoder.steps)) == (0, 0)
    assert rounded[0].score == pytest.approx(expected[0].score, rel=0.1)
    assert engine.generate(engine.branch(engine.read(prefixes), branches), [(0, 0)], max_new_tokens=3) == expected


@pytest.mark.parametrize(
    ("device", "gpus", "compiling", "problem", "line"),
    [
        ("cpu", 0, True, "", ""),
        ("cuda", 1, False, "", ""),
        ("cuda", 1, True, "", None),
        ("cuda", 2, True, "", "several devices"),
        ("cuda", 1, True, "", "sharded"),
        ("cuda", 1, True, "TritonMissing: no Triton", "TritonMissing: no Triton"),
    ],
)
def test_the_device_chooses(loaded, monkeypatch, printed, device, gpus, compiling, problem, line):
    monkeypatch.setattr(packed, "gpus_of", lambda model: [torch.device("cuda", n) for n in range(gpus)])
    monkeypatch.setattr(packed, "model_flex_problem", lambda *_: problem)
    if line == "sharded":
        monkeypatch.setattr(loaded.model.lm_head.weight, "ds_id", 1, raising=False)
    engine = PrefixEngine(loaded)
    forward = SimpleNamespace(device=torch.device(device), model=loaded.model, kept_budgets=4)
    reader = packed_for(forward, 100, engine.image_prefixes, torch.tensor([2]), compiling=compiling)
    assert isinstance(reader, PackedReader) == (line is None)
    assert len(printed) == bool(line)
    with contextlib.suppress(IndexError):
        assert (line or "") in printed[0]

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.rows import to_row
from reflectune.data_builders.probing import store
from reflectune.data_builders.probing.records import Probe, ProbedAnswer
from reflectune.data_builders.probing.store import MANIFEST, answered, begin, read_settings, seal, stream_probes

SETTINGS = {"model": "m", "metric": "infoseek", "documents": 10}


def probe(number: int, text: str = "answer") -> Probe:
    return Probe(f"q{number:03d}", ProbedAnswer(text, 1.0, -0.5))


def fill(folder: Path, numbers: range | list[int], process: int = 0) -> None:
    logs = begin(folder, SETTINGS)
    done = answered(folder)
    with logs.open(process) as log:
        for made in map(probe, numbers):
            if made.question_id not in done:
                log.append(made.question_id, to_row(made))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(9)), st.integers(1, 3), st.lists(st.integers(0, 40), max_size=4))
def test_order_processes_and_interruptions_leave_the_same_files(tmp_path_factory, order, processes, cuts) -> None:
    straight, other = tmp_path_factory.mktemp("straight"), tmp_path_factory.mktemp("other")
    fill(straight, range(9))
    seal(straight, shard_size=4)
    for process in range(processes):
        mine = order[process::processes]
        for cut in cuts:
            fill(other, mine[: len(mine) // 2], process)
            path = other / f"log-{process}.jsonl"
            path.write_bytes(path.read_bytes()[: -cut or None])  # killed in the middle of a row
        fill(other, mine, process)
    assert seal(other, shard_size=4) == 9
    assert content(other) == content(straight)
    assert [stored.question_id for stored in stream_probes(other)] == [f"q{number:03d}" for number in range(9)]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_question_that_could_not_be_asked_is_asked_again(tmp_path: Path, is_sealed: bool) -> None:
    with begin(tmp_path, SETTINGS).open(1) as log:
        log.append("q001", to_row(Probe("q001", problem="no image")))
        log.append("q002", to_row(probe(2)))
    if is_sealed:
        seal(tmp_path)
    assert answered(tmp_path) == {"q002"}
    fill(tmp_path, [1, 2])
    assert seal(tmp_path) == 2
    assert list(stream_probes(tmp_path)) == [probe(1), probe(2)]


def test_a_second_seal_changes_nothing_and_more_probes_join(tmp_path: Path) -> None:
    fill(tmp_path, [1, 5])
    seal(tmp_path, {"model": "name"})
    before = content(tmp_path)
    seal(tmp_path)
    assert content(tmp_path) == before
    fill(tmp_path, [3])
    assert seal(tmp_path) == 3
    assert [stored.question_id for stored in stream_probes(tmp_path)] == ["q001", "q003", "q005"]
    assert len(list(tmp_path.glob("part-*"))) == 1


def test_a_crash_while_sealing_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, range(4))
    with monkeypatch.context() as patched:
        patched.setattr(store, "write_json", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            seal(tmp_path, shard_size=2)
    assert not (tmp_path / MANIFEST).exists()
    assert seal(tmp_path, shard_size=2) == 4
    assert [stored.question_id for stored in stream_probes(tmp_path)] == ["q000", "q001", "q002", "q003"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_log_that_outlived_its_sealing_counts_once(tmp_path: Path) -> None:
    fill(tmp_path, [1, 2])
    log = (tmp_path / "log-0.jsonl").read_bytes()
    seal(tmp_path)
    (tmp_path / "log-0.jsonl").write_bytes(log)  # killed before it was deleted
    assert seal(tmp_path) == 2
    assert not list(tmp_path.glob("log-*"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"metric": "vqa"}, "`metric` was 'infoseek', is now 'vqa'"), ({"new": 1}, "`new` was None, is now 1")],
)
def test_other_settings_are_refused_and_named(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    fill(tmp_path, [1])
    with pytest.raises(UserError, match="begun with other settings") as caught:
        begin(tmp_path, {**SETTINGS, **changes})
    assert problem in str(caught.value)
    assert "model" not in str(caught.value)


def test_without_its_settings_a_folder_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    (tmp_path / "settings.json").unlink()
    with pytest.raises(UserError, match=r"settings\.json is missing"):
        begin(tmp_path, SETTINGS)


def test_unfinished_probes_are_not_read(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    with pytest.raises(UserError, match="holds no finished probes"):
        list(stream_probes(tmp_path))
    seal(tmp_path, {"model": "name"})
    assert read_settings(tmp_path) == {**SETTINGS, "about": {"model": "name"}}
    with pytest.raises(UserError, match=r"settings\.json lacks `knowledge`; restore it, or probe again"):
        read_settings(tmp_path, knowledge=str)


def test_a_question_that_comes_twice_is_refused(tmp_path: Path) -> None:
    """A copied row would count its labels twice."""
    fill(tmp_path, [1, 2])
    seal(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    table = pq.read_table(part)
    pq.write_table(pa.concat_tables([table, table.slice(1)]), part)
    with pytest.raises(UserError, match="'q002' follows 'q002', but ids must be unique and sorted"):
        list(stream_probes(tmp_path))

"""TRL's chat data to ours and back is the identity."""

import dataclasses
import json
import string
import tempfile
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.types import AnswerStyle, FollowUp, Passage
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.exporting.from_trl import import_trl
from reflectune.data_builders.exporting.run import export
from reflectune.formats.reflection_data import (
    Manifest,
    read_manifest,
    write_examples,
    write_manifest,
)
from reflectune.models.schemes.examples import Branch, PromptedBranch, PromptedExample, ReflectionExample


def to_trl(data: Path, output: Path, images: Any = "absolute") -> list[dict[str, Any]]:
    export(ExportConfig(data=str(data), to="trl", output=str(output), images=images))
    if images == "copy":
        return [json.loads(line) for line in (output / "train" / "metadata.jsonl").read_text().splitlines()]
    return pq.read_table(output / "train.parquet").to_pylist()


def from_trl(data: Path, output: Path, scheme: str = "mr2ag", **settings: Any) -> Path:
    import_trl(ExportConfig(data=str(data), from_format="trl", output=str(output), scheme=scheme, **settings))
    return output


@pytest.mark.parametrize("images", ["absolute", "copy"])
@pytest.mark.parametrize("scheme", ["mr2ag", "mmkb_rag", "plain"])
def test_trl_to_ours_to_trl_is_identity(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str, images: str
) -> None:
    data = request.getfixturevalue({"mr2ag": "reflected", "mmkb_rag": "prompted", "plain": "plain"}[scheme])
    first = to_trl(data, tmp_path / "first", images)

    ours = from_trl(tmp_path / "first", tmp_path / "ours", scheme)
    second = to_trl(ours, tmp_path / "second")

    assert read_manifest(ours).scheme == scheme
    assert [_without_image(row) for row in second] == [_without_image(row) for row in first]
    for before, after in zip(first, second, strict=True):
        seen = Path(after["images"][0]["path"])
        names = before.get("images_file_names") or [before["images"][0]["path"]]
        assert seen == tmp_path / "first" / "train" / names[0]  # an absolute name stands for itself


words = st.text(string.ascii_letters + string.digits + " .:<>[]|?é木\n", min_size=1, max_size=30).filter(
    lambda text: text.strip() and not text.strip().startswith("[")
)
passages = st.builds(lambda text: Passage("e", 0, 0, "", "", "", text), words)
read = st.one_of(
    st.builds(lambda p, answer: Branch(p, True, answer), passages, words),
    st.builds(lambda p: Branch(p, False), passages),
)
styles = st.sampled_from(get_args(AnswerStyle))
looked = st.builds(lambda q, a, style: ReflectionExample("", "x.png", q, False, a, style=style), words, words, styles)
talks = st.builds(
    lambda q, a, later: ReflectionExample("", "x.png", q, False, a, style="free", follow_ups=tuple(later)),
    words,
    words,
    st.lists(st.builds(FollowUp, words, words), min_size=1, max_size=3),
)
looked_up = st.builds(
    lambda q, b, style: ReflectionExample("", "x.png", q, True, branches=tuple(b), style=style),
    words,
    st.lists(read, min_size=1, max_size=3),
    styles,
)
tasks = st.one_of(
    st.sampled_from([PromptedBranch("ret", role="retrieve"), PromptedBranch("ret", role="no_retrieve")]),
    st.builds(lambda p, r: PromptedBranch("srt", (p,), r), passages, st.sampled_from(["relevant", "irrelevant"])),
    st.builds(lambda p, w: PromptedBranch("mct", tuple(p), "", w), st.lists(passages, min_size=1, max_size=3), words),
    st.builds(lambda p, w: PromptedBranch("vqa", tuple(p), "", w), st.lists(passages, max_size=2), words),
)
prompted = st.builds(
    lambda q, b, style: PromptedExample("", "x.png", q, tuple(b), style),
    words,
    st.lists(tasks, min_size=1, max_size=4),
    styles,
)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.lists(st.one_of(looked, talks, looked_up), min_size=1, max_size=4),
        st.lists(prompted, min_size=1, max_size=3),
    )
)
def test_identity_holds_for_any_texts(examples: list[Any]) -> None:
    named = [dataclasses.replace(example, id=f"q{i}") for i, example in enumerate(examples)]
    scheme = "mmkb_rag" if isinstance(named[0], PromptedExample) else "mr2ag"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        Image.new("RGB", (8, 8)).save(folder / "x.png")
        write_examples(folder / "data" / "train.parquet", named)
        write_manifest(folder / "data", Manifest(scheme, folder, {"train": "0"}))

        first = to_trl(folder / "data", folder / "first")
        second = to_trl(from_trl(folder / "first", folder / "ours", scheme), folder / "second")

    assert second == first


def _without_image(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("images")}

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.models.remote.replies import ReplyFile


def row(number: int) -> dict[str, object]:
    return {"text": f"ünïcode {number}", "prompt_tokens": number, "completion_tokens": 1}


@given(cut=st.integers(0, 400))
def test_a_file_cut_off_anywhere_gives_back_the_whole_rows_and_takes_new_ones(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("replies") / "replies.jsonl"
    with ReplyFile(path) as replies:
        for number in range(3):
            replies.put(str(number), row(number))
    path.write_bytes(path.read_bytes()[:cut])
    with ReplyFile(path) as replies:
        missing = [number for number in range(3) if str(number) not in replies]
        for number in missing:
            replies.put(str(number), row(number))
        assert all(replies.get(str(number)) == {"id": str(number), **row(number)} for number in range(3))
        assert (len(replies), replies.prompt_tokens, replies.completion_tokens) == (3, 3, 3)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text("hello\n")

    with pytest.raises(UserError, match=r"the file of replies can.t be used: .*replies\.jsonl"):
        ReplyFile(path)

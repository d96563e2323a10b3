from __future__ import annotations

import errno

import pytest

from reflectune.core.errors import UserError, entry_point


def run(error: BaseException) -> None:
    @entry_point
    def main() -> None:
        raise error

    main()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such split"), 2, "error: no such split"),
        (KeyboardInterrupt(), 130, "what was finished is kept"),
        (OSError(errno.ENOSPC, "full", "traces.jsonl"), errno.ENOSPC, "no space left on the disk"),
    ],
)
def test_a_users_mistake_is_one_line_and_a_status(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(error)
    printed = capsys.readouterr().err
    assert caught.value.code == status
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(errno.EACCES, "denied")])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(error)

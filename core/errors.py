"""The exception that users are meant to read. At the bottom of all imports."""

from __future__ import annotations

import errno
from typing import Final

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class UserError(Exception):
    """A mistake that the user can fix. Its message names the place, the problem and the fix.

    A command prints it as `error: …` and exits with status 2, without a traceback.
    """


def one_line(message: object, length: int = 300) -> str:
    """Return the text of an error on one line, cut to a maximum length."""
    return " ".join(str(message).split())[:length]


class UnusableInput(UserError):
    """A question or an image that can't be used, while others can: `on_error: skip` leaves it out.

    Attributes:
        question_id: The question that the message names; "" if it names none.
    """

    def __init__(self, message: str, question_id: str = "") -> None:
        """Store the message and the question that it names."""
        self.question_id = question_id
        super().__init__(message)

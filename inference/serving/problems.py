"""Errors of requests, with an HTTP status and a sentence for the client."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.secrets import redacted
from reflectune.core.values import one_line

_LONGEST = 500
_NO_HEADERS: Mapping[str, str] = {}


class RequestProblem(Exception):
    """A request that can't be answered.

    Attributes:
        status: The HTTP status.
        message: One sentence for the client, without content of the request.
        headers: Headers of the reply.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        self.status, self.message, self.headers = status, one_line(redacted(message))[:_LONGEST], dict(headers)
        super().__init__(self.message)

    @classmethod
    def of(cls, error: Exception, *, status: int) -> RequestProblem:
        """Convert an error: to 400 for unusable input, to `status` for another UserError, and else to 500."""
        if isinstance(error, RequestProblem):
            return error
        if isinstance(error, UserError):
            return cls(400 if isinstance(error, UnusableInput) else status, str(error))
        return cls(500, "the server failed; its log has the reason")

    def body(self) -> dict[str, object]:
        """Return the content of a reply, in OpenAI's format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.status}}

    def response(self) -> JSONResponse:
        """Return the reply."""
        return JSONResponse(self.body(), self.status, self.headers)

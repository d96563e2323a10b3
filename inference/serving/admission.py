"""Admit or refuse requests before their body is read: access, shutdown, load, and size of the body."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import time
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reflectune.inference.serving.bodies import MAX_CHARACTERS, MAX_QUERIES
from reflectune.inference.serving.config import LOCAL_HOSTS, ServerSettings
from reflectune.inference.serving.images import MAX_IMAGE_MB
from reflectune.inference.serving.metrics import ServerMetrics
from reflectune.inference.serving.problems import RequestProblem

WORK: Final = ("/answer", "/retrieve", "/v1/chat/completions")
"""Routes that use the models. The number of concurrent requests on them is limited."""
_ROUTES: Final = (*WORK, "/healthz", "/metrics", "/v1/models")
BODY_SECONDS: Final = 60
"""Seconds within which a body must arrive."""
MAX_BYTES: Final = MAX_IMAGE_MB * 10**6 * 4 // 3 + 4 * MAX_CHARACTERS * MAX_QUERIES
"""Maximum bytes of a body: an image in Base64, and queries."""
_LARGE: Final = 8
"""Maximum requests with large decoded images; others wait with undecoded ones."""


@dataclass
class Load:
    """State of a server.

    Attributes:
        running: Requests under way on the routes of `WORK`.
        is_draining: True to refuse requests, since the server is shutting down.
        large: Acquired by each request while it holds large decoded images.
    """

    running: int = 0
    is_draining: bool = False
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LARGE))


class Admission:
    """ASGI middleware in front of all routes.

    Args:
        app: The routes.
        settings: Access and load.
        load: Requests under way, shared with the server.
        metrics: Counts the requests.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, load: Load, metrics: ServerMetrics) -> None:
        self._app, self._settings, self._load, self._metrics = app, settings, load, metrics
        self._token = settings.token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in _ROUTES else "other"
        start, body, statuses = time.perf_counter(), _Body(receive, MAX_BYTES), [500]

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses[0] = message["status"]
            await send(message)

        problem = self._problem(route, Headers(scope=scope))
        is_work = problem is None and route in WORK
        self._load.running += is_work
        try:
            if problem:
                await body.drain()
                await problem.response()(scope, receive, counted)
            else:
                await self._app(scope, body.receive, counted)
        finally:
            self._load.running -= is_work
            self._metrics.count(route, statuses[0], time.perf_counter() - start)

    def _problem(self, route: str, headers: Headers) -> RequestProblem | None:
        """Return the reason to refuse a request by its headers, if there is one."""
        if self._load.is_draining:
            return RequestProblem(503, "the server is shutting down; ask later", {"Retry-After": "10"})
        if route == "/healthz":
            return None
        if not self._token and headers.get("host", "").partition(":")[0] not in LOCAL_HOSTS:
            return RequestProblem(403, "without a token this server answers only requests to localhost")
        if self._token and not is_authorized(headers.get("authorization", ""), self._token):
            scheme = {"WWW-Authenticate": 'Basic realm="reflectune"'}  # a browser then asks for it
            return RequestProblem(401, "a token is needed: send `Authorization: Bearer TOKEN`", scheme)
        if int(headers.get("content-length", 0)) > MAX_BYTES:
            return RequestProblem(413, f"the body is larger than {MAX_BYTES:,} bytes")
        if route in WORK and self._load.running >= self._settings.max_requests:
            problem = f"{self._load.running} requests are under way; ask again later"
            return RequestProblem(429, problem, {"Retry-After": "1"})
        return None


class _Body:
    """A request's body, bounded in size and time."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive, self._left, self._is_whole = receive, max_bytes, False
        self._end = time.monotonic() + BODY_SECONDS

    async def receive(self) -> Message:
        """Receive the next part; after the last part, the message of a disconnect."""
        if self._is_whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._end - time.monotonic())
        except TimeoutError:
            late = f"the body did not arrive within {BODY_SECONDS} seconds"
            raise RequestProblem(408, late, {"Connection": "close"}) from None
        self._left -= len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._left < 0:
            raise RequestProblem(413, "the body is too large")
        return message

    async def drain(self) -> None:
        """Read the rest of a refused request's body, since a client reads the reply only after sending all of it."""
        try:
            while not self._is_whole:
                await self.receive()
        except RequestProblem:
            return


def is_authorized(header: str, token: str) -> bool:
    """Return True if an Authorization header carries the token: as Bearer, or as Basic's password."""
    kind, _, given = header.strip().partition(" ")
    if kind.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())

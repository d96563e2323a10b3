"""Sending one request to a remote model until an answer arrives: retries, backoff, and what not to try again."""

from __future__ import annotations

import email.utils
import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.models.remote.endpoint import Endpoint

Parsed = TypeVar("Parsed")

MOST_BYTES = 16 << 20
"""A reply that is longer is no reply."""

LONGEST_WAIT = 300.0
"""Seconds. A server that asks for more is asked again after this long."""

_REFUSED = frozenset({400, 413, 422})
"""The server won't answer this very request: too long, or filtered."""

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})


class Refused(Exception):
    """The server won't answer this request, however often it is sent; others may be answered."""


class Stopped(Exception):
    """The run is ending: another request failed for good, or somebody pressed Ctrl-C."""


class _Passing(Exception):
    """A failure that may pass. `wait`: how many seconds the server asked to wait, if it did."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


class Transport:
    """Sends requests to an endpoint; several threads may share one.

    A `Retry-After` holds all threads back, since the limit that it speaks of is theirs together. A request carries its
    content's hash as `Idempotency-Key`: a server that honours it doesn't charge for a repeated one.

    Args:
        endpoint: The server.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._random = random.Random()  # spreads retries; nothing that is computed depends on it
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._stopped = threading.Event()
        self.retried = 0

    def stop(self) -> None:
        """Let no thread send anything more."""
        self._stopped.set()

    def post(self, body: dict[str, Any], parse: Callable[[Any], Parsed]) -> Parsed:
        """Send a request, again if need be, until `parse` can read the reply.

        Args:
            body: The request, a JSON object.
            parse: Reads the reply's JSON; a `ValueError`, `KeyError`, `TypeError` or `IndexError` says that it is
                garbage, and it is asked for again.

        Raises:
            Refused: The server won't answer this one (status 400, 413 or 422).
            UserError: No request will be answered (key, quota, address), or the retries are used up.
            Stopped: `stop` was called.
        """
        problem = ""
        for attempt in range(self._endpoint.retries + 1):
            self._hold_back()
            try:
                return self._parsed(self._send(body), parse)
            except _Passing as failure:
                problem = str(failure)
                if attempt < self._endpoint.retries:
                    self._note_retry(attempt, failure.wait)
        raise UserError(
            f"{self._url} failed {self._endpoint.retries + 1} times in a row, the last time: {problem}; what was "
            "answered is kept: run the same command again to go on (a lower `llm_concurrency` helps a busy server)"
        )

    def _parsed(self, content: bytes, parse: Callable[[Any], Parsed]) -> Parsed:
        try:
            value = json.loads(content)
            if isinstance(value, dict) and "choices" not in value and "error" in value:
                raise _Passing(f"an error under status 200: {_shown(content, self._endpoint.key)}")
            return parse(value)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            # no cause: it may quote the reply, and the reply the key
            raise _Passing(f"no chat completion, but: {_shown(content, self._endpoint.key)}") from None

    def _send(self, body: dict[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json", "Idempotency-Key": fingerprint([self._url, body])}
        if self._endpoint.key:
            headers["Authorization"] = f"Bearer {self._endpoint.key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        deadline = time.monotonic() + self._endpoint.timeout
        try:
            with self._opener.open(request, timeout=self._endpoint.timeout) as response:
                return _read(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise self._status(error) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = _masked(str(getattr(error, "reason", None) or error), self._endpoint.key)
            raise _Passing(f"{type(error).__name__}: {reason} (is the server running?)") from None

    def _status(self, error: urllib.error.HTTPError) -> Exception:
        """What a status other than 200 means."""
        try:
            content = error.read(1 << 16)
        except (http.client.HTTPException, OSError):
            content = b""
        said = f"status {error.code}: {_shown(content, self._endpoint.key)}"
        out_of_money = error.code == 402 or b"insufficient_quota" in content
        if error.code in _PASSING and not out_of_money:
            return _Passing(said, _retry_after(error.headers))
        if error.code in _REFUSED:
            return Refused(said)
        advice = (
            "the account has no credit left"
            if out_of_money
            else "check `llm_url`, `llm_model` and the API key in the variable that `llm_key_variable` names"
        )
        return UserError(f"{self._url} answers {said}; {advice}; what was answered before is kept")

    def _hold_back(self) -> None:
        while (wait := self._not_before - time.monotonic()) > 0 and not self._stopped.is_set():
            self._stopped.wait(wait)
        if self._stopped.is_set():
            raise Stopped

    def _note_retry(self, attempt: int, asked: float | None) -> None:
        """Wait before the next attempt: as long as the server asked, all threads; else twice as long as last time."""
        with self._lock:
            self.retried += 1
            if asked is not None:
                self._not_before = max(self._not_before, time.monotonic() + min(asked, LONGEST_WAIT))
                return
        longest = min(self._endpoint.backoff * 2**attempt, LONGEST_WAIT)
        self._stopped.wait(longest * self._random.uniform(0.5, 1))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the key to another address; it is an error like any other status."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body, whole: a server that trickles or breaks off is a failure that may pass."""
    parts, size = [], 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise _Passing(f"a reply of more than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise _Passing("the reply took longer than `llm_timeout`")
    if response.length:  # what Content-Length promised and did not come
        raise _Passing(f"the reply broke off {response.length} bytes before its end")
    return b"".join(parts)


def _retry_after(headers: Any) -> float | None:
    """Seconds that the server asked to wait: a number, or a date."""
    value = headers.get("Retry-After") if headers is not None else None
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _masked(text: str, key: str) -> str:
    """The text without the key, plain or as JSON writes it."""
    for secret in (key, json.dumps(key)[1:-1], key.replace("/", "\\/")):
        text = text.replace(secret, "…") if secret else text
    return text


def _shown(content: bytes, key: str) -> str:
    """The beginning of what a server said, on one line, without the key."""
    text = " ".join(content.decode("utf-8", errors="replace").split())
    text = _masked(text, key)
    return f"`{text[:200]}{'…' if len(text) > 200 else ''}`" if text else "nothing"

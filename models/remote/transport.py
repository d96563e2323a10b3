"""Requests to a server through the `openai` SDK, which retries rate limits, server errors and lost connections."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from reflectune.core.errors import UserError
from reflectune.core.secrets import redacted
from reflectune.models.remote.endpoint import Endpoint

if TYPE_CHECKING:
    import httpx2

Parsed = TypeVar("Parsed")

REFUSED = frozenset({400, 413, 422})
"""HTTP statuses for a request that the server won't answer: it is too long, or filtered."""

LARGEST_REPLY = 1 << 24
"""Maximum bytes of a reply."""
_LONGEST_PAUSE = 8.0
_LONGEST_WAIT = 120
"""Maximum seconds of `Retry-After` that the SDK waits for; for more it doesn't retry."""


class Refused(Exception):
    """The server won't answer this request, however often it is sent; others may be answered."""


class NotServed(UserError):
    """The server has no such address, or no such model (status 404)."""


class Transport:
    """Sends requests to an endpoint; thread-safe.

    A redirect is an error, since it could send the key to another server.

    Args:
        endpoint: The server.
        path: Path below the endpoint's URL.
    """

    def __init__(self, endpoint: Endpoint, path: str = "/chat/completions") -> None:
        import openai  # slow to import

        logging.getLogger("httpx2").setLevel(logging.WARNING)  # at INFO it logs URLs with their secrets
        self._endpoint = endpoint
        parts = urlsplit(endpoint.url.strip())
        root = parts._replace(query="", fragment="").geturl()
        self._root = root.rstrip("/")
        self._url = self._root + path if path else root
        key = f"Bearer {endpoint.key}" if endpoint.key else openai.omit
        self._options: Any = {"headers": {"Authorization": key, "Accept-Encoding": "identity"}}
        try:
            self._client = openai.OpenAI(
                base_url=root,
                api_key=endpoint.key or "none",
                default_query=dict(parse_qsl(parts.query, keep_blank_values=True)),
                timeout=endpoint.timeout,
                max_retries=endpoint.retries,
                http_client=openai.DefaultHttpxClient(
                    follow_redirects=False, event_hooks={"response": [_bounded(endpoint.timeout)]}
                ),
            )
        except Exception as error:  # e.g. a malformed proxy; its text may contain the proxy's password
            raise UserError(
                f"no connection to {endpoint.shown_url} can be opened ({type(error).__name__}); check "
                f"`{endpoint.named}` and the environment's proxies, as http://HOST:PORT"
            ) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def post(self, body: dict[str, Any], parse: Callable[[Any], Parsed]) -> Parsed:
        """Send a request, with retries, until `parse` can read the reply.

        Args:
            body: The request, a JSON object.
            parse: Reads the reply's JSON. If it raises a `ValueError`, `KeyError`, `TypeError`, `IndexError` or
                `AttributeError`, the request is sent again.

        Raises:
            Refused: The server won't answer this request (status 400, 413 or 422).
            NotServed: The address or the model is unknown.
            UserError: No request will be answered (key, quota, URL), or the retries are used up.
        """
        pause = 0.5
        for retries_left in reversed(range(self._endpoint.retries + 1)):
            content = self._send(body)
            try:
                return parse(_read_reply(content))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
                problem = f"not the expected JSON, but {_shown(content)}"
            if retries_left:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise self._failure(problem)

    def get(self, path: str) -> str:
        """Return the text at a path below the endpoint's URL.

        Raises:
            Refused, UserError: See `post`.
        """
        return self._send(None, self._root + path)

    def _send(self, body: dict[str, Any] | None, url: str = "") -> str:
        import httpx2
        import openai

        try:
            if body is None:
                return self._client.get(url, cast_to=str, options=self._options)
            return self._client.post(self._url, body=body, cast_to=str, options=self._options)
        except openai.APIStatusError as error:
            raise self._status_error(error.response) from None
        except openai.APIConnectionError as error:
            reason = f"{type(error.__cause__).__name__}: {redacted(str(error.__cause__))}"
            is_slow = isinstance(error.__cause__, httpx2.ReadTimeout)
            hint = (
                f"a long reply needs a longer `{self._endpoint.keys}_timeout`" if is_slow else "is the server running?"
            )
            raise self._failure(f"{reason} ({hint})") from None

    def _status_error(self, response: httpx2.Response) -> Exception:
        status, content, endpoint = response.status_code, response.text, self._endpoint
        reply = f"status {status}: {_shown(content)}"
        if status in REFUSED:
            return Refused(reply)
        if status == 402 or "insufficient_quota" in content:
            advice = "the account has no credit left"
        elif status in (408, 409, 429) or status >= 500:
            if (wait := response.headers.get("retry-after", "")).isdecimal() and int(wait) > _LONGEST_WAIT:
                return UserError(
                    f"{endpoint.shown_url} answers {reply}, and asks to wait for {int(wait):,} seconds; replies that "
                    "came are kept: run the same command again then"
                )
            return self._failure(reply)
        else:
            model = " `llm_model`" if endpoint.named == "llm_url" else ""
            variable = f"{endpoint.keys}_key_variable"
            advice = f"check `{endpoint.named}`,{model} and the API key in the variable that `{variable}` names"
        kind = NotServed if status == 404 else UserError
        return kind(f"{self._endpoint.shown_url} answers {reply}; {advice}; replies that came are kept")

    def _failure(self, problem: str) -> UserError:
        return UserError(
            f"{self._endpoint.shown_url} failed {self._endpoint.retries + 1} times in a row, the last time: {problem}; "
            "replies that came are kept: run the same command again to go on (a lower "
            f"`{self._endpoint.keys}_concurrency` helps a busy server)"
        )


def _bounded(seconds: float) -> Callable[[Any], None]:
    """Return a hook that limits a reply's size and total time; the SDK's timeout only covers the next bytes."""
    import httpx2

    class Bounded(httpx2.SyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            end, size = time.monotonic() + seconds, 0
            for block in self._stream:
                size += len(block)
                if size > LARGEST_REPLY:
                    raise httpx2.RemoteProtocolError(f"a reply of more than {LARGEST_REPLY:,} bytes")
                if time.monotonic() > end:
                    raise httpx2.ReadTimeout(f"a reply that takes more than {seconds:g} seconds")
                yield block

        def close(self) -> None:
            self._stream.close()

    def bound(response: Any) -> None:
        response.stream = Bounded(response.stream)

    return bound


def _read_reply(content: str) -> Any:
    value = json.loads(content)
    if isinstance(value, dict) and "choices" not in value and "error" in value:
        raise ValueError("an error under status 200")
    return value


def _shown(content: str) -> str:
    """Return the beginning of a reply on one line, without secrets."""
    text = redacted(" ".join(content.split()))
    return f"`{text[:200]}{'…' if len(text) > 200 else ''}`" if text else "nothing"

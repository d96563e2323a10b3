"""Sending one request to a remote model until an answer arrives: retries, backoff, and what not to try again."""

from __future__ import annotations

import email.utils
import json
import re
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2 as httpx  # the maintained httpx, which the Hub's client uses too

from reflectune.core.addresses import secrets_in, shown_url
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.patience import Passing, Patience

Parsed = TypeVar("Parsed")

MOST_BYTES = 16 << 20
"""A reply that is longer is no reply."""

REFUSED = frozenset({400, 413, 422})
"""The server won't answer this very request: too long, or filtered."""

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""The same request may be answered later."""


class Refused(Exception):
    """The server won't answer this request, however often it is sent; others may be answered."""


class Stopped(Exception):
    """The run is ending: another request failed for good, or somebody pressed Ctrl-C."""


class Transport:
    """Sends requests to an endpoint; several threads may share one.

    A `Retry-After` holds all threads back, since the limit that it speaks of is theirs together. A request carries its
    content's hash as `Idempotency-Key`: a server that honours it doesn't charge for a repeated one. A redirect would
    send the key to another address; it is an error like any other status.

    Args:
        endpoint: The server.
        path: What of it is asked, behind its root.
    """

    def __init__(self, endpoint: Endpoint, path: str = "/chat/completions") -> None:
        self._endpoint, self._path = endpoint, path
        sent = _below(endpoint, endpoint.url, path)
        # httpx logs the address, so it is given the one that may be shown, and the secrets as `auth` and `target`.
        self._url, self._target = str(_below(endpoint, endpoint.shown_url, path)), sent.raw_path
        self._secrets = [endpoint.key, *secrets_in(str(sent))]
        bearer = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self._client = httpx.Client(  # what is sent packed could be any size when it is unpacked: `identity`
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **bearer},
            auth=(sent.username, sent.password) if sent.userinfo else None,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one could bind all threads to one server
            timeout=endpoint.timeout,
            limits=httpx.Limits(),  # no bound but the threads' number
            verify=ssl.create_default_context(),
            proxy=environment_proxy(self._url),
            trust_env=False,
        )
        self._patience = Patience(endpoint.retries, endpoint.backoff)

    @property
    def retried(self) -> int:
        """How often a request was sent again."""
        return self._patience.retried

    def stop(self) -> None:
        """Let no thread send anything more."""
        self._patience.stop()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

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
        try:
            return self._patience.insist(self._attempt, body, parse)
        except Passing as failure:
            problem = str(failure)
        raise UserError(
            f"{self._url} failed {self._endpoint.retries + 1} times in a row, the last time: {problem}; what was "
            f"answered is kept: run the same command again to go on (a lower `{self._endpoint.keys}_concurrency` "
            "helps a busy server)"
        )

    def _attempt(self, body: dict[str, Any], parse: Callable[[Any], Parsed]) -> Parsed:
        self._patience.wait()
        if self._patience.is_stopped:
            raise Stopped
        content = self._send(body)
        try:
            value = json.loads(content)
            if isinstance(value, dict) and "choices" not in value and "error" in value:
                raise Passing(f"an error under status 200: {_shown(content, self._secrets)}")
            return parse(value)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            # no cause: it may quote the reply, and the reply the key
            expected = "chat completion" if self._path else "list of results"
            raise Passing(f"no {expected}, but: {_shown(content, self._secrets)}") from None

    def _send(self, body: dict[str, Any]) -> bytes:
        parts: dict[str, Any] = {
            "content": json.dumps(body).encode(),
            "headers": {"Idempotency-Key": fingerprint([self._url, body])},
            "extensions": {"target": self._target},
        }
        deadline = time.monotonic() + self._endpoint.timeout
        try:
            with self._client.stream("POST", self._url, **parts) as response:
                if response.is_success:
                    return _read(response, deadline, f"{self._endpoint.keys}_timeout")
                raise self._status(response)
        except (httpx.HTTPError, OSError) as error:
            reason = _masked(str(error), self._secrets)
            raise Passing(f"{type(error).__name__}: {reason} (is the server running?)") from None

    def _status(self, response: httpx.Response) -> Exception:
        """What a status other than 2xx means."""
        content = b""
        with suppress(httpx.HTTPError):
            content = next(response.iter_raw(1 << 16), b"")
        said = f"status {response.status_code}: {_shown(content, self._secrets)}"
        keys = self._endpoint.keys
        out_of_money = response.status_code == 402 or b"insufficient_quota" in content
        if response.status_code in PASSING and not out_of_money:
            return Passing(said, retry_after(response.headers.get("Retry-After", "")))
        if response.status_code in REFUSED:
            return Refused(said)
        advice = (
            "the account has no credit left"
            if out_of_money
            else f"check `{keys}_url`,{' `llm_model`' if keys == 'llm' else ''} and the API key in the variable that "
            f"`{keys}_key_variable` names"
        )
        return UserError(f"{self._url} answers {said}; {advice}; what was answered before is kept")


def _below(endpoint: Endpoint, url: str, wanted: str) -> httpx.URL:
    """Where a root is asked for something; a query stays behind the path. With nothing wanted it is the root itself."""
    try:
        root = httpx.URL(url.strip())
    except httpx.InvalidURL:  # no cause: it may quote a password
        told = f"`{endpoint.keys}_url` is no address that a request can be sent to: `{shown_url(url)}`"
        raise UserError(told) from None
    path, mark, query = root.raw_path.partition(b"?")
    return root.copy_with(raw_path=path.rstrip(b"/") + wanted.encode() + mark + query) if wanted else root


def environment_proxy(url: str) -> httpx.Proxy | None:
    """The proxy that the environment names for an address, by urllib's rules.

    httpx's own (`trust_env`) differ: they take ALL_PROXY, match NO_PROXY otherwise, and speak TLS to the proxy that
    `HTTPS_PROXY=https://…` names, which is often one that can't.
    """
    scheme, host = urlsplit(url)[:2]
    named = getproxies().get(scheme)
    if not named or proxy_bypass(host):
        return None
    tls = scheme == "http" and named.startswith("https://")
    try:
        return httpx.Proxy(f"{'https' if tls else 'http'}://{named.rpartition('://')[2]}")
    except httpx.InvalidURL:  # no cause: it may quote a password
        raise UserError(f"the environment's {scheme}_proxy is no address; write it as http://HOST:PORT") from None


def _read(response: httpx.Response, deadline: float, key: str) -> bytes:
    """The body, whole: a server that trickles or breaks off is a failure that may pass."""
    content = bytearray()
    for part in response.iter_raw():
        content += part
        if len(content) > MOST_BYTES:
            raise Passing(f"a reply of more than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise Passing(f"the reply took longer than `{key}`")
    return bytes(content)


def retry_after(value: str) -> float | None:
    """Seconds that the server asked to wait: a number, or a date."""
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _masked(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, plain or as JSON writes them."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        for written in (secret, json.dumps(secret)[1:-1]):
            text = re.sub(re.escape(written).replace("/", r"\\*/"), "…", text)  # JSON may write \/
    return text


def _shown(content: bytes, secrets: Iterable[str]) -> str:
    """The beginning of what a server said, on one line, without the secrets."""
    text = _masked(" ".join(content.decode("utf-8", errors="replace").split()), secrets)
    return f"`{text[:200]}{'…' if len(text) > 200 else ''}`" if text else "nothing"

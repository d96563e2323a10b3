"""One picture from the web: from a public address, within limits, tried again if that may help, and looked at whole."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, Literal
from urllib.parse import urljoin, urlsplit

import httpx2 as httpx  # the maintained httpx, which the Hub's client uses too

from reflectune.core.addresses import is_address
from reflectune.core.images import BadImage, open_image
from reflectune.data_builders.web_pictures.config import PictureConfig
from reflectune.models.remote.patience import Passing, Patience
from reflectune.models.remote.transport import PASSING, environment_proxy, retry_after

State = Literal["there", "gone", "refused", "failed"]
"""`gone`: the server has no such picture. `refused`: it won't give it, or it is none that is taken. `failed`: what may
pass: no connection, a busy server; tried again by the next run."""

MOST_REDIRECTS: Final = 5
_GONE: Final = frozenset({404, 410})
_UNTYPED: Final = ("", "application/octet-stream", "binary/octet-stream")
"""Types that say nothing: the file is looked at in any case."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Fetched:
    """What came of one address.

    Attributes:
        state: See `State`.
        why: What was wrong.
        content: The picture's file.
    """

    state: State
    why: str = ""
    content: bytes = b""


class _Final(Exception):
    """A failure that won't pass."""

    def __init__(self, state: State, problem: str) -> None:
        super().__init__(problem)
        self.state = state


class PictureClient:
    """Fetches pictures; several threads may share one.

    A host's name is resolved once for a request, each of its addresses must be public, and the connection goes to one
    of these: what the name means a moment later doesn't count. Behind a proxy of the environment it is the proxy that
    resolves names; then only what an address itself says is looked at. Redirects are followed by the same rules.

    Args:
        config: Limits, and how politely.
    """

    def __init__(self, config: PictureConfig) -> None:
        self._config = config
        self._clients: dict[str, httpx.Client] = {}
        self._lock = threading.Lock()
        self._patience = Patience(config.retries, config.backoff)

    def fetch(self, url: str) -> Fetched:
        """What is at an address."""
        try:
            return Fetched("there", content=self._patience.insist(self._attempt, url))
        except _Final as failure:
            return Fetched(failure.state, str(failure))
        except Passing as failure:
            return Fetched("failed", str(failure))

    def stop(self) -> None:
        """Let no thread wait any longer."""
        self._patience.stop()

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def _attempt(self, url: str) -> bytes:
        deadline = time.monotonic() + self._config.timeout
        for _ in range(MOST_REDIRECTS + 1):
            self._patience.wait_turn(1 / self._config.requests_per_second)
            if self._patience.is_stopped:
                raise _Final("failed", "the run was stopped")
            try:
                answer = self._ask(url, deadline)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise Passing(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}") from None
            if isinstance(answer, bytes):
                _refuse_unless_picture(answer)
                return answer
            url = urljoin(url, answer)
        raise _Final("refused", f"more than {MOST_REDIRECTS} redirects")

    def _ask(self, url: str, deadline: float) -> bytes | str:
        """The file at an address, or where it redirects to."""
        if not is_address(url) or urlsplit(url).username is not None:
            raise _Final("refused", "not an address of the form http(s)://HOST")
        proxy = environment_proxy(url)
        request = self._request(url, resolve=proxy is None)
        client = self._client(proxy)
        response = client.send(request, stream=True)
        try:
            if response.is_redirect:
                return response.headers.get("Location", "")
            self._refuse_status(response)
            return self._read(response, deadline)
        finally:
            response.close()

    def _request(self, url: str, *, resolve: bool) -> httpx.Request:
        """A request to the very address that was looked at."""
        target = httpx.URL(url)
        place = public_address(target.host, target.port, self._config.allow_private, resolve=resolve)
        headers = {"User-Agent": self._config.user_agent, "Accept": "image/*", "Accept-Encoding": "identity"}
        if not resolve:
            return httpx.Request("GET", target, headers=headers, extensions=self._extensions())
        headers["Host"] = target.netloc.decode()
        extensions = {**self._extensions(), "sni_hostname": target.host}
        return httpx.Request("GET", target.copy_with(host=place), headers=headers, extensions=extensions)

    def _extensions(self) -> dict[str, Any]:
        return {"timeout": httpx.Timeout(self._config.timeout).as_dict()}

    def _client(self, proxy: httpx.Proxy | None) -> httpx.Client:
        with self._lock:
            name = str(proxy.url) if proxy else ""
            if name not in self._clients:
                self._clients[name] = httpx.Client(
                    proxy=proxy,
                    trust_env=False,
                    verify=ssl.create_default_context(),
                    limits=httpx.Limits(),
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                )
            return self._clients[name]

    def _refuse_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in _GONE:
            raise _Final("gone", f"status {status}")
        if status in PASSING:
            raise Passing(f"status {status}", retry_after(response.headers.get("Retry-After", "")))
        if status != 200:
            raise _Final("refused", f"status {status}")
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "image/svg+xml" or not (kind.startswith("image/") or kind in _UNTYPED):
            raise _Final("refused", f"{kind[:60]} is no picture that is read")

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        most = int(self._config.most_mib * 2**20)
        too_large = f"more than {self._config.most_mib:g} MiB"
        told = response.headers.get("Content-Length", "")
        if told.isdecimal() and int(told) > most:
            raise _Final("refused", too_large)
        content = bytearray()
        for part in response.iter_raw():
            content += part
            if len(content) > most:
                raise _Final("refused", too_large)
            if time.monotonic() > deadline:
                raise Passing("it took longer than `timeout`")
        return bytes(content)


def public_address(host: str, port: int | None, allow_private: bool, *, resolve: bool = True) -> str:
    """An address of a host, as numbers, if all that it has are public.

    Args:
        host: Its name, or numbers.
        port: Its port; None for the scheme's own.
        allow_private: Whether any will do.
        resolve: Whether a name may be asked for; if not, only numbers and the names of this machine are looked at, and
            the host itself is given back.

    Raises:
        _Final: One is this machine's, a private network's or otherwise not public.
        Passing: The name can't be resolved now.
    """
    try:
        places = [str(ipaddress.ip_address(host))]
    except ValueError:
        if not resolve:
            if not allow_private and (host.lower() == "localhost" or host.lower().endswith(".localhost")):
                raise _Final("refused", f"{host} is this machine") from None
            return host
        try:
            places = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError) as error:
            raise Passing(f"{host[:80]} can't be resolved: {error}") from None
    for place in places:
        if not allow_private and not is_public(place):
            raise _Final("refused", f"{host[:80]} is {place}, which is no public address (see `allow_private`)")
    return places[0]


def is_public(place: str) -> bool:
    """Whether an address in numbers is one of the public internet, also where it wraps another one.

    Example:
        >>> [is_public(place) for place in ("208.80.154.240", "10.0.0.1", "::ffff:127.0.0.1", "169.254.169.254")]
        [True, False, False, False]
    """
    address = ipaddress.ip_address(place.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if wrapped is None and address in _NAT64:
            wrapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
    return address.is_global and not address.is_multicast


def _refuse_unless_picture(content: bytes) -> None:
    try:
        open_image(content)
    except BadImage as error:
        raise _Final("refused", f"no whole picture: {error.problem[:120]}") from error

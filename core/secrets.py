"""Hide keys and passwords, so that no error, log or file shows them."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

CONCEALED: Final[set[str]] = set()
"""Values that `redacted` hides in this process."""

_SECRET_NAME: Final = re.compile(r"(key|token|secret|passwo?r?d|authorization)$", re.IGNORECASE)
"""Names of secrets: of environment variables, of a URL's query fields and of JSON options."""
_USERINFO: Final = re.compile(r"(?<=://)[^\s/'\"`]*@")


def conceal(*secrets: str) -> None:
    """Make `redacted` hide these values. Values under four characters are ignored: they would occur in any text."""
    CONCEALED.update(secret for secret in secrets if len(secret) > 3)


def conceal_named(values: Mapping[str, Any]) -> None:
    """Make `redacted` hide the values of an environment or of options whose names say that they are secrets."""
    for name, value in values.items():
        if _SECRET_NAME.search(name) and isinstance(value, str) and len(value) >= 8 and not os.path.exists(value):
            conceal(value.strip())


def conceal_url(url: str) -> None:
    """Make `redacted` hide the userinfo of a URL, which may be malformed, and the secrets in its query."""
    userinfo = url.partition("://")[2].rpartition("@")[0] or url.rpartition("@")[0]
    conceal(userinfo, userinfo.partition(":")[2], unquote(userinfo.partition(":")[2]))
    if is_url(url):
        conceal(*secrets_in(url))


def redacted(text: str) -> str:
    """Return a text with `***` for each concealed value, and for the userinfo of each URL.

    Example:
        >>> redacted("GET http://me:pass@host/v1 failed")
        'GET http://***@host/v1 failed'
    """
    for secret in sorted(CONCEALED, key=len, reverse=True):
        in_json = json.dumps(secret)[1:-1]
        for form in (secret, quote(secret, safe=""), repr(secret)[1:-1], in_json, in_json.replace("/", "\\/")):
            text = text.replace(form, "***")
    return _USERINFO.sub("***@", text)


def is_url(url: str) -> bool:
    """Return True for a URL of the form `http(s)://HOST`, with or without a port and more."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or a bracket is not closed
        return False


def shown_url(url: str) -> str:
    """Return a URL as messages, files and fingerprints may hold it: without userinfo, fragment and secrets.

    A text that is not a URL may be a password; it is not shown.

    Example:
        >>> shown_url("https://me:pass@host/v1?api_key=abc&api-version=2")
        'https://host/v1?api_key=***&api-version=2'
    """
    if not is_url(url):
        return "***"
    parts = urlsplit(url.strip())
    fields = [(name, "***" if _SECRET_NAME.search(name) else value) for name, value in _fields(parts.query)]
    netloc = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=netloc, query=urlencode(fields, safe="*"), fragment="").geturl()


def route_of(url: str) -> str:
    """Return the path and query of a URL for fingerprints, without secrets: the same for a model on any host.

    Example:
        >>> route_of("http://node7:8000/v1")
        '/v1'
    """
    return urlsplit(shown_url(url))._replace(scheme="", netloc="").geturl()


def secrets_in(url: str) -> list[str]:
    """Return the secrets of a URL: its password, the Basic authorization made of it, and secrets in its query."""
    parts = urlsplit(url)
    userinfo, mark, _ = parts.netloc.rpartition("@")
    user, _, password = map(unquote, userinfo.partition(":"))
    header = [base64.b64encode(f"{user}:{password}".encode()).decode()] if mark else []
    fields = [value for name, value in _fields(parts.query) if _SECRET_NAME.search(name)]
    return [secret for secret in dict.fromkeys([*header, password or user, *fields]) if secret]


def shown_options(options: str) -> str:
    """Return a JSON object as files may hold it, with `***` for each value whose name says that it is a secret.

    Example:
        >>> shown_options('{"seed": 0, "api_key": "abc"}')
        '{"seed": 0, "api_key": "***"}'
    """
    try:
        values = json.loads(options)
    except ValueError:
        return options
    shown = _without_secrets(values)
    return options if shown == values else json.dumps(shown, ensure_ascii=False)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: "***" if isinstance(item, str) and _SECRET_NAME.search(name) else _without_secrets(item)
        for name, item in value.items()
    }


def _fields(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, keep_blank_values=True)

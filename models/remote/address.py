"""What of a server's address may be shown: it can carry a password before the host, or a key in its query."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote, urlsplit

_FIELD = re.compile(r"[^&;]+")
_SECRET_NAME = re.compile(r"key|token|secret|pass|pwd|auth|cred|sig", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"[A-Za-z0-9]{20}")
"""As long a run of letters and digits is no version's and no deployment's name."""


def is_address(url: str) -> bool:
    """Whether this is an address of the form `http(s)://HOST`, with or without a port and more."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or a bracket is not closed
        return False


def shown_url(url: str) -> str:
    """The address as messages, files and fingerprints may hold it.

    It has no userinfo and no fragment, and `***` for each value of its query that looks like a secret, by its name or
    by itself. Of what is no address only the part that can't be a password is left.

    Example:
        >>> shown_url("https://me:pass@host/v1?api_key=abc&api-version=2")
        'https://host/v1?api_key=***&api-version=2'
    """
    if not is_address(url):
        return "***" if _SECRET_VALUE.search(url) else re.split(r"[?#]", url.rpartition("@")[2])[0]
    parts = urlsplit(url)
    query = _FIELD.sub(_shown_field, parts.query)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query, fragment="").geturl()


def secrets_in(url: str) -> list[str]:
    """What an address holds that is not to be shown, as it is written and as a server reads it."""
    parts = urlsplit(url)
    userinfo, mark, _ = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    header = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if mark else ""
    written = [password or user, *map(_secret, _FIELD.findall(parts.query))]
    return [secret for secret in dict.fromkeys([header, *written, *map(unquote, written)]) if secret]


def _shown_field(field: re.Match[str]) -> str:
    secret = _secret(field[0])
    return f"{field[0].removesuffix(secret)}***" if secret else field[0]


def _secret(field: str) -> str:
    """The value of a query's field if it looks like a secret, else ""; without a name it is one."""
    name, mark, value = field.partition("=")
    if not mark:
        return field
    return value if not name or _SECRET_NAME.search(unquote(name)) or _SECRET_VALUE.search(value) else ""

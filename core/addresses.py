"""What of a server's address may be shown: it can carry a password before the host, or a key in its query."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

_FIELD = re.compile(r"[^&;]+")
_SECRET_NAME = re.compile(r"key|token|secret|pass|pwd|auth|cred|sig", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"[A-Za-z0-9]{20}")
"""As long a run of letters and digits is no version's and no deployment's name."""


def is_address(url: str) -> bool:
    """Whether this is an address of the form `http(s)://HOST`, with or without a port and more."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not _is_cut(parts)
    except ValueError:  # the port is no number, or a bracket is not closed
        return False


def _is_cut(parts: SplitResult) -> bool:
    """Whether what stands as host may be a user with the begin of a password that has a `/`, `?` or `#` in it."""
    rest = f"{parts.path}?{parts.query}#{parts.fragment}"
    if "@" not in rest or "@" in parts.netloc:
        return False
    return ":" in parts.netloc or re.search(r"[^/]@", rest) is not None


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


def conceal(*secrets: str) -> None:
    """Let `redacted` hide these wherever they stand. Those of fewer than four characters would be found in any text."""
    CONCEALED.update(secret for secret in secrets if len(secret) > 3)


def conceal_address(url: str) -> None:
    """Let `redacted` hide what an address holds that is not to be shown, also if it is malformed."""
    userinfo = url.partition("://")[2].rpartition("@")[0] or url.rpartition("@")[0]
    conceal(userinfo, userinfo.partition(":")[2], unquote(userinfo.partition(":")[2]))
    if is_address(url):
        conceal(*secrets_in(url))


def redacted(text: str) -> str:
    """A text for an error or a log, with `***` for the passwords and keys in it.

    What is hidden: the secrets that this run was given (`conceal`), and of every address the userinfo and each value of
    its query that looks like a secret.

    Example:
        >>> redacted("GET http://me:pass@host/v1?key=abc failed")
        'GET http://***@host/v1?key=*** failed'
    """
    for secret in sorted(CONCEALED, key=len, reverse=True):
        for written in dict.fromkeys((secret, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1])):
            text = text.replace(written, "***")
    return _KEY.sub("***", _ADDRESS.sub(_without_secrets, text))


def conceal_environment(environment: Mapping[str, str]) -> None:
    """Let `redacted` hide the keys, tokens and passwords that an environment holds, by the names of its variables."""
    for name, value in environment.items():
        if name.lower().endswith("_proxy"):
            conceal_address(value)
        elif _SECRET_VARIABLE.search(name) and len(value) >= 8 and not os.path.exists(value):
            conceal(value.strip())


def shown_options(options: str) -> str:
    """A JSON object as files may hold it: `***` for each value whose name says that it is a secret.

    One without secrets stays as it is written.

    Example:
        >>> shown_options('{"seed": 0, "api_key": "abc"}')
        '{"seed": 0, "api_key": "***"}'
    """
    try:
        values = json.loads(options)
    except ValueError:
        return options
    without = _without_secret_values(values)
    return options if without == values else json.dumps(without, ensure_ascii=False)


def _without_secret_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secret_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: "***" if isinstance(item, str) and _SECRET_OPTION.search(name) else _without_secret_values(item)
        for name, item in value.items()
    }


def _without_secrets(match: re.Match[str]) -> str:
    """An address in a text. What follows its last `@` is shown, so that one learns which server it was."""
    scheme, rest = match["scheme"], match["rest"]
    userinfo, mark, shown = rest.rpartition("@")
    if mark and ("/" not in userinfo or not userinfo.endswith("/")):
        rest = f"***@{shown}"
    address, question, query = rest.partition("?")
    return scheme + address + question + _FIELD.sub(_shown_query, query)


def _shown_query(field: re.Match[str]) -> str:
    return _shown_field(field) if "=" in field[0] else field[0]


_ADDRESS: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"`<>]+)")
_KEY: Final = re.compile(r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}|(?<=Bearer )[^\s'\"]{8,})")
"""Keys of the Hub and of OpenAI-compatible servers, by their form."""

_SECRET_VARIABLE: Final = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
_SECRET_OPTION: Final = re.compile(r"(api|access|secret)_?-?key|pass(word|wd)|secret|authorization|_token$", re.I)
CONCEALED: Final[set[str]] = set()
"""What `redacted` hides in this process, beside what has the form of a secret."""


def _shown_field(field: re.Match[str]) -> str:
    secret = _secret(field[0])
    return f"{field[0].removesuffix(secret)}***" if secret else field[0]


def _secret(field: str) -> str:
    """The value of a query's field if it looks like a secret, else ""; without a name it is one."""
    name, mark, value = field.partition("=")
    if not mark:
        return field
    return value if not name or _SECRET_NAME.search(unquote(name)) or _SECRET_VALUE.search(value) else ""

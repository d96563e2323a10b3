"""Settings of a remote model and its server, checked before anything is sent."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UserError
from reflectune.core.parsing import parse_json
from reflectune.core.secrets import (
    conceal,
    conceal_named,
    conceal_url,
    is_url,
    route_of,
    secrets_in,
    shown_options,
    shown_url,
)
from reflectune.core.values import OutputFile, checked_by


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server and one model on it.

    Attributes:
        url: Base URL of the API, e.g. `https://api.openai.com/v1` or `http://localhost:8000/v1`. A password in it is
            sent instead of `key`; a query is sent with every request.
        model: The model's name on the server.
        key: The API key, "" for a server that needs none. It is never in a file, message or fingerprint.
        concurrency: Maximum concurrent requests.
        max_tokens: Maximum tokens of a reply.
        timeout: Seconds to wait for a connection, for a reply to begin, and for its end after that.
        retries: Maximum retries of a request that failed.
        options: Fields merged into every request; one that is None is removed from each.
        input_price: Price of a million tokens sent, in any currency.
        output_price: Price of a million tokens received.
        keys: Prefix of the config keys that name this server, for messages.
        url_key: Config key of `url`, for messages; "" for that prefix and `_url`.
        max_pixels: Maximum pixels of an image that is sent; 0: any.
        guided: True if the server constrains replies to a JSON schema (`response_format`).
        context: Maximum tokens of a prompt and its reply, if the server doesn't report it; 0: unknown.

    Raises:
        UserError: The URL is malformed, or the key can't be sent in a header.
    """

    url: str = field(repr=False)
    model: str
    key: str = field(default="", repr=False)
    concurrency: int = 8
    max_tokens: int = 256
    timeout: float = 120.0
    retries: int = 6
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    input_price: float = 0.0
    output_price: float = 0.0
    keys: str = "llm"
    max_pixels: int = 0
    url_key: str = ""
    guided: bool = False
    context: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key.strip())
        conceal(self.key)
        conceal_url(self.url)
        conceal_named(self.options)
        if problem := url_problem(self.url):
            raise UserError(f"`{self.named}` {problem}")
        if problem := key_problem(self.key):
            raise UserError(f"the API key {problem}; set it again, as one line without spaces or quotes")

    @property
    def named(self) -> str:
        """The config key of the URL."""
        return self.url_key or f"{self.keys}_url"

    @property
    def shown_url(self) -> str:
        """The URL without its secrets, for messages and files."""
        return shown_url(self.url)

    def request(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """Return the body of a chat request: temperature 0 unless `options` or `fields` say otherwise.

        A field that `options` remove stays out: a server that doesn't know it would refuse the request.
        """
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": self.max_tokens}
        removed = {name: None for name, value in self.options.items() if value is None}
        merged = {**body, **self.options, **fields, **removed}
        return {name: value for name, value in merged.items() if value is not None}

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of these tokens."""
        return (prompt_tokens * self.input_price + completion_tokens * self.output_price) / 1e6


def key_problem(key: str) -> str:
    """Return why a key can't be sent in a request's header, without quoting it; "" if it can.

    The HTTP client's error would quote the key.
    """
    if "\n" in key or "\r" in key:
        return "holds a line break"
    if not all("!" <= character <= "~" for character in key):
        return "holds a space, a control character or one that is not ASCII"
    return ""


def read_key(variable: str) -> str:
    """Return the API key in an environment variable; "" if it isn't set."""
    return os.environ.get(variable, "").strip()


def key_problems(setting_name: str, variable: str) -> list[str]:
    """Return the problem of the API key in an environment variable, if there is one. The key is not shown.

    Args:
        setting_name: Setting that names the variable.
        variable: Its value.
    """
    if not re.fullmatch(r"(?:[A-Za-z_][A-Za-z0-9_]*)?", variable):
        return [f"`{setting_name}` must be the name of an environment variable, e.g. OPENAI_API_KEY, not the key"]
    problem, shown = key_problem(read_key(variable)), _shown_variable(setting_name, variable)
    return [f"the API key in {shown} {problem}; set it again, as one line"] if problem else []


def _shown_variable(setting_name: str, variable: str) -> str:
    """Name the variable if it is in capitals; otherwise the name may be the key itself, given by mistake."""
    return f"the variable ${variable}" if variable == variable.upper() else f"the variable that `{setting_name}` names"


def url_problem(url: str) -> str:
    """Return why this can't be a base URL; "" if it can. It isn't quoted, since it may contain a password."""
    return "" if is_url(url) else "must look like https://HOST/v1, found another form (not shown: it may be a secret)"


ApiRoot = Annotated[str, checked_by(lambda url: url_problem(url) if url else "")]


class ConnectionKeys(Settings):
    """Keys of the requests to a server."""

    llm_key_variable: str = setting(
        "OPENAI_API_KEY", "environment variable that holds the API key; never the key itself", secret=True, hashed=False
    )
    llm_concurrency: int = setting(8, "maximum number of concurrent requests", ge=1, hashed=False)
    llm_timeout: float = setting(
        120.0, "seconds to wait for a connection, for a reply to begin, and then for its end", gt=0, hashed=False
    )
    llm_retries: int = setting(
        6, "maximum retries after a rate limit, a server error or a lost connection", ge=0, hashed=False
    )

    def connect(self, url: str, model: str, url_key: str) -> Endpoint:
        """Return the endpoint for another URL setting than `llm_url`, with the API key from the environment."""
        return Endpoint(
            url=url,
            model=model,
            key=read_key(self.llm_key_variable),
            concurrency=self.llm_concurrency,
            timeout=self.llm_timeout,
            retries=self.llm_retries,
            url_key=url_key,
        )


class RemoteConfig(ConnectionKeys):
    """Keys of a remote model; a config that needs one inherits them."""

    llm_url: ApiRoot = setting("", "OpenAI-compatible server, e.g. http://localhost:8000/v1", secret=True)
    llm_model: str = setting("", "name of the model on that server")
    llm_max_tokens: int = setting(256, "maximum tokens per reply", ge=1)
    llm_options: str = setting(
        "", 'JSON merged into every request, e.g. {"seed": 0}; null removes a field', secret=True
    )
    llm_guided: bool = setting(
        False, "constrain replies of a known form (queries, orders) to JSON by `response_format`, as vLLM can"
    )
    llm_context: int = setting(
        0,
        "tokens of a prompt and its reply, to fit documents; 0: `max_model_len` of /v1/models, as vLLM has",
        ge=0,
    )
    llm_input_price: float = setting(0.0, "price of a million tokens sent, to show the cost", ge=0, hashed=False)
    llm_output_price: float = setting(0.0, "price of a million tokens received", ge=0, hashed=False)
    llm_cache: OutputFile = setting("", "file of all replies; default: in the output folder", hashed=False)

    def hashed(self) -> dict[str, Any]:
        """Return the settings that determine the results: of the URL only its path, and no secrets."""
        return super().hashed() | {"llm_url": route_of(self.llm_url), "llm_options": shown_options(self.llm_options)}

    def llm_problems(self) -> list[str]:
        """Return the problems of these settings, one sentence each, if a run uses the remote model.

        A dry run sends nothing and needs no key.
        """
        key = read_key(self.llm_key_variable)
        unusable = key_problems("llm_key_variable", self.llm_key_variable)
        problems = [*unusable]
        if not self.llm_model:
            problems.append("`llm_model` is needed: the name of the model on the server")
        if not self.llm_url:
            problems.append("`llm_url` is needed, e.g. http://localhost:8000/v1")
        elif self._lacks_key(has_key=bool(key or unusable)):
            shown = _shown_variable("llm_key_variable", self.llm_key_variable)
            problems.append(f"`llm_url` is on another machine, and {shown} holds no API key")
        try:
            self._options()
        except UserError as error:
            problems.append(str(error))
        return problems

    def _lacks_key(self, *, has_key: bool) -> bool:
        """Return True if requests will go to another machine without an API key."""
        if has_key or getattr(self, "dry_run", False) or not is_url(self.llm_url):
            return False
        is_local = urlsplit(self.llm_url).hostname in ("localhost", "127.0.0.1", "::1")
        return not is_local and not secrets_in(self.llm_url)

    def endpoint(self) -> Endpoint:
        """Return the server and the model, with the key read from the environment."""
        return Endpoint(
            url=self.llm_url if "?" in self.llm_url else self.llm_url.rstrip("/"),
            model=self.llm_model,
            key=read_key(self.llm_key_variable),
            concurrency=self.llm_concurrency,
            max_tokens=self.llm_max_tokens,
            timeout=self.llm_timeout,
            retries=self.llm_retries,
            options=self._options(),
            input_price=self.llm_input_price,
            output_price=self.llm_output_price,
            guided=self.llm_guided,
            context=self.llm_context,
        )

    def _options(self) -> dict[str, Any]:
        try:
            options = parse_json(self.llm_options or "{}")
        except ValueError as error:
            raise UserError(f"`llm_options` is not valid JSON: {error}") from None
        if not isinstance(options, dict):
            raise UserError(f'`llm_options` must be a JSON object, e.g. {{"seed": 0}}; found {type(options).__name__}')
        return options

"""Settings of the web search tool."""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.secrets import is_url, shown_url
from reflectune.core.values import checked_by
from reflectune.models.remote.endpoint import Endpoint, key_problem


def search_address(url: str) -> str:
    """Return a problem if this can't be a search server's address.

    Plain http is for this machine and private networks only: a query holds a user's picture and question.
    """
    if not url:
        return ""
    if not is_url(url):
        return "must look like https://HOST/api/web_search, found another form (not shown: it may be a secret)"
    if urlsplit(url).scheme == "http" and not _is_near(urlsplit(url).hostname or ""):
        return f"is plain http to another machine (`{shown_url(url)}`); use https"
    return ""


SearchAddress = Annotated[str, checked_by(search_address)]


class WebConfig(Settings):
    """Settings of the web search tool."""

    web_url: SearchAddress = setting(
        "",
        "pmsr_web: search server to POST to; default: the text index, no network",
        secret=True,
    )
    web_key_variable: str = setting(
        "WEB_SEARCH_API_KEY", "environment variable that holds that server's API key; never the key itself", secret=True
    )
    web_concurrency: int = setting(4, "pmsr_web: searches under way at a time", ge=1)
    web_timeout: float = setting(30.0, "pmsr_web: seconds to wait for a connection, and for a reply's next bytes", gt=0)
    web_retries: int = setting(
        4, "pmsr_web: most retries after a rate limit, a server error or a lost connection", ge=0
    )

    @property
    def web_place(self) -> str:
        """The server's address without its secrets, for fingerprints; "" for the text index."""
        return shown_url(self.web_url) if self.web_url else ""

    @cross_check
    def web_problems(self) -> list[str]:
        """Return the problem of a search server's key, if there is one."""
        if not re.fullmatch(r"(?:[A-Za-z_][A-Za-z0-9_]*)?", self.web_key_variable):
            return ["`web_key_variable` must be the name of an environment variable, not the key itself"]
        problem = key_problem(self._web_key())
        return [f"the API key that `web_key_variable` names {problem}; set it again, as one line"] if problem else []

    def web_endpoint(self) -> Endpoint:
        """Return the server, with the key from the environment."""
        return Endpoint(
            url=self.web_url,
            model="",
            key=self._web_key(),
            concurrency=self.web_concurrency,
            timeout=self.web_timeout,
            retries=self.web_retries,
            keys="web",
        )

    def _web_key(self) -> str:
        return os.environ.get(self.web_key_variable, "").strip()


def _is_near(host: str) -> bool:
    """Return True if a host is this machine or on a private network."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_private
    return host == "localhost"

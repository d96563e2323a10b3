"""Settings of `serve`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from reflectune.core.config import Settings, cross_check, setting
from reflectune.inference.config import DatasetSettings
from reflectune.inference.running.config import AskedPipelines, PipelinesConfig

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost")
TOKEN_VARIABLE: Final = "REFLECTUNE_TOKEN"
"""Environment variable of the token that requests must carry."""


class ServerSettings(Settings):
    """Address, access and load of the server."""

    host: str = setting("127.0.0.1", "address to listen on; any but this machine's needs a token")
    port: int = setting(8321, "port to listen on; 0 takes a free one", ge=0, le=65535)
    page: bool = setting(True, "serve the page at / if gradio is installed")
    last_message: bool = setting(
        False, "chat completions: read the last message and image; system prompts and earlier rounds are ignored"
    )
    max_requests: int = setting(64, "maximum concurrent requests; others are refused with 429", ge=1)

    @property
    def token(self) -> str:
        """The token in the environment; "" if none is set."""
        return os.environ.get(TOKEN_VARIABLE, "").strip()

    @cross_check
    def token_problems(self) -> Iterator[str]:
        """Yield the problem of a server that is reachable from other machines without a token."""
        if self.host not in LOCAL_HOSTS and len(self.token) < 16:
            yield (
                f"`host` {self.host} is reachable from other machines: set {TOKEN_VARIABLE} to a token of at least "
                "16 characters, e.g. `openssl rand -hex 16`"
            )


class ServeConfig(ServerSettings, AskedPipelines, PipelinesConfig, DatasetSettings):
    """Serve answers, their traces and searches over HTTP."""

    pipelines: list[str] = setting(
        ["mr2ag"],
        "pipelines to offer; the first answers requests that name none; `--help` lists the keys of those named",
    )
    batch_questions: int = setting(16, "maximum number of questions per batch", ge=1)

    def describe(self) -> str:
        """Describe the server, for `--dry_run`."""
        access = f"a token in {TOKEN_VARIABLE}" if self.token else "no token, for this machine alone"
        return f"would serve {', '.join(self.forms())} of {self.dataset} on {self.host}:{self.port}, with {access}"

"""Run the server until a signal. It then finishes running requests and refuses new ones."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from reflectune.core.errors import UserError
from reflectune.inference.serving.app import create_app
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.service import AnswerService

_GRACE: Final = 5
"""Seconds after which idle connections are closed at shutdown, such as those of an open page."""
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that this machine lacks, such as ::1 in a container without IPv6."""


class DrainingServer(uvicorn.Server):
    """Refuses new requests with 503 after the first SIGTERM or Ctrl-C, and exits when no request is running.

    A second signal exits at once.
    """

    config: uvicorn.Config

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining at the first signal, and exit at the second."""
        load = self.config.app.state.load  # type: ignore[union-attr]
        if load.is_draining:
            self.force_exit = True
            super().handle_exit(sig, frame)
        else:
            print("shutting down after the running requests; send a second signal to exit at once", flush=True)
        load.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return True to exit."""
        load = self.config.app.state.load  # type: ignore[union-attr]
        return await super().on_tick(counter) or (load.is_draining and not load.running)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the address."""
        await super().startup(sockets)
        for listening in self.servers[:1]:
            host, port = listening.sockets[0].getsockname()[:2]
            print(f"serving on http://{host}:{port}", flush=True)


def serve(config: ServeConfig) -> None:
    """Load a config's models and serve them until a signal.

    Raises:
        UserError: A model, the index or the data set can't be read, or the port can't be used.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(it) for it in bound(config.host, config.port)]  # fails before models are loaded
        service = stack.enter_context(AnswerService(config))
        print(f"pipelines: {', '.join(service.pipelines)}", flush=True)
        app = create_app(service, config)
        if config.page and find_spec("gradio"):
            from reflectune.inference.serving.page import mount_page  # slow to import

            mount_page(app, service)
        DrainingServer(server_config(app, config.host, config.port)).run(sockets)


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to a host's addresses, which don't listen yet. Addresses that the machine lacks are skipped.

    Raises:
        UserError: The host is unknown, none of its addresses is this machine's, or one is in use.
    """
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                sockets.append(_bound(family, kind, address))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                lacking = error
        if lacking and not sockets:
            raise lacking
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise UserError(f"`host`, `port`: {host}:{port} can't be used: {error.strerror}; choose others") from error
    return sockets


def _bound(family: int, kind: int, address: Any) -> socket.socket:
    """Return a socket bound to one address."""
    opened = socket.socket(family, kind)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
    except OSError:
        opened.close()
        raise
    return opened


def server_config(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """Return the settings of the HTTP server. Requests are not logged: `/metrics` counts them."""
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
    return uvicorn.Config(app, host=host, port=port, timeout_graceful_shutdown=_GRACE, **quiet)

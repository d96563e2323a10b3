"""Serve a checkpoint over HTTP: `reflectune serve --config FILE.yaml`."""

from __future__ import annotations

from importlib.util import find_spec

from reflectune.core.command import command
from reflectune.core.errors import UserError
from reflectune.inference.serving.config import ServeConfig


@command(ServeConfig)
def serve(config: ServeConfig) -> None:
    """Serve answers, their traces and searches over HTTP."""
    if missing := [name for name in ("fastapi", "uvicorn", "prometheus_client") if not find_spec(name)]:
        raise UserError(f"the server needs {', '.join(missing)}: pip install 'reflectune[serve]'")
    from reflectune.inference.serving import server  # slow to import

    if config.dry_run:
        print(server.describe(config))
        return
    server.serve(config)

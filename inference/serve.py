"""Serve a checkpoint over HTTP: `reflectune serve --config FILE.yaml`."""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.inference.serving.config import ServeConfig


@command(ServeConfig)
def serve(config: ServeConfig) -> None:
    """Serve answers, their traces and searches over HTTP."""
    if config.dry_run:
        print(config.describe())
        return
    from reflectune.inference.serving import server  # slow to import, and of an extra

    server.serve(config)


if __name__ == "__main__":
    serve.main()

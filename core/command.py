"""Make a command from a config class and a function: `@command(SftConfig, writes="output_dir")`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic

from reflectune.core.config import Config, given_values, parse_config
from reflectune.core.entry_point import entry_point
from reflectune.core.flags import help_text
from reflectune.core.launch_variables import has_launcher
from reflectune.core.launching import ending_together
from reflectune.core.outputs import hold
from reflectune.core.rejected import ROWS_LEFT_OUT


def command(
    kind: type[Config], *, writes: str | Sequence[str] = ()
) -> Callable[[Callable[[Config], int | None]], Command[Config]]:
    """Decorate a function that carries out a config.

    Args:
        kind: The config class.
        writes: The keys that name outputs. They are locked against other processes, unless the config
            `writes_nothing`.

    Example:
        >>> @command(SftConfig, writes="output_dir")
        ... def sft(config: SftConfig) -> None:
        ...     '''Fine-tune a model on reflection data.'''
        ...     from reflectune.train.runs.fine_tune import fine_tune  # slow to import: after the config is right
        ...     fine_tune(config)
        >>> sft.main(["--config", "configs/examples/miniature/sft.yaml"])
    """
    keys = (writes,) if isinstance(writes, str) else tuple(writes)
    return lambda function: Command(kind, function, keys)


class Command(Generic[Config]):
    """A function with the config class that it takes. Call it with a config, or `main` with a command line.

    Attributes:
        kind: The config class.
        writes: The keys that name outputs.
    """

    __name__: str

    def __init__(self, kind: type[Config], function: Callable[[Config], int | None], writes: Sequence[str]) -> None:
        functools.update_wrapper(self, function)
        self.kind, self.writes = kind, tuple(writes)
        self._function = function

    def __call__(self, config: Config) -> int | None:
        """Carry out a config. Return the exit status if it is not 0."""
        return self._function(config)

    def main(self, argv: Sequence[str] | None = None, program: str | None = None) -> None:
        """Parse a command line, hold the outputs and carry out the config. `--help` prints the keys.

        A failure in one process of a launch ends them all.

        Exit status: the function's, but 0 for `ROWS_LEFT_OUT` under a launcher; 2 for a mistake in the config or a path
        that can't be used, 130 for Ctrl-C.

        Args:
            argv: The command line without the program's name; `sys.argv[1:]` if None.
            program: The program's name in the help.
        """
        words = sys.argv[1:] if argv is None else argv

        @entry_point
        def run() -> None:
            given = [word for word in words if word not in ("--help", "-h")]
            if len(given) < len(words):
                unread = self.kind.unread_keys(given_values(self.kind, given))
                print(help_text(self.kind, program or Path(sys.argv[0]).name, str(self.__doc__), unread))
                return
            config = parse_config(self.kind, words)
            outputs: list[Any] = [getattr(config, key) for key in self.writes]
            hold(*outputs, unless=config.writes_nothing)
            with ending_together():
                status = self(config)
            if status and not (status == ROWS_LEFT_OUT and has_launcher()):  # a launcher would report a crash
                sys.exit(status)

        run()

"""Fetch public files: `python -m reflectune.data_builders.download --config LIST.yaml [--list | --check]`.

The list says of each file where it is, how large, under which licence, and which config reads it. Without a flag, what
the Hub has is fetched, and how the rest is had is printed. Exit status: 0 if all that is needed is there, else 1.
"""

from __future__ import annotations

import sys

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.downloading.config import DownloadConfig


@entry_point
def main() -> None:
    """Parse the list, then print, check or fetch."""
    (config,) = parse_config(DownloadConfig)
    hold(config.root, unless=config.list or config.check)
    from reflectune.data_builders.downloading.checking import check, is_complete  # slow to import, as what follows
    from reflectune.data_builders.downloading.listing import listed, reported

    if config.list:
        print(listed(config))
        return
    if config.check:
        states = check(config)
        print(reported(states))
    else:
        from reflectune.data_builders.downloading.fetching import fetch

        states = fetch(config)
    if not is_complete(states):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Fetch a knowledge base's pictures: `python -m reflectune.data_builders.fetch_pictures --config configs/….yaml`.

Reads the addresses that the knowledge base names, fetches each picture once, and lists what can't be had. Give the
folder to a conversion as `knowledge_images`. Exit status: 0 if every picture is there, 3 if some are not.
"""

from __future__ import annotations

import sys

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.data_builders.web_pictures.config import PictureConfig


@entry_point
def main() -> None:
    """Parse the config, then fetch."""
    (config,) = parse_config(PictureConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.web_pictures.run import FAILURES, fetch_pictures, preview  # slow to import

    if config.dry_run:
        print(preview(config))
        return
    counts = fetch_pictures(config)
    told = ", ".join(f"{counts[state]:,} {state}" for state in ("there", "gone", "refused", "failed") if counts[state])
    print(f"{config.output}: {told}")
    if counts.total() > counts["there"]:
        print(f"what isn't there is listed in {config.output}/{FAILURES}; `failed` is tried again by the same command")
        sys.exit(ROWS_LEFT_OUT)


if __name__ == "__main__":
    main()

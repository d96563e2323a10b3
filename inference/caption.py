"""Caption the images of a knowledge base: `reflectune caption --knowledge DIR --base_model M --output DIR`.

Writes `captions.jsonl`, which `build_index --captions` reads. Exit status: 0, or 3 if images were left out.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.inference.running.config import CaptionConfig


@command(CaptionConfig, writes="output")
def caption(config: CaptionConfig) -> int | None:
    """Caption the first image of each entry of a knowledge base."""
    from reflectune.inference.running.captions import run  # slow to import: after the config is right

    return ROWS_LEFT_OUT if run(config) else None


if __name__ == "__main__":
    caption.main()

"""Measure how often retrieval finds the right entries: `python -m reflectune.inference.recall --dataset DIR …`.

Article recall at k and the mean reciprocal rank, by split and by the weights of titles and of the question's text; for
passages searched by text, passage recall and pseudo-relevance recall; the misses of an approximate search; all with
95 % intervals. No model answers anything: this chooses an encoder and a `title_weight` before training.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.inference.running.config import RecallConfig


@entry_point
def main() -> None:
    """Read the config, search, and print a table for each split."""
    config = parse_config(RecallConfig)
    hold(config.output, unless=not config.output)
    from reflectune.core.durable import write_json  # slow to import, as what follows: after the config is right
    from reflectune.inference.running.recall import run

    figures = run(config)
    if config.output:
        write_json(config.output, figures)


if __name__ == "__main__":
    main()

"""Measure how often retrieval finds the right entries: `reflectune recall --dataset DIR …`.

Article recall at k and the mean reciprocal rank, by split and by the weights of titles and of the question's text; for
passages searched by text, passage recall and pseudo-relevance recall; the misses of an approximate search; all with
95 % intervals. No model answers anything: this chooses an encoder and a `title_weight` before training.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.inference.running.config import RecallConfig


@command(RecallConfig, writes="output")
def recall(config: RecallConfig) -> None:
    """Measure how often retrieval finds the right entries and passages."""
    from reflectune.core.durable import write_json  # slow to import, as what follows: after the config is right
    from reflectune.inference.running.recall import run

    figures = run(config)
    if config.output:
        write_json(config.output, figures)

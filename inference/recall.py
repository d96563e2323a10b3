"""Measure how often retrieval finds the right entries: `reflectune recall --dataset DIR …`.

Prints article recall@k and the mean reciprocal rank of entries, by split and by the weights of titles and of the
question's text; passage recall and pseudo-relevance recall of passages; and the overlap of an approximate search with
an exact one. All have 95 % intervals. No model answers: use it to choose an encoder and `title_weight` before training.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.inference.running.config import RecallConfig


@command(RecallConfig, writes="output")
def recall(config: RecallConfig) -> None:
    """Measure how often retrieval finds the right entries and passages."""
    from reflectune.core.durable import write_json  # slow to import, so after the config is checked
    from reflectune.inference.running.recall import run

    figures = run(config)
    if config.output:
        write_json(config.output, figures)


if __name__ == "__main__":
    recall.main()

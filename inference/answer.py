"""Answer one question about one image: `reflectune answer --config … --image X --question "…"`."""

from __future__ import annotations

import json

from reflectune.core.command import command
from reflectune.inference.running.config import AnswerConfig


@command(AnswerConfig)
def answer(config: AnswerConfig) -> None:
    """Answer one question about an image, and show how."""
    from reflectune.inference.report.words import (
        explain,  # slow to import, so only once the config is known to be right
    )
    from reflectune.inference.running import single
    from reflectune.inference.trace import to_row

    if config.dry_run:
        print(single.describe(config))
        return
    trace = single.answer(config)
    print(json.dumps(to_row(trace), indent=2, ensure_ascii=False) if config.as_json else explain(trace))

"""Answer one question about one image: `python -m reflectune.inference.answer --config … --image X --question "…"`."""

from __future__ import annotations

import json

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.inference.running.config import AnswerConfig


@entry_point
def main() -> None:
    """Read the config, answer, and print the decision, the passages with their scores, and the answer."""
    config = parse_config(AnswerConfig)
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


if __name__ == "__main__":
    main()

"""Compare a server with the local engine: `reflectune agreement --model C --server URL --dataset D --index I`.

Exit status 0 if no probability differs by more than `tolerance`, else 1.
"""

from __future__ import annotations

import sys

from reflectune.core.command import command
from reflectune.inference.running.config import AgreementConfig


@command(AgreementConfig, writes="output")
def agreement(config: AgreementConfig) -> None:
    """Compare a checkpoint behind a server with the local engine: gates, answers, speed."""
    from reflectune.core.durable import write_json  # slow to import, so only once the config is known to be right
    from reflectune.inference.running.agreement import describe, run, table

    if config.dry_run:
        print(describe(config))
        return
    figures = run(config)
    if config.output:
        write_json(config.output, figures)
    print(table(figures))
    if not figures["agrees"]:
        sys.exit(1)


if __name__ == "__main__":
    agreement.main()

"""Print a paper's ablation tables in miniature, each in about 40 minutes.

python -m reflectune.examples.miniature.papers_tables --limit 150 --reranker embedding --reranker_model miniature/text \
    --output runs/tables_mr2ag
python -m reflectune.examples.miniature.papers_tables --paper mmkb_rag --probe_limit 800 --limit 80 --equal_at 0.5 \
    --min_steps 80 --output runs/tables_mmkb
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.core.launching import launch_state
from reflectune.examples.miniature.tables.config import TablesConfig


@command(TablesConfig, writes="output")
def papers_tables(config: TablesConfig) -> None:
    """Print a paper's ablation tables in miniature."""
    from reflectune.examples.miniature.tables.run import describe, run  # slow to import

    if config.dry_run:
        print(describe(config))
        return
    from reflectune.examples.miniature.tables.layout import markdown

    record = run(config)
    if launch_state().is_main_process:
        print(markdown(record))
        print(f"tables: {Path(config.output, 'tables.md')}")


if __name__ == "__main__":
    papers_tables.main()

"""Score a prediction file: `reflectune score --predictions P --dataset D [--metric …] [--against Q]`.

P is a file of InfoSeek's, EchoSight's, ReflectiVA's or PMSR's layout, or our traces; D a data set folder.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from reflectune.core.command import command
from reflectune.core.durable import write_json
from reflectune.metrics.config import ScoreConfig


@command(ScoreConfig, writes=("output", "submission"))
def score(config: ScoreConfig) -> None:
    """Score a prediction file, or write it for an official program."""
    if config.dry_run:
        metric = "" if config.submission else config.scored_by(config.dataset)
        purpose = f"write {config.submission}" if config.submission else f"score by {metric} ({config.mode})"
        print(f"would {purpose}: {config.predictions} on {config.dataset}")
        return
    # slow to import, so only once the config is known to be right
    from reflectune.formats.dataset import Dataset, held_out_splits

    dataset, chosen = Dataset(Path(config.dataset)), config.splits or held_out_splits(config.dataset)
    questions = [question for split in chosen for question in dataset.questions(split)]
    if config.submission:
        from reflectune.metrics.scoring.submission import layout_for, write_submission

        official = Path(config.official) if config.official else None
        message = write_submission(
            Path(config.submission),
            layout_for(config.scored_by(config.dataset)),
            Path(config.predictions),
            questions,
            official,
            answered_splits_only=not config.splits,
            fill=config.fill_missing,
        )
        print(message)
        return
    from reflectune.metrics.judging.judges import PROTOCOLS, Judge
    from reflectune.metrics.reporting.score_report import lines, score_files
    from reflectune.models.remote.client import RemoteModel

    files = [Path(path) for path in (config.predictions, config.against) if path]
    with ExitStack() as stack:
        judge = None
        if config.judge:
            model = stack.enter_context(RemoteModel(config.endpoint(), config.judge_cache))
            judge = Judge(PROTOCOLS[config.judge], config.llm_model, partial(model.texts, desc="judge"))
        scoring = (config.scored_by(config.dataset), config.mode, config.open_bem(config.device), judge)
        report = score_files(files, questions, *scoring, answered_splits_only=not config.splits, seed=config.seed)
        if config.judge:
            print(model.summary())
    report["dataset"] = {"folder": config.dataset, "fingerprint": dataset.fingerprint}
    if config.output:
        write_json(config.output, report)
    print("\n".join(lines(report)))


if __name__ == "__main__":
    score.main()

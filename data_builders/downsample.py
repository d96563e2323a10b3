"""Keep questions that are unlike each other: `python -m reflectune.data_builders.downsample --dataset DIR …`.

The greedy downsampling of MI-RAG's appendix G. Writes a data set folder that `evaluate` and the other commands read
like the whole one: its pictures and its knowledge base stay where they are. A run that was cut off goes on where it
stopped when the same command is given again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, parse_config, setting
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.models.names import encoder_name
from reflectune.retrieval.encoders.settings import Pooling


@dataclass
class DownsampleConfig:
    """Of which questions to keep how many, compared by what, and where to."""

    dataset: str = setting("", "data set folder")
    splits: list[str] = setting(
        ["val_unseen_question", "val_unseen_entity"], "splits, read one after the other", check=checks.split_name
    )
    output: str = setting("", "data set folder for the questions kept", check=checks.output_of("dataset.json"))
    encoder: str = setting(
        "miniature/text", "miniature/text, pocket/text, a folder, or a hub id, owner/name[@COMMIT]", check=encoder_name
    )
    pooling: Pooling = setting("auto", "of the encoder: mean, last or cls; auto: as its model card says")
    threshold: float | None = setting(
        None, "cosine above which a question is too like a kept one; unset: found by `questions`", low=-1, high=1
    )
    questions: int = setting(500, "about how many to keep; MI-RAG: 500; a `threshold` that is set decides", low=1)
    tolerance: float = setting(0.05, "share that the number kept may differ from `questions`", low=0, high=1)
    device: str = setting("auto", "cpu, cuda, cuda:1, or auto", check=checks.device)
    dry_run: bool = setting(False, "count the questions, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        from reflectune.formats.dataset import split_issues  # slow to import

        issues = [f"`{name}` is needed" for name in ("dataset", "splits", "output") if not getattr(self, name)]
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            issues.append(
                f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world or convert wrote"
            )
        if again := sorted({split for split in self.splits if self.splits.count(split) > 1}):
            issues.append(f"`splits` names {', '.join(again)} twice; name each once")
        return issues + bound_problems(self, DownsampleConfig) + split_issues("splits", self.dataset, self.splits)


@entry_point
def main() -> None:
    """Parse the config, then keep questions."""
    (config,) = parse_config(DownsampleConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.core.devices import find_device  # slow to import, as what follows: after the config is right
    from reflectune.data_builders.downsampling.run import Choice, lines, write_subset
    from reflectune.formats.dataset import Dataset
    from reflectune.retrieval.encoders.checkpoints import find_checkpoint
    from reflectune.retrieval.encoders.presets import text_settings
    from reflectune.retrieval.encoders.text_encoder import TextEncoder

    dataset = Dataset(Path(config.dataset))
    if config.dry_run:
        total = sum(1 for split in config.splits for _ in dataset.stream(split))
        told = f"about {config.questions:,}" if config.threshold is None else f"those below {config.threshold:g}"
        print(f"would keep {told} of {total:,} questions of {', '.join(config.splits)}; nothing was written")
        return
    settings = text_settings(config.encoder, pooling=config.pooling, similarity="cosine")
    device = find_device(config.device)
    encoder = TextEncoder(find_checkpoint(config.encoder), settings, device, "set `pooling` to mean, last or cls")
    choice = Choice(tuple(config.splits), config.threshold, config.questions, config.tolerance)
    manifest = write_subset(dataset, encoder, choice, Path(config.output))
    print(*lines(manifest, config.output), sep="\n")


if __name__ == "__main__":
    main()

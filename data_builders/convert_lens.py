"""E-VQA's published Lens results as ranked entities: `python -m reflectune.data_builders.convert_lens --lens FILE …`.

Writes a JSONL file that `ranked_entities` takes in place of an index: a row for each picture of a data set's questions
that Google Lens was asked about.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from reflectune.core.config import Settings, cross_check, parse_config, setting
from reflectune.core.errors import UserError, entry_point
from reflectune.core.outputs import hold
from reflectune.core.values import InputFile, OutputFile, SplitName


class LensConfig(Settings):
    """Which pictures' results to take, from where, and where to."""

    lens: InputFile = setting("", "lens_entities.csv of Encyclopedic-VQA", needed="")
    dataset: str = setting("", "data set folder that convert made of Encyclopedic-VQA", needed="")
    splits: list[SplitName] = setting(["test"], "whose pictures", needed="")
    inaturalist: InputFile = setting("", "val.json of iNaturalist 2021: file names of its pictures")
    output: OutputFile = setting("", "JSONL file for the ranked entities", needed="")

    @cross_check
    def lens_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        from reflectune.formats.dataset import split_issues  # slow to import

        issues: list[str] = []
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            issues.append(f"`dataset`: {self.dataset} has no dataset.json; give a folder that convert wrote")
        return issues + split_issues("splits", self.dataset, self.splits)


def run(config: LensConfig) -> None:
    """Write the file, and print how many pictures have a ranking.

    Raises:
        UserError: The file of Lens is damaged, or it has a ranking for none of the pictures.
    """
    from reflectune.core.durable import write_atomically  # slow to import, as what follows: after the config is right
    from reflectune.data_builders.readers.evqa_lens import lens_rankings
    from reflectune.formats.dataset import Dataset

    dataset = Dataset(Path(config.dataset))
    pictures = {question.image for split in config.splits for question in dataset.stream(split)} - {""}
    inaturalist = Path(config.inaturalist) if config.inaturalist else None
    rankings = {ranking.image: ranking for ranking in lens_rankings(Path(config.lens), sorted(pictures), inaturalist)}
    if not rankings:
        raise UserError(
            f"{config.lens} has a row for none of the {len(pictures):,} pictures of {', '.join(config.splits)} in "
            f"{config.dataset}; it is about E-VQA's test split, and iNaturalist's pictures need `inaturalist`"
        )
    rows = [dataclasses.asdict(ranking) for ranking in rankings.values()]
    lines = [{name: value for name, value in row.items() if value is not None} for row in rows]
    write_atomically(config.output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    empty = sum(not ranking.entities for ranking in rankings.values())
    print(f"{config.output}: rankings of {len(rankings):,} of {len(pictures):,} pictures, {empty:,} of them empty")


@entry_point
def main() -> None:
    """Parse the config, then convert."""
    config = parse_config(LensConfig)
    hold(config.output)
    run(config)


if __name__ == "__main__":
    main()

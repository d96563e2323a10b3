"""E-VQA's published Lens results as ranked entities: `python -m reflectune.data_builders.convert_lens --lens FILE …`.

Writes a JSONL file that `ranked_entities` takes in place of an index: a row for each picture of a data set's questions
that Google Lens was asked about.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, parse_config, setting
from reflectune.core.errors import UserError, entry_point
from reflectune.core.outputs import hold


@dataclass
class LensConfig:
    """Which pictures' results to take, from where, and where to."""

    lens: str = setting("", "lens_entities.csv of Encyclopedic-VQA", check=checks.file)
    dataset: str = setting("", "data set folder that convert made of Encyclopedic-VQA")
    splits: list[str] = setting(["test"], "whose pictures", check=checks.split_name)
    inaturalist: str = setting("", "val.json of iNaturalist 2021: file names of its pictures", check=checks.file)
    output: str = setting("", "JSONL file for the ranked entities", check=checks.output_file)

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        from reflectune.formats.dataset import split_issues  # slow to import

        issues = [f"`{name}` is needed" for name in ("lens", "dataset", "splits", "output") if not getattr(self, name)]
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            issues.append(f"`dataset`: {self.dataset} has no dataset.json; give a folder that convert wrote")
        return issues + bound_problems(self, LensConfig) + split_issues("splits", self.dataset, self.splits)


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
    (config,) = parse_config(LensConfig)
    hold(config.output)
    run(config)


if __name__ == "__main__":
    main()

"""List a knowledge base's pictures that are test pictures: `python -m reflectune.data_builders.find_duplicates …`.

Compares perceptual hashes, and writes what `leave_out` of `build_index` takes. A run that was cut off goes on where it
stopped when the same command is given again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from reflectune.core.config import Settings, cross_check, parse_config, setting
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.core.values import SplitName, output_of


class DuplicatesConfig(Settings):
    """Whose pictures to compare with which knowledge base's, and where to."""

    dataset: str = setting("", "data set folder whose pictures are the test pictures", needed="")
    splits: list[SplitName] = setting(["val_unseen_question", "val_unseen_entity"], "whose pictures", needed="")
    knowledge: str = setting("", "the knowledge base; default: the data set's")
    distance: int = setting(0, "bits of 64 that the hashes of near-duplicates may differ in; PMSR: 0", ge=0, le=64)
    output: Annotated[str, output_of()] = setting("", "folder for near_duplicates.jsonl and hashes.jsonl", needed="")
    dry_run: bool = setting(False, "count the pictures, and stop")

    @cross_check
    def duplicates_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        from reflectune.formats.dataset import split_issues  # slow to import

        issues: list[str] = []
        for key, marker in (("dataset", "dataset.json"), ("knowledge", "kb.json")):
            if (folder := getattr(self, key)) and not Path(folder, marker).is_file():
                issues.append(f"`{key}`: {folder} has no {marker}; give a folder that build_world or convert wrote")
        return issues + split_issues("splits", self.dataset, self.splits)


def run(config: DuplicatesConfig) -> None:
    """Write the list, and print how many there are.

    Raises:
        UserError: See `find_near_duplicates`.
    """
    from reflectune.core.durable import write_atomically  # slow to import, as what follows: after the config is right
    from reflectune.formats.dataset import Dataset
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.retrieval.indexes.near_duplicates import LIST, as_lines, find_near_duplicates

    dataset = Dataset(Path(config.dataset))
    kb = KnowledgeBase(config.knowledge) if config.knowledge else dataset.knowledge
    pictures = sorted({question.image for split in config.splits for question in dataset.stream(split)} - {""})
    if config.dry_run:
        told = f"would compare {sum(kb.image_counts()):,} pictures of {kb.folder} with {len(pictures):,} of "
        print(f"{told}{', '.join(config.splits)}\ninto {config.output}; nothing was written")
        return
    folder, distance = Path(config.output), config.distance
    duplicates, counts = find_near_duplicates(kb, pictures, dataset.image_roots, folder, distance=distance)
    write_atomically(folder / LIST, as_lines(duplicates))
    tested, entries = len({each.of for each in duplicates}), len({each.entry for each in duplicates})
    print(
        f"{folder / LIST}: {len(duplicates):,} of {counts['pictures']:,} pictures, of {entries:,} entries, are within "
        f"{distance} bits of {tested:,} of {counts['test_pictures']:,} test pictures"
    )
    if counts["unreadable"]:
        print(f"  {counts['unreadable']:,} pictures of the knowledge base can't be read and were not compared")


@entry_point
def main() -> None:
    """Parse the config, then compare."""
    config = parse_config(DuplicatesConfig)
    hold(config.output, unless=config.dry_run)
    run(config)


if __name__ == "__main__":
    main()

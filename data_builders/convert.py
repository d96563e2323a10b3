"""Convert data: `reflectune convert --config configs/data/infoseek.yaml`.

Exit status: 0 if every row was good, 3 if some were left out (`on_error: skip`) or found bad (`--check`).
"""

from __future__ import annotations

from typing import Any

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.data_builders.conversion.config import ConvertConfig


@command(ConvertConfig, writes="output")
def convert(config: ConvertConfig) -> int | None:
    """Convert a data set or a knowledge base to a data set folder."""
    from reflectune.data_builders.conversion.run import check, convert, preview

    if config.dry_run:
        print(preview(config))
        return None
    if config.check:
        numbers, first = check(config)
        print("\n".join([table(numbers), *first]))
        if more := sum(numbers["dropped"].values()) - len(first):
            print(f"and {more:,} more; `on_error: skip` lists every bad row in rejected.jsonl")
    else:
        numbers, new = convert(config)
        print(table(numbers))
        print(f"written to {config.output}" if new else f"nothing to do: {config.output} is already converted")
        if numbers["dropped"]:
            print(
                f"rows left out are listed in {config.output}/rejected.jsonl; once they are fixed, delete the folder "
                "and convert again"
            )
    if numbers["dropped"]:
        return ROWS_LEFT_OUT
    return None


def table(numbers: dict[str, Any]) -> str:
    """Return the counts of a data set and of its rejected rows, as lines."""
    scored_by = numbers.get("metric") or "nothing yet: set `metric`" if numbers["counts"] else ""
    lines = [f"{numbers['name']}:" + (f" scored by {scored_by}" if scored_by else "")]
    for split, counts in numbers["counts"].items():
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        lines.append(f"  {split:<24} {sum(counts.values()):>12,} questions ({kinds})")
    if numbers["counts"]:
        shown = ", ".join(f"{count:,} {kind}" for kind, count in numbers["images"].items())
        lines.append(f"  {'images of questions':<24} {shown}")
    lines += [f"  {'kinds of questions':<24} {_kinds(counts)}"] if (counts := numbers.get("kinds")) else []
    if unanswered := numbers.get("unanswered"):
        lines.append(f"  {'without an answer':<24} {unanswered:>12,} questions: they can't be trained on or scored")
    if knowledge := numbers.get("knowledge"):
        lines.append(
            f"  {'knowledge base':<24} {knowledge['entries']:>12,} entries with {knowledge['images']:,} images; "
            f"{knowledge['entries_without_image']:,} entries have none"
        )
        if gold := knowledge.get("gold_entries"):
            found = f"{gold['found']:,} of the {gold['named']:,} that questions name"
            if missing := gold.get("missing"):
                found += f"; the knowledge base lacks {gold['named'] - gold['found']:,}, e.g. {', '.join(missing)}"
            lines.append(f"  {'gold entries':<24} {found}")
    lines.append(f"  {'rows left out':<24} {sum(numbers['dropped'].values()):>12,}")
    lines += [f"    {count:>10,} × {reason}" for reason, count in numbers["dropped"].items()]
    return "\n".join(lines)


def _kinds(counts: dict[str, int]) -> str:
    """Return the numbers of knowledge-based, visual and unknown questions as a text."""
    by_entities = counts.get("by_entities", 0)
    shown = f"{counts.get('knowledge_based', 0) + by_entities:,} knowledge-based"
    if by_entities:
        shown += f" ({by_entities:,} of them without `requires_retrieval`, since they name entities)"
    shown += f", {counts.get('visual', 0):,} visual"
    if unknown := counts.get("unknown", 0):
        shown += f", {unknown:,} unknown (without `requires_retrieval` and without entities)"
    return shown


if __name__ == "__main__":
    convert.main()

"""The card of a gallery: contents, counts, sources and licences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.sources.packages import SOURCES


def card(manifest: Mapping[str, Any], sources: Sequence[str], entities: Sequence[GalleryEntity]) -> str:
    """Return the text of README.md, with its YAML front matter.

    Args:
        manifest: Content of dataset.json.
        sources: Keys of the gallery's sources.
        entities: Depicted articles.
    """
    asked = [entity for entity in entities if entity.role != "shown"]
    by_kind = Counter(entity.category for entity in asked)
    used = Counter(image.source for entity in entities for image in (entity.shown, *entity.asked))
    lines = [
        "---",
        yaml.safe_dump(_front_matter(manifest), sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# {manifest['name']}",
        "",
        "Knowledge-based visual questions about real images, with real encyclopedia articles. The image in a "
        "question is by another hand than the one in the knowledge base. Every knowledge question's answer is stated "
        "by the article, in its summary or in a section of facts; questions of two hops name both articles.",
        "",
        f"{manifest['entries']:,} articles; {len(asked):,} of their subjects are asked about, "
        f"{len(entities) - len(asked):,} more have an image.",
        "",
        "| split | questions | by kind |",
        "|---|---|---|",
        *(
            f"| {split} | {sum(manifest['counts'][split].values()):,} | "
            f"{', '.join(f'{kind} {count}' for kind, count in kinds.items())} |"
            for split, kinds in manifest["kinds"].items()
        ),
        "",
        "`test_*` and `two_hop_test` are for final numbers: choose nothing by them. `look_alikes.json` lists articles "
        "whose images are easily taken for each other, `images.jsonl` whose each image is, `links.html` shows "
        "all links for proof-reading.",
        "",
        "| asked about | entities |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in by_kind.most_common()),
        "",
        "## Sources",
        "",
        "The images and texts stay under their own licences. Whoever passes this folder on has to keep to all of "
        "them: some ask for attribution, some for the same licence.",
        "",
        "| source | what | licence | by | images |",
        "|---|---|---|---|---|",
        *(
            f"| {SOURCES[name].package} | {SOURCES[name].holds} | {SOURCES[name].package.licence} | "
            f"{SOURCES[name].credit} | {used[name] or ''} |"
            for name in sources
        ),
        "",
    ]
    return "\n".join(lines)


def _front_matter(manifest: Mapping[str, Any]) -> dict[str, Any]:
    files = [{"split": split, "path": f"questions/{split}.parquet"} for split in manifest["counts"]]
    return {
        "pretty_name": manifest["name"],
        "language": ["en"],
        "license": "other",
        "task_categories": ["visual-question-answering"],
        "tags": ["knowledge-based-vqa", "retrieval-augmented-generation", "reflectune"],
        "configs": [{"config_name": "default", "data_files": files}],
    }

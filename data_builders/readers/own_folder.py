"""A user's folder as a knowledge base: an article is a file `NAME.md` or `NAME.txt`, its image `NAME.jpg`.

An article's id is its path without the extension, in composed letters (NFC). Its title is a first line `# Title`, else
the file's name. Lines `## Heading` begin sections. Extensions are read in any case. Hidden files and folders are not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.paths import OutsideRoot, resolve_below
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Entry, Section
from reflectune.data_builders.readers.files import visible
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import SourceRow, text

_HEADING = re.compile(r"^#{2,6}[ \t]+(.+)$", re.MULTILINE)


def read_source(source: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the files below a folder as rows, by path. A link that leads out of the folder goes to `reject`.

    Raises:
        UserError: The folder is missing, or has no article.
    """
    if not source.is_dir():
        raise UserError(f"folder not found: {source}; name the folder that the articles are in")
    files = sorted(path for path in visible(source, source.rglob("*")) if path.suffix.lower() in (".md", ".txt"))
    if not files:
        raise UserError(f"no *.md or *.txt in {source}; put one file per article there")
    for file in files:
        name = file.relative_to(source).with_suffix("").as_posix()
        row = SourceRow({"id": unicodedata.normalize("NFC", name), "path": name}, file, 1)
        try:
            row["text"] = resolve_below(file.absolute(), source).read_text(encoding="utf-8-sig")
        except OutsideRoot as error:
            reject(row.bad("", str(error), "or delete the link"))
            continue
        except UnicodeDecodeError as error:
            reject(row.bad("", f"is not UTF-8 ({error.reason} at byte {error.start})", "save it as UTF-8"))
            continue
        yield 1, row


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a file."""
    name, content = text(row, "id"), text(row, "text")
    first, _, rest = content.partition("\n")
    title, body = (first[2:].strip(), rest) if first.startswith("# ") else (Path(name).name, content)
    lead, *marked = _HEADING.split(body)
    sections = [Section("", lead.strip())] if lead.strip() else []
    sections += [Section(marked[i].strip(), marked[i + 1].strip()) for i in range(0, len(marked), 2)]
    if not sections:
        raise row.bad("", "has a title and no text", "write the article below its title")
    image = images.of_article(row, text(row, "path"))
    summary = sections[0].text.split("\n\n")[0]
    return Entry(name, title, summary=summary, images=(image,) if image else (), sections=tuple(sections))

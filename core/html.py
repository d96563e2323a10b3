"""HTML pages by jinja2, which escapes every value.

Templates lie in `templates/` next to the module that fills them, and are named by their path in the tree, e.g.
`core/templates/table.html`, so that each can import the others' macros.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

ROOT = Path(__file__).resolve().parents[1]
"""The folder of all packages, in a checkout as in site-packages."""


def render(template: str, **values: Any) -> Markup:
    """Fill a template.

    Args:
        template: Path of the template, e.g. `core/templates/table.html`.
        values: Variables of the template. Text is escaped; results of `render` are not.

    Raises:
        jinja2.UndefinedError: The template uses a variable that is not given.
    """
    return Markup(environment().get_template(template).render(values))


@dataclass(frozen=True)
class Asset:
    """A style sheet or script of ours, which is put into a page unescaped.

    Attributes:
        text: Content.
        hash: Hash for a Content-Security-Policy, `sha256-…`.
    """

    text: str
    hash: str


def read_asset(*paths: str) -> Asset:
    """Read a style sheet or script, e.g. `inference/report/page.css`; several are joined."""
    text = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in paths)
    return Asset(text, "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


@dataclass(frozen=True)
class Cell:
    """A table's cell with a second, smaller text, e.g. the interval of a score."""

    text: str
    small: str


@dataclass(frozen=True)
class Table:
    """A table for the macro `table` of `core/templates/table.html`.

    Attributes:
        head: Column names; empty for a table without a head.
        rows: Cells of each row; the first names the row.
        caption: A sentence above the table, or "".
        prose: Index of the column that holds sentences, if there is one.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    prose: int | None = None


@functools.cache
def environment() -> Environment:
    """Return the environment of all templates of the package, which escapes HTML."""
    return Environment(
        loader=FileSystemLoader(ROOT), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

"""HTML: one jinja2 environment that escapes every value, the frame of a page, and tables.

Templates are `.html` files in the folder `templates/` beside the module that fills them. They are named by their path
in the tree, e.g. `core/templates/table.html`; so each can import the others' macros.
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
        template: Its path, e.g. `core/templates/table.html`.
        values: What it refers to. Text is escaped; what `render` returned stays as it is.

    Raises:
        jinja2.UndefinedError: The template refers to a value that is not given.
    """
    return Markup(_environment().get_template(template).render(values))


@dataclass(frozen=True)
class Asset:
    """A style sheet or script of ours, which stands in a page unescaped.

    Attributes:
        text: Its content.
        hash: What a Content-Security-Policy names it by, `sha256-…`.
    """

    text: str
    hash: str


def read_asset(path: str) -> Asset:
    """Read a style sheet or script, e.g. `inference/report/page.css`."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return Asset(text, "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


@dataclass(frozen=True)
class Cell:
    """A table's cell with a second, smaller text, e.g. the interval of a score."""

    text: str
    small: str


@dataclass(frozen=True)
class Table:
    """What the macro `table` of `core/templates/table.html` shows.

    Attributes:
        head: The columns' names; empty for a table without a head.
        rows: Each as long as `head`, if there is one; the first cell names the row.
        caption: A sentence above the table, or "".
        prose: Position of the column that holds sentences, if there is one.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    prose: int | None = None


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(ROOT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

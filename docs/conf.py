"""Sphinx settings: `sphinx-build -W docs runs/docs` after `pip install 'reflectune[docs]'`."""

from __future__ import annotations

import re
from typing import Any

project = "reflectune"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "reflectune"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
exclude_patterns = ["**/README.md"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
myst_heading_anchors = 3

OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)[^)\s]*\)")
"""A link to a file of the repository outside the site: its text and its path."""


def name_files_outside(_app: Any, _docname: str, source: list[str]) -> None:
    """Write such links as the file's path, which a reader of the site can look up in the repository."""
    source[0] = OUTSIDE.sub(
        lambda link: f"`{link[2]}`" if link[1] in link[2] else f"{link[1]} (`{link[2]}`)", source[0]
    )


def setup(app: Any) -> None:
    """Connect the hook."""
    app.connect("source-read", name_files_outside)

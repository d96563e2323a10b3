"""Sphinx settings: `sphinx-build -W docs runs/docs` after `pip install 'reflectune[docs]'`."""

project = "reflectune"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["**/README.md"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to benchmarks/ and configs/, which lie outside of the site

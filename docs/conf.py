"""Sphinx configuration of the documentation site: `make site` builds build/site/index.html, which opens from disk."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from attention_jax import __version__  # noqa: E402

project = "attention_jax"
author = "the attention_jax authors"
copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx-mathjax-offline", "sphinx.ext.viewcode", "reference"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "html_image"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are committed with their outputs, and tests/test_notebooks.py runs them
exclude_patterns = ["_ext", "notebooks/*.py"]

highlight_language = "none"  # of blocks without a language: commands and what they print
smartquotes = False  # options such as --model.hidden-size are copied from the pages
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"attention_jax {__version__}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_ext" / "scorer.js")
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True


def setup(app):
    app.connect("source-read", link_files_of_the_repository)


def link_files_of_the_repository(app, name: str, source: list[str]) -> None:
    """Make links to Markdown files beside docs/ downloads: MyST takes them for pages otherwise."""
    source[0] = source[0].replace("](../experiments/HISTORY.md", "](path:../experiments/HISTORY.md")

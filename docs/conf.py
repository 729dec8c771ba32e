"""Sphinx configuration of the documentation site: `make site` builds build/site/index.html, which opens from disk."""

import re
import sys
from pathlib import Path

from sphinx.search.en import SearchEnglish

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


class EnglishAndNumbers(SearchEnglish):
    """Words, and decimal numbers such as a recorded BLEU of 35.97 as one word, in the index and in a query."""

    _word_re = re.compile(r"\d+\.\d+|\w+")
    js_splitter_code = r"""
function splitQuery(query) {
  return query.match(/\d+\.\d+|[\p{Letter}\p{Number}_]+/gu) || [];
}
"""


def setup(app):
    app.add_search_language(EnglishAndNumbers)
    app.connect("source-read", link_files_of_the_repository)
    app.connect("html-page-context", fold_sidebar, priority=900)  # after the theme has made the tree
    app.connect("html-page-context", keep_options_whole)


def link_files_of_the_repository(app, name: str, source: list[str]) -> None:
    """Make links to Markdown files beside docs/ downloads: MyST takes them for pages otherwise."""
    source[0] = source[0].replace("](../experiments/HISTORY.md", "](path:../experiments/HISTORY.md")


def keep_options_whole(app, page: str, template: str, context: dict, doctree) -> None:
    """Mark options in blocks of code, such as --model.hidden-size, which are not broken at their hyphens."""
    mark = lambda block: re.sub(r"(?<=[\s>])--[\w.-]+", r'<span class="option">\g<0></span>', block[0])
    if "body" in context:
        context["body"] = re.sub(r"<pre>.*?</pre>", mark, context["body"], flags=re.DOTALL)


def fold_sidebar(app, page: str, template: str, context: dict, doctree) -> None:
    """Make each captioned list of the sidebar a `<details>`, which is open where the current page is in the list; the
    pages of single results, whose titles are sentences, are listed by "Results" alone."""
    group = r'<p class="caption"[^>]*>(.*?)</p>\s*<ul([^>]*)>(.*?)(?=<p class="caption"|\Z)'

    def details(match: re.Match) -> str:
        state = " open" if "current" in match[2] or (page == "index" and "Start" in match[1]) else ""
        return f"<details{state}><summary>{match[1]}</summary><ul{match[2]}>{match[3]}</details>"

    tree = re.sub(r"(>Results</a>)<input.*?</ul>", r"\1", context["furo_navigation_tree"], count=1, flags=re.DOTALL)
    context["furo_navigation_tree"] = re.sub(group, details, tree, flags=re.DOTALL)

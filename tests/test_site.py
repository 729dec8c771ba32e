"""The documentation site: its table of contents has every page, its reference every public name and option, and the
built pages need nothing from elsewhere."""

import dataclasses
import importlib.util
import inspect
import re
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote_plus

import pytest

import attention_jax
from attention_jax.cli import command_options
from attention_jax.config import DataOptions, ModelOptions, Options

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE_PACKAGES = ("sphinx", "furo", "myst_nb", "sphinx-mathjax-offline")


@pytest.fixture(scope="module")
def reference():
    """The module that writes the reference pages."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "_ext" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference) -> dict[str, str]:
    return reference.pages()


def test_every_page_is_in_contents_once(pages):
    text = (DOCS / "index.md").read_text(encoding="utf-8") + pages["api.md"].replace(" <api_", " <generated/api_")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    listed = [re.sub(r".*<(.+)>", r"\1", line) for line in lines if "<self>" not in line]
    assert all(len(re.sub(r" <.+>", "", line)) <= 16 for line in lines), "labels of the sidebar are short"
    written = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    written |= {f"notebooks/{path.stem}" for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert Counter(listed) == Counter(written | {f"generated/{Path(name).stem}" for name in pages})


def test_every_public_name_is_in_reference(pages):
    entries = "\n".join(text for name, text in pages.items() if name.startswith("api_"))
    documented = re.findall(r"\{py:\w+\} attention_jax\.([\w.]+)\(", entries)
    spaces = {name: getattr(attention_jax, name) for name in attention_jax.__all__}
    spaces = {name: value for name, value in spaces.items() if inspect.ismodule(value) and name != "config"}
    top = {*attention_jax.__all__} - {*spaces, "config"}
    below = {f"{space}.{name}" for space, module in spaces.items() for name in {*module.__all__} - top}
    assert top | below <= {*documented} and len(documented) == len({*documented})
    assert not re.search(r"0x[0-9a-f]{6}|_Sentinel|jaxlib", entries)


def test_api_index_lists_every_entry_once_with_a_sentence(pages):
    entries = "\n".join(text for name, text in pages.items() if name.startswith("api_"))
    lines = re.findall(r"^\* \[`[\w.]+`\]\(#([\w-]+)\): (.+)$", pages["api.md"], re.MULTILINE)
    assert Counter(label for label, _ in lines) == Counter(re.findall(r"^\((api-[\w-]+)\)=$", entries, re.MULTILINE))
    assert len({*dict(lines)}) == len(lines) > 120 and all(sentence.endswith(".") for _, sentence in lines)


def test_shapes_stand_in_signatures_as_they_are_written(reference):
    line = reference.signature(attention_jax.attend)
    assert line.startswith(
        '(query: Float[Array, "Q D"], key: Float[Array, "K E"], value: Float[Array, "K V"], *, score'
    )
    assert ') -> Float[Array, "Q V"]' in line


@dataclasses.dataclass(frozen=True)
class Example:
    """A line.

    >>> 1 + 1
    2

    Args:
        width, height: How large it is,
            in tokens.

    Returns:
        A number.
    """

    width: int = 3


def test_a_docstring_becomes_markdown(reference):
    text = reference.prose(Example)
    assert "```pycon\n>>> 1 + 1\n2\n```" in text
    assert "**Args**\n\n* `width`, `height`: How large it is,\n  in tokens.\n" in text and "**Returns**" in text


OPTIONS = [kind for kind in Options.kinds.values() if kind.__module__.startswith("attention_jax.")]
ABSTRACT = ("loader", "module")
"""A dataset without a loader and a model without a module are base classes of others."""


def test_every_option_is_in_the_configuration_reference(pages):
    text = pages["configuration.md"]
    for kind in OPTIONS:
        of_data_or_model = issubclass(kind, DataOptions | ModelOptions)
        if kind.__name__ != "Config" and (not of_data_or_model or any(hasattr(kind, name) for name in ABSTRACT)):
            section = re.search(rf"^### {kind.__name__}$(.*?)(?=^### |^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
            flags = re.findall(r"^\| `--\w+\.([\w-]+)` ", section, re.MULTILINE)
            assert flags == [field.name.replace("_", "-") for field in dataclasses.fields(kind)], kind.__name__


def test_every_command_argument_is_in_reference(pages):
    command = [sys.executable, "launch.py", "--help"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z-]+)\s", listed, re.MULTILINE))
    assert set(re.findall(r"^## (.+)$", pages["cli.md"], re.MULTILINE)) == commands
    train = pages["cli.md"].partition("## train\n")[2].partition("\n## ")[0]
    assert {"NAME", "--from", "--resume"} <= set(re.findall(r"^\| `(\S+)` ", train, re.MULTILINE))
    assert len(re.findall(r"^\| `(\S+)` ", train, re.MULTILINE)) == len(dataclasses.fields(command_options.Train))


class Requests(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        links = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "dns-prefetch")
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and values.get("src"):
            self.found.append(values["src"])
        elif links:
            self.found.append(values.get("href", ""))


def requests(html: str) -> list[str]:
    parser = Requests()
    parser.feed(html)
    return parser.found


def test_requests_are_found():
    html = '<script src="https://a/b.js"></script><a href="https://c"></a><link rel="stylesheet" href="d.css">'
    assert requests(html) == ["https://a/b.js", "d.css"]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; a warning is an error."""
    if any(importlib.util.find_spec(name) is None for name in SITE_PACKAGES):
        pytest.skip("needs the docs extra")
    site = tmp_path_factory.mktemp("docs") / "build" / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(site)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr[-3000:]
    return site


@pytest.mark.slow
def test_the_site_needs_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        if "_static" in page.parts:
            continue
        for target in requests(page.read_text(encoding="utf-8")):
            path = target.partition("?")[0].partition("#")[0]
            assert target.startswith("data:") or (page.parent / path).is_file(), f"{page.name} fetches {target}"
    styles = "".join(path.read_text(encoding="utf-8") for path in (site / "_static").rglob("*.css"))
    assert not re.search(r"(url\(|@import\s)\s*[\"']?(https?:)?//", styles)
    assert (site / "_static" / "mathjax" / "tex-chtml.js").is_file(), "formulas need MathJax beside the pages"
    assert (site / "searchindex.js").is_file()


QUERIES = {
    "jax attention custom score gradient": {"index", "fused"},
    "resume training": {"run_directory"},
    "mixed precision bfloat16": {"devices"},
    "gradient accumulation": {"devices"},
    "checkpoint format": {"run_directory"},
    "learning rate schedules": {"extend", "generated/configuration"},
    "config reference": {"generated/configuration"},
    "beam search options": {"decoding"},
    "out of memory": {"devices"},
    "segment mask packing": {"masks"},
    "linear attention jax": {"fused"},
    "attention maps": {"attention_maps"},
    "35.97": {"results", "results/multi30k_deen_transformer"},
}
"""What readers type, and the pages that answer it."""


def first_pages(driver, site: Path, query: str) -> list[str]:
    """The first three pages that the search of the site lists."""
    driver.get("about:blank")
    driver.get(f"{(site / 'search.html').as_uri()}?q={quote_plus(query)}")
    for _ in range(100):
        summary = driver.find_elements("css selector", ".search-summary")
        if summary and "finished" in summary[0].text:
            break
        time.sleep(0.1)
    links = driver.find_elements("css selector", "#search-results .search li a")
    pages = [link.get_attribute("href").partition("/site/")[2].partition(".html")[0] for link in links]
    return list(dict.fromkeys(pages))[:3]


@pytest.mark.slow
def test_site_search_finds_expected_page(site, chromium):
    pages_by_query = {query: first_pages(chromium, site, query) for query in QUERIES}
    assert not {query: pages for query, pages in pages_by_query.items() if not QUERIES[query] & {*pages}}


LOOKED_AT = {
    "index": 0, "gallery": 9, "d2l": 0, "results": 1, "weights": 0, "attention_variants": 1, "own_attention": 0,
    "troubleshooting": 0, "results/multi30k_deen_transformer": 1, "notebooks/kernels": 1,
}  # fmt: skip
"""Pages, and the least number of their figures."""
FAULTS = """
const box = (x) => x.getBoundingClientRect(), all = (x) => [...document.querySelectorAll("article " + x)];
const texts = (xs) => xs.map((x) => x.textContent.slice(0, 60));
return {
  "wider than the window": document.documentElement.scrollWidth > innerWidth ? [innerWidth] : [],
  "figure under 300 pixels": all("img").filter((x) => x.naturalWidth >= 300 && x.width < 300).map((x) => x.src),
  "clipped code": texts(all("pre").filter((x) => x.scrollWidth > x.clientWidth + 1)),
  "table beyond its frame": texts(
    all("table").map((x) => x.closest(".table-wrapper") ?? x).filter((x) => box(x).right > innerWidth)
  ),
  "broken option": texts(
    all("pre .option, p code .pre, td code .pre").filter((x) => x.textContent.length < 30 && box(x).height > 30)
  ),
};"""


@pytest.fixture(params=[390, 1280])
def width(request, chromium) -> int:
    """The width of the window in pixels: of a telephone, and of a small laptop."""
    size = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield request.param
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_pages_fit_a_telephone_and_a_laptop(site, chromium, width):
    for page, figures in LOOKED_AT.items():
        chromium.get((site / f"{page}.html").as_uri())
        images = chromium.find_elements("css selector", "article img")
        chromium.execute_script("document.querySelectorAll('img').forEach((x) => { x.loading = 'eager'; })")
        assert len(images) >= figures, page
        faults = chromium.execute_script(FAULTS)
        assert not {fault: where for fault, where in faults.items() if where}, f"{page} at {width} pixels"
    if width == 1280:
        chromium.get((site / "own_attention.html").as_uri())
        contents = chromium.find_element("css selector", ".toc-drawer").rect
        assert contents["x"] > 0 and contents["x"] + contents["width"] <= 1280 and contents["width"] > 150


@pytest.mark.slow
@pytest.mark.parametrize("page", ["results", "results/ntm_sort"])
def test_sidebar_lists_no_single_result(site, page):
    sidebar = (site / f"{page}.html").read_text("utf-8").partition('<div class="sidebar-tree">')[2]
    links = re.findall(r'<a class="[^"]*" href="([^"]*)">([^<]*)</a>', sidebar.partition("<article")[0])
    assert len(links) > 40 and max(len(text) for _, text in links) < 30, "labels are short, and no sentences"


def test_inherited_methods_once_common_names_first(pages):
    page = pages["api_normalizers.md"]
    assert len(re.findall(r"\{py:method\} weights\(", page)) == 1 and page.count("[`Threshold`](#api-threshold)") >= 3
    names = re.findall(r"\{py:class\} attention_jax\.normalizers\.(\w+)", page)
    assert names[0] == "Softmax" and {*names[-5:]} == {"Normalizer", "Ordered", "Pointwise", "Ratio", "Threshold"}


@pytest.mark.slow
def test_options_copy_verbatim_and_names_link_source(site):
    assert not [page.name for page in site.rglob("*.html") if re.search("\u2013[a-z]+[.-]", page.read_text("utf-8"))]
    api = (site / "generated" / "api_attention.html").read_text("utf-8")
    assert re.search(r'href="\.\./_modules/attention_jax/ops/attention\.html#attend"', api)
    assert "toctree-wrapper" not in (site / "index.html").read_text("utf-8").partition("<footer>")[0].replace(
        '<div class="toctree-wrapper compound">\n</div>', ""
    ), "the start page does not repeat the navigation"

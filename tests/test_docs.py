"""The pages of the documentation name what exists: links, files, commands, experiments."""

import ast
import importlib
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
import typing
from operator import attrgetter
from pathlib import Path

import pytest

from attention_jax import catalogue, cli, config as configs
from attention_jax.config import ModelOptions, Options

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = {"NAME", "RUN", "mirror", "surface", "my", "my_pairs"}
"""What stands for a name of one's own, and the experiments that docs/extend.md makes."""


def without_errors(page: Path) -> str:
    """The text of a page without its console blocks, whose commands are wrong (tests/test_pages.py runs them)."""
    return re.sub(r"^```console\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def commands() -> set[str]:
    """The commands that `launch.py --help` lists."""
    command = [sys.executable, "launch.py", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  ([a-z-]+)\s", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")}
    missing = {link for link in links if not (page.parent / link).exists()}
    paths = set(re.findall(r"`((?:attention_jax|experiments|tests|docs)/[\w./-]*)", text))
    paths |= {f"attention_jax/{path}" for path in re.findall(r"`((?:ops|models)/\w+\.py)", text)}
    missing |= {path for path in paths if "NAME" not in path and not (ROOT / path).exists()}
    assert not missing, f"{page.name} names what is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_exist(page):
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_experiments_exist(page, commands):
    lines = re.findall(r"python launch\.py ([a-z][\w-]*)(?: ([a-z]\w*))?", without_errors(page))
    assert {command for command, _ in lines} <= commands
    on_experiments = {name for command, name in lines if command in ("train", "reproduce", "sweep") and name}
    assert on_experiments <= {*catalogue.names(), *NAMES}
    benches = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert {name for command, name in lines if command == "bench" and name} <= benches


def options_of_commands(page: Path) -> list[list[str]]:
    """The words after `python launch.py` of each command on a page that has options, its lines put together."""
    text = without_errors(page).replace("\\\n", " ")
    commands = [
        shlex.split(line, comments=True)
        for line in re.findall(r"python launch\.py ((?:train|sweep) [^`\n]* --[^`\n]*)", text)
    ]
    return [words for words in commands if words[1] in catalogue.names()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_options_of_commands_exist(page):
    kinds = {"train": cli.Train, "sweep": cli.Sweep}
    for command, *words in options_of_commands(page):
        asked, _ = cli.parse_with_config(
            kinds[command], words, lambda asked: catalogue.load_experiment(asked.experiment).config()
        )
        assert asked.experiment == words[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_make_exist(page):
    goals = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    assert {*re.findall(r"`make ([a-z]+)`", text), *re.findall(r"^make ([a-z]+)", text, re.MULTILINE)} <= goals


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_short(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


def mechanisms() -> list[tuple[str, ...]]:
    """(mechanism, paper, object, experiment, book) of each row of docs/mechanisms.md."""
    lines = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8").splitlines()
    rows = [tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in lines if line.startswith("|")]
    return [row for row in rows if ":" in row[2]]


def source_lines(place: str, documented: bool = True) -> list[str]:
    """The source of "module:name", a name of this package or "Class.method", with or without its docstring."""
    module, name = place.split(":")
    source = inspect.getsource(attrgetter(name)(importlib.import_module(f"attention_jax.{module}")))
    lines, [node] = source.splitlines(), ast.parse(textwrap.dedent(source)).body
    if documented or ast.get_docstring(node) is None:
        return lines
    documentation = node.body[0]
    return lines[: documentation.lineno - 1] + lines[documentation.end_lineno :]


def test_the_index_of_mechanisms_is_as_long_as_the_story():
    assert len(mechanisms()) >= 40 and len({row[2] for row in mechanisms()}) == len(mechanisms())


@pytest.mark.parametrize("row", mechanisms(), ids=lambda row: row[0])
def test_a_mechanism_is_one_object_of_one_page_and_its_experiment_exists(row):
    _, _, place, experiment, _ = row
    assert len(source_lines(place, documented=False)) <= 60
    assert experiment in {*catalogue.names(), "-", "every one"}


def test_readme_reads_the_story_in_objects_as_long_as_it_says():
    rows = re.findall(
        r"^\| .* \| `(\S+)\.py:(\w+)` \| (\d+) \| .* \|$", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) >= 10
    for path, name, stated in rows:
        lines = len(source_lines(f"{path.replace('/', '.')}:{name}"))
        assert abs(lines - int(stated)) <= 3, f"README says {stated} lines for {path}.py:{name}; it has {lines}"


SHARED = {"translator": [configs.Translator], "readout": [configs.DeepOutput]}
"""The files of models that serve several families and may ask what all of these families have."""


def families() -> dict[str, list[type]]:
    """The options of each file of models: {"bahdanau": [config.Bahdanau], ...}."""
    kinds = [kind for kind in Options.kinds.values() if issubclass(kind, ModelOptions) and hasattr(kind, "module")]
    ours = [kind for kind in kinds if kind.module.startswith("attention_jax.models.")]
    files = {kind.module.partition(":")[0].rpartition(".")[2] for kind in ours}
    return SHARED | {file: [kind for kind in ours if f".{file}:" in kind.module] for file in sorted(files)}


def vocabulary(kinds: list[type]) -> set[str]:
    """The names of the options of these classes, and the values that they choose from."""
    words = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    hints = [hint for kind in kinds for hint in typing.get_type_hints(kind).values()]
    return words.union(*(typing.get_args(hint) for hint in hints if typing.get_origin(hint) is typing.Literal))


def asked(source: str) -> set[str]:
    """The options that a source reads, and the texts it compares something with."""
    nodes = list(ast.walk(ast.parse(source)))
    reads = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value).split(".")[-1] in OPTIONS}
    constants = [n for compared in nodes if isinstance(compared, ast.Compare) for n in ast.walk(compared)]
    return reads | {n.value for n in constants if isinstance(n, ast.Constant) and isinstance(n.value, str)}


OPTIONS = ("o", "options")
"""What the models call the options they hold."""


def test_what_is_asked_is_read_off_the_source():
    source = 'o = self.options\nif o.window == "predictive" or self.options.score: self.width'
    assert asked(source) == {"window", "predictive", "score"}


@pytest.mark.parametrize("file", sorted(families()))
def test_a_file_of_a_model_asks_for_no_option_of_another_one(file):
    """A reader of one mechanism meets the conditions of no other."""
    own = families().get(file, [])
    foreign = vocabulary([kind for kinds in families().values() for kind in kinds]) - vocabulary(own)
    words = asked((ROOT / "attention_jax" / "models" / f"{file}.py").read_text(encoding="utf-8"))
    assert not words & foreign, f"models/{file}.py asks for options of other models"


def test_papers_that_are_cited_are_in_the_bibliography():
    """Each "Author et al. year" of the package and of the pages written by hand; experiments name titles themselves."""
    rows = re.findall(r"^\| ([^|]+\d{4}[^|]*) \|", (ROOT / "docs" / "references.md").read_text("utf-8"), re.MULTILINE)
    listed = {(row.split()[0].rstrip(","), year) for row in rows for year in re.findall(r"\d{4}", row)}
    generated = ("results.md", "replication.md", "references.md")
    pages = [page for page in PAGES if page.name not in generated]
    text = " ".join(path.read_text("utf-8") for path in [*pages, *(ROOT / "attention_jax").rglob("*.py")])
    cited = set(re.findall(r"\b([A-Z][\w-]+) et al\.,?\s+\(?((?:19|20)\d\d)", text))
    assert len(cited) > 60
    assert cited - listed == set()

"""The pages of the documentation name commands, experiments and options that exist; `.ci/docs.py` checks the rest."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from attention_jax import catalog
from attention_jax.cli import command_options, commands
from attention_jax.config import MaskedLanguageModelConfig, replace

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = {"NAME", "RUN", "mirror", "surface", "my", "my_language", "my_pairs", "my_text"}
"""What stands for a name of one's own, and the experiments that docs/own_training.md makes."""


def without_errors(page: Path) -> str:
    """The text of a page without its console blocks, whose commands are wrong (tests/test_pages.py runs them)."""
    return re.sub(r"^```console\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_commands_and_experiments_of_the_pages_exist():
    benches = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    names = {"bench": benches} | {
        word: {*catalog.experiment_names(), *NAMES} for word in ("train", "reproduce", "sweep")
    }
    for page in PAGES:
        for command, name in re.findall(r"python launch\.py ([a-z][\w-]*)(?: ([a-z]\w*))?", without_errors(page)):
            assert command in commands.COMMANDS, f"{page.name}: {command}"
            assert not name or name in names.get(command, {name}), f"{page.name}: {command} {name}"


def options_of_commands(page: Path) -> list[list[str]]:
    """The words after `python launch.py` of each command on a page that has options, its lines put together."""
    text = without_errors(page).replace("\\\n", " ")
    lines = re.findall(r"python launch\.py ((?:train|sweep) [^`\n]* --[^`\n]*)", text)
    every = [shlex.split(line, comments=True) for line in lines]
    return [words for words in every if words[1] in catalog.experiment_names()]


@pytest.mark.slow
def test_options_of_the_pages_exist():
    kinds = {"train": command_options.Train, "sweep": command_options.Sweep}
    every = {tuple(words) for page in PAGES for words in options_of_commands(page)}
    assert len(every) > 20
    for command, *words in sorted(every):
        models = {"minilm": {"model": MaskedLanguageModelConfig()}}  # what --from brings
        config = lambda args, models=models: replace(
            catalog.load_experiment(args.experiment).config(), **models.get(args.init_weights, {})
        )
        assert command_options.parse_with_config(kinds[command], words, config)[0].experiment == words[0]


TERMS = {
    "FlashAttention": "ops/blockwise/softmax.py",
    "ring attention": "ops/blockwise/ring.py",
    "GQA": "models/multihead.py",
    "MQA": "models/multihead.py",
    "KV cache": "ops/shared.py",
    "attention sink": "ops/normalizers.py",
    "sparse attention": "ops/normalizers.py",
    "soft capping": "ops/scores.py",
    "QK norm": "ops/scores.py",
    "content-based addressing": "ops/addressing.py",
    "RoPE": "ops/positions.py",
    "Nadaraya-Watson": "ops/kernel_regression.py",
    "Performer": "ops/linear.py",
    "TBPTT": "ops/recurrent/bptt.py",
    "mixed precision": "ops/precision.py",
    "label smoothing": "ops/losses.py",
    "gradient checkpointing": "config/models.py",
    "FSDP": "train/placement.py",
    "early stopping": "train/run.py",
    "inverse square root": "train/optimizer.py",
    "DropPath": "models/vit.py",
    "teacher forcing": "models/transformer.py",
    "sliding-window": "ops/masks.py",
    "padding": "ops/masks.py",
}
"""What a reader of the papers searches for, and the file that implements it."""


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_the_field_are_in_their_files(term):
    source = (ROOT / "attention_jax" / TERMS[term]).read_text(encoding="utf-8")
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    words = " ".join(" ".join(text.split()) for text in texts if isinstance(text, str))
    assert term.lower() in words.lower(), f"no docstring of {TERMS[term]} says {term}"


def definitions(source: str) -> set[str]:
    """The functions and classes of a module, and the methods as Class.method."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    methods = {
        f"{node.name}.{member.name}" for node in nodes for member in node.body if isinstance(member, ast.FunctionDef)
    }
    return {node.name for node in nodes} | methods


def test_every_function_of_the_reading_order_exists():
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    entries = re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", text)
    assert len(entries) > 50
    for path, name in entries:
        directory = ROOT if path.startswith("experiments/") else ROOT / "attention_jax"
        source = (directory / path).read_text(encoding="utf-8")
        assert not name or name in definitions(source), f"{path} has no {name}"


def test_design_tree_lists_folders_and_ops_files():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    tree = re.search(r"^```\n(attention_jax/\n.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]
    package = ROOT / "attention_jax"
    listed = {*re.findall(r"\b\w+(?:\.py\b|/)", tree)}
    folders = {path.parent.name + "/" for path in package.glob("**/__init__.py")} - {"attention_jax/"}
    files = {path.name for folder in (package, package / "ops") for path in folder.glob("*.py")}
    assert folders | {path for path in files if path[0] != "_"} <= listed and len(tree.splitlines()) <= 40
    existing = {path.name for path in [*ROOT.glob("*.py"), *package.rglob("*.py")]}
    assert {path for path in listed if path.endswith(".py")} <= existing


def test_gallery_shows_figures_with_sentence_and_page():
    text, results = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), ROOT / "experiments" / "results"
    card = r"\[!\[([\w-]+)\]\(\.\./experiments/results/\1\.png\)\]\(([\w/]+)\.md\)<br>(.+?) \|"
    cards = re.findall(card, text)
    assert len(cards) == text.count("![") > 40 and len({figure for figure, _, _ in cards}) == len(cards)
    pages = {"published": "results", "bench_attention": "performance"}
    for figure, page, sentence in cards:
        assert (results / f"{figure}.png").exists() and sentence.endswith((".", ".)")), figure
        assert page == pages.get(figure, f"results/{figure.partition('-')[0]}"), figure
    experiment_figures = {path.stem for path in results.glob("*.png") if path.stem in catalog.experiment_names()}
    assert experiment_figures <= {figure for figure, _, _ in cards}


def test_d2l_page_lists_existing_functions_and_sections():
    text = (ROOT / "docs" / "d2l.md").read_text(encoding="utf-8")
    entries = re.findall(r"\]\(\.\./((?:attention_jax|experiments)/[\w/]+\.py)\): ((?:`\w+`(?:, )?)+)", text)
    assert len(entries) > 15
    for path, names in entries:
        assert {*re.findall(r"\w+", names)} <= definitions((ROOT / path).read_text(encoding="utf-8")), path
    rows = " ".join(re.findall(r"^\| (\d[^|]+) \|", text, re.MULTILINE))
    numbers = lambda words: {tuple(map(int, number.split("."))) for number in re.findall(r"\d+\.\d+", words)}
    index = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    missing = numbers(" ".join(re.findall(r"d2l (\d+\.\d+)", index))) - numbers(rows)
    assert not missing, missing

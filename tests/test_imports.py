"""What syntax trees say: packages import one way only, as the table of docs/design.md has it, there is one loop, and
the file of a model reads the options of that model only."""

import ast
import dataclasses
import functools
import graphlib
import sys
import typing
from pathlib import Path

import pytest

from attention_jax import config as configs
from attention_jax.config import ModelOptions, OneOf, Options

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "attention_jax"
ANY = {"numpy", "jaxtyping", "attention_jax"}  # "attention_jax" itself: only what its __init__ defines
# {package or module: (third-party packages, packages and modules of this one)} that it may import, besides itself and
# the standard library
PACKAGES = {
    "ops": ({"jax"}, set()),
    "data": (
        {"tensorflow_datasets", "babel", "sentencepiece", "spacy", "PIL", "sklearn", "tokenizers", "pyarrow"},
        {"config", "provenance", "ops.images.boxes"},
    ),
    "models": ({"jax", "flax"}, {"ops", "config"}),
    "interpret": ({"jax", "flax"}, {"ops", "config", "models", "report"}),
    "decode": ({"jax"}, {"ops"}),
    "sampling": ({"jax"}, {"ops", "decode"}),
    "train": (
        {"jax", "optax", "orbax", "rich", "tensorboardX", "wandb", "mlflow"},
        {"config", "ops", "provenance"},
    ),
    "report": ({"matplotlib", "sacrebleu", "rich", "scipy", "PIL"}, {"config"}),
    "tasks": ({"jax", "flax"}, {"ops", "config", "data", "decode", "sampling", "interpret", "train", "report"}),
    "runs": (
        {"jax", "safetensors"},
        {
            "export.stablehlo",
            "config",
            "data",
            "tasks",
            "train",
            "pretrained",
            "report",
            "catalog",
            "provenance",
        },
    ),
    "sweep": (
        {"jax", "optuna", "ray", "rich"},
        {"config", "train", "runs", "catalog", "claims", "report", "tasks", "models"},
    ),
    "config": (set(), set()),
    "declarations": (set(), set()),
    "catalog": (set(), {"config", "declarations"}),
    "claims": ({"scipy"}, {"config", "catalog", "declarations", "provenance", "runs", "report"}),
    "pretrained": (
        {"jax", "flax", "safetensors", "gguf", "tokenizers", "jinja2"},
        {"config", "data", "decode", "interpret", "sampling", "models", "ops", "report", "tasks", "train"},
    ),
    "export": (
        {"jax", "PIL", "sentencepiece", "spacy", "tokenizers"},
        {"config", "data", "tasks", "pretrained"},
    ),
    "cli.command_options": ({"tyro"}, {"config", "catalog", "claims", "cli.help"}),
    "cli.help": (set(), {"config", "catalog"}),
    "cli.compilation_cache": (set(), {"provenance"}),
    "signals": (set(), set()),
    "provenance": (set(), set()),
    "files": (set(), set()),
    "errors": (set(), set()),
    "printing": (set(), set()),
}


EVERYWHERE = {"config", "files", "printing", "errors", "signals", "lazy_attributes"}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def find_imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, at any depth."""
    tree = tree_of(path)
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= (
                {f"{node.module}.{alias.name}" for alias in node.names}
                if (node.module or "").partition(".")[0] == "attention_jax"
                else {node.module}
            )
    return names


def files(package: str) -> list[Path]:
    file = PACKAGE / f"{package.replace('.', '/')}.py"
    return [file] if file.exists() else sorted((PACKAGE / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_table_allows(package):
    outside, inside = PACKAGES[package]
    assert files(package)
    for path in files(package):
        for name in find_imports(path):
            top, *subpackages = name.split(".")
            if top == "attention_jax" and subpackages and subpackages[0] not in EVERYWHERE:
                allowed = tuple(f"attention_jax.{permitted}." for permitted in inside | {package})
                assert f"{name}.".startswith(allowed), f"{path.name} of {package} imports {name}"
            elif top not in sys.stdlib_module_names:
                assert top in outside | ANY, f"{path.name} of {package} imports {name}"


def module_of(name: str) -> Path | None:
    """The file of this package with what a dotted name names: a module, or an object in it."""
    for module in (name, name.rpartition(".")[0]):
        path = ROOT / module.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_relative_to(PACKAGE) and file.is_file():
                return file
    return None


@functools.cache
def modules_imported() -> dict[Path, set[Path]]:
    """The modules of this package that each of them imports, inside of functions, too."""
    return {path: {*map(module_of, find_imports(path))} - {None, path} for path in files("")}


@pytest.mark.parametrize("package", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))
def test_modules_of_a_package_have_no_circle(package):
    directory = PACKAGE / package
    inside = {
        path.relative_to(directory): {other.relative_to(directory) for other in imports if directory in other.parents}
        for path, imports in modules_imported().items()
        if directory in path.parents
    }
    assert [*graphlib.TopologicalSorter(inside).static_order()]  # CycleError names a circle


def test_no_package_imports_one_above_it():
    """Two packages that import each other, at any remove, are one package."""
    layer = lambda path: path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    arrows = {(layer(path), layer(other)) for path, imports in modules_imported().items() for other in imports}
    below = {}
    for above, package in arrows:
        below.setdefault(above, set()).update({package} - {above, "__init__"})
    below.pop("__init__")  # the names that the package offers
    assert [*graphlib.TopologicalSorter(below).static_order()]


def test_experiments_compute_nothing_when_imported():
    for path in [*(ROOT / "experiments").glob("*.py"), ROOT / "launch.py"]:
        tree = tree_of(path)
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = node.names[0].name if isinstance(node, ast.Import) else node.module
                assert name.split(".")[0] not in {"jax", "flax", "optax", "matplotlib", "tensorflow_datasets"}, (
                    f"{path.name} imports {name}"
                )


CHECKED = "a file that `check_output` has agreed to"
RUN_FILE = "a file of a run, in a directory that `check_place` has agreed to"
DATA_HOME = "in the cache of datasets"
REPLACING = {
    ("files.py", "replace"): "`temporary_file`, which all other writers use",
    ("files.py", "unlink"): "the temporary file itself; the lock of a file system without locks",
    ("files.py", "rmtree"): "the temporary directory itself",
    ("files.py", "rmdir"): "`remove_empty`: directories that a file or run has created which failed, if empty",
    ("files.py", "write_text"): "a temporary file",
    ("claims/pages.py", "unlink"): "docs/results of the checkout",
    ("claims/record.py", "rename"): "a run with other options, by its time; nothing is lost",
    ("claims/record.py", "copyfile"): "experiments/results of the checkout",
    ("cli/compilation_cache.py", "unlink"): "the cache of compiled programs",
    ("export/stablehlo.py", "copyfile"): "a temporary directory",
    ("export/stablehlo.py", "savez"): "a temporary directory",
    ("export/stablehlo.py", "write_bytes"): "a temporary directory",
    ("export/stablehlo.py", "write_text"): "a temporary directory",
    ("data/builders.py", "replace"): DATA_HOME,
    ("data/builders.py", "rmdir"): DATA_HOME,
    ("data/cache.py", "remove"): DATA_HOME,
    ("data/cache.py", "replace"): DATA_HOME,
    ("data/images.py", "savez"): DATA_HOME,
    ("data/lazy_images.py", "save"): DATA_HOME,
    ("data/stream.py", "open"): DATA_HOME,
    ("data/stream.py", "savez"): DATA_HOME,
    ("data/text_tables.py", "open"): CHECKED,
    ("data/tokenizers.py", "write_bytes"): DATA_HOME,
    ("interpret/store.py", "open"): "a directory that was empty, or has an index of the same activations",
    ("interpret/store.py", "save"): "a directory that was empty, or has an index of the same activations",
    ("pretrained/exchange.py", "write_bytes"): "a temporary directory",
    ("pretrained/tensors.py", "savez"): "a temporary directory",
    ("pretrained/tensors.py", "write_bytes"): "a temporary directory",
    ("report/bleu.py", "force=True"): "sacrebleu: tokenized text is no error",
    ("report/bleu.py", "unlink"): "the figure that the same call would draw anew",
    ("report/style.py", "savefig"): "the figures of a run, or " + CHECKED,
    ("runs/directory.py", "rmtree"): "`withdraw`: the directory that the same call has created",
    ("runs/lifecycle.py", "unlink"): RUN_FILE,
    ("runs/lifecycle.py", "replace"): RUN_FILE,
    ("runs/lifecycle.py", "rmtree"): "earlier_final, in which `check_place` has seen parameters only",
    ("runs/saved.py", "open"): "a temporary file",
    ("runs/saved.py", "savez_compressed"): "a temporary file",
    ("sweep/driver.py", "unlink"): "failure.json of runs that never began, in a sweep",
    ("sweep/driver.py", "rmdir"): "directories of runs that never began, if empty",
    ("sweep/driver.py", "replace"): "failure.json of a sweep's run",
    ("sweep/executors.py", "open"): "the log of a sweep's group, which grows",
    ("sweep/executors.py", "force=True"): "Ray: a task is canceled",
    ("sweep/search.py", "unlink"): "journal.log of a sweep and its lock",
    ("train/checkpoint.py", "force=True"): "checkpoints/ and final/, in which `check_place` has seen parameters only",
    ("train/checkpoint.py", "rmtree"): "half-written parameters, by orbax's name for them",
    ("train/log.py", "open"): "metrics.jsonl of a run, which grows",
    ("train/sinks.py", "rename"): "TensorBoard's new file of a run",
}
"""{(file, call that may delete or replace files): why no file of a user is lost}."""
DELETING = {"rmtree", "unlink", "rmdir", "removedirs", "rename", "renames", "write_text", "write_bytes", "copyfile"}
DELETING |= {"copytree", "savez", "savez_compressed", "savefig"}


def replacing_call(call: ast.Call) -> str:
    """The name of a call that may delete or replace a file, or ""; `x.replace(y)` is that of a path."""
    name, owner = (getattr(call.func, "attr", getattr(call.func, "id", "")), ast.unparse(call.func).rpartition(".")[0])
    constants = [
        node.value for node in (*call.args, *(k.value for k in call.keywords)) if isinstance(node, ast.Constant)
    ]
    modes = [
        value for value in constants if isinstance(value, str) and {*value} <= {*"rwaxbt+"} and {*value} & {*"wax+"}
    ]
    if any(k.arg == "force" and getattr(k.value, "value", None) is True for k in call.keywords):
        return "force=True"
    is_path = name == "replace" and len(call.args) == 1 and not call.keywords and isinstance(call.func, ast.Attribute)
    is_call = is_path or (owner, name) in {("os", "replace"), ("os", "remove"), ("np", "save")} or name in DELETING
    return name if is_call else "open" if name in ("open", "open_file", "open_memmap", "ZipFile") and modes else ""


def test_files_are_replaced_where_the_table_says():
    """A new place that may delete or replace a file asks `check_output` first, and says here why nothing is lost."""
    calls = set()
    for path in files(""):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and (name := replacing_call(node)):
                calls.add((path.relative_to(PACKAGE).as_posix(), name))
    assert {call for call in calls if not call[0].startswith("ops/")} == REPLACING.keys()


THE_LOOP = {"plan", "train_steps"}, {"checkpoints.save"}
"""Methods that only the loop calls: `task.plan`, `program.train_steps` and
`checkpoints.save`, by these names."""


def of_the_loop(path: Path) -> set[str]:
    """The calls in a file that only the loop may make, as "object.method"."""
    calls = [node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    names = {ast.unparse(call).lower() for call in calls if isinstance(call, ast.Attribute)}
    methods, whole = THE_LOOP
    return {name for name in names if name.split(".")[-1] in methods or ".".join(name.split(".")[-2:]) in whole}


def test_there_is_one_loop():
    """Nothing else goes through a plan, makes training steps or saves checkpoints of them."""
    making_plans = {PACKAGE / package for package in ("data", "tasks")}
    paths = [path for path in PACKAGE.rglob("*.py") if not making_plans & set(path.parents)]
    paths += [*(ROOT / "experiments").glob("*.py"), ROOT / "launch.py"]
    loop = PACKAGE / "train" / "loop.py"
    assert of_the_loop(loop) == {"task.plan", "program.train_steps", "checkpoints.save"}
    elsewhere = {path.name: of_the_loop(path) for path in paths if path != loop and of_the_loop(path)}
    assert elsewhere == {"batch.py": {"run.plan"}}, "which stacks the plans of several runs"
    [fit] = [node for node in tree_of(loop).body if getattr(node, "name", "") == "fit"]
    assert fit.end_lineno - fit.lineno < 60


SHARED = {"translator": [configs.TranslatorConfig], "readout": [configs.DeepOutputConfig]}
"""The files of models that serve several families and may ask what all of these families have."""
HOLDERS = ("o", "options")
"""What the models call the options they hold."""


def families() -> dict[str, list[type]]:
    """The options of each file of models: {"bahdanau": [config.BahdanauConfig], ...}."""
    kinds = [kind for kind in Options.kinds.values() if issubclass(kind, ModelOptions) and hasattr(kind, "module")]
    package_kinds = [kind for kind in kinds if kind.module.startswith("attention_jax.models.")]
    names = {kind.module.partition(":")[0].rpartition(".")[2] for kind in package_kinds}
    return SHARED | {name: [kind for kind in package_kinds if f".{name}:" in kind.module] for name in sorted(names)}


def vocabulary(kinds: list[type]) -> set[str]:
    """The names of the options of these classes, and the values that they choose from."""
    words = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    hints = [hint for kind in kinds for hint in typing.get_type_hints(kind, include_extras=True).values()]
    marks = [mark for hint in hints for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, OneOf)]
    words = words.union(*(mark.names for mark in marks))
    return words.union(*(typing.get_args(hint) for hint in hints if typing.get_origin(hint) is typing.Literal))


def read_options(source: str) -> set[str]:
    """The options that a source reads, and the texts it compares something with."""
    nodes = list(ast.walk(ast.parse(source)))
    reads = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value).split(".")[-1] in HOLDERS}
    constants = [n for compared in nodes if isinstance(compared, ast.Compare) for n in ast.walk(compared)]
    return reads | {n.value for n in constants if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_a_model_asks_for_its_own_options_only():
    """A reader of one mechanism meets the conditions of no other."""
    source = 'o = self.options\nif o.window == "predictive" or self.options.score: self.width'
    assert read_options(source) == {"window", "predictive", "score"}
    every = vocabulary([kind for kinds in families().values() for kind in kinds])
    for name, kinds in families().items():
        words = read_options((PACKAGE / "models" / f"{name}.py").read_text(encoding="utf-8"))
        assert not words & (every - vocabulary(kinds)), f"models/{name}.py asks for options of other models"


@functools.lru_cache
def imports_and_reads(path: Path) -> tuple[set[str], set[str]]:
    """What a file imports, and the attributes it reads with the fields of its dataclasses, which `of(options)` reads by
    name."""
    nodes = list(ast.walk(tree_of(path)))
    fields = {n.target.id for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    modules = {name.rpartition(".")[0] for name in find_imports(path)}
    return find_imports(path) | modules, {n.attr for n in nodes if isinstance(n, ast.Attribute)} | fields


def names_read(module: str) -> set[str]:
    """What a module, and all modules of `attention_jax.models` that it imports, read."""
    unread, paths, names = [module], set(), set()
    while unread:
        path = ROOT / (unread.pop().replace(".", "/") + ".py")
        if path.is_file() and path not in paths:
            paths.add(path)
            imports, reads = imports_and_reads(path)
            names |= reads
            unread += [name for name in imports if name.startswith("attention_jax.models.")]
    return names


def test_a_model_reads_all_of_its_options():
    """In its module, in what that imports from `models`, or in its task; else the option does nothing."""
    kinds = [kind for kinds in families().values() for kind in kinds if hasattr(kind, "module")]
    assert len(kinds) > 10
    for kind in kinds:
        task = ROOT / (kind.task.partition(":")[0].replace(".", "/") + ".py")
        read = names_read(kind.module.partition(":")[0]) | imports_and_reads(task)[1]
        assert not {field.name for field in dataclasses.fields(kind)} - read, kind.__name__

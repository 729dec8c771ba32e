"""Loading of experiments: one file each in experiments/ of a checkout, or your own file."""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from attention_jax.config import Config, Grid, Options, smoke_config
from attention_jax.declarations import Claim, Threshold, load_declarations
from attention_jax.errors import InputError
from attention_jax.printing import docstrings


def experiments_directory(package: Path, working_directory: Path) -> Path:
    """The directory of the built-in experiments: in the checkout of `package`, or in the checkout that the working
    directory `working_directory` is, or else the copy that the installed package carries."""
    for checkout in (package.parent, working_directory.resolve()):
        if (checkout / "launch.py").is_file() and (checkout / "experiments").is_dir():
            return checkout / "experiments"
    return package / "experiments"


ROOT = experiments_directory(Path(__file__).resolve().parent, working_directory=Path())
CHECKOUT = (ROOT.parent / "launch.py").is_file()
"""Whether the experiments come from a checkout. Only there are results recorded."""
PAPERS = "experiments.papers"
"""The package of the models that only experiments use, in the directory papers of ROOT."""
CHAPTERS = (
    "kernels",
    "recurrent attention",
    "Transformer",
    "vision",
    "memory",
    "training theory",
    "theory of attention",
    "sweeps",
    "your own data",
)
"""Chapters in the order of `launch.py list`; the line "Chapter:" of an experiment's docstring names one."""


@dataclass(frozen=True)
class Experiment:
    """The contents of an experiment's file. All but `config` is optional.

    >>> experiment = load_experiment("date_luong")
    >>> experiment.config().model.hidden_size, experiment.seeds, experiment.minutes
    (128, 3, 2.2)
    """

    name: str
    doc: str
    """The claim in a line; then the lines Chapter:, Source:, Data:, Command: and "Cost: 2.2 minutes"."""
    config: Callable[[], Config]
    smoke: Callable[[], Config]
    """A run of seconds; by default `smoke_config(config())`."""
    variants: Callable[[], dict[str, Config]]
    """The configurations that are compared, by name; by default the only one, named ""."""
    presets: Callable[[], dict[str, Config]]
    """Sizes to choose from with `launch.py train NAME --preset`, by name; by default none."""
    results: Path
    """The directory of its measured results."""
    seeds: int = 1
    sweep: Callable[[], dict[str, str]] = dict
    """The search space of `launch.py sweep`: {option: values}."""
    study: Callable[[Config, Path], dict] | None = None
    """Analysis that is run instead of training: (config, directory) -> metrics."""
    attention_maps: Callable[[Config, list[str]], tuple] | None = None
    """Attention maps of an experiment without a model: (config, texts) -> the type of `Task.attention_maps`."""
    figure: Callable[[dict[str, list[dict]], Path], Path | None] | None = None
    """Plots the recorded runs of the variants, {variant: runs}, to a file."""
    claims: tuple[Claim, ...] = ()
    """The numbers and orders that are compared with a source; these and the next three come from NAME.toml."""
    thresholds: tuple[Threshold, ...] = ()
    """Bounds of this project, and statements of theory."""
    former_variants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{former name of a variant: its present name}"""
    times: tuple[str, ...] = ()
    """Metrics, or beginnings of their names, that depend on the speed of the machine."""
    grids: tuple[Grid, ...] = ()
    """Tables of measured numbers below the claims (its GRIDS)."""
    file: Path | None = None
    """The experiment's file."""

    def about(self, heading: str) -> str:
        """Return the text of a line of the docstring: "Chapter", "Source", "Data", "Command", "Cost"; "" without it."""
        return _paragraphs(self.doc).get(heading, "")

    def preset(self, name: str) -> Config:
        """Return the configuration of a preset, or with no name the experiment's configuration."""
        presets = self.presets() if name else {"": self.config()}
        if name not in presets:
            listed = f"choose one of {', '.join(presets)}" if presets else "it has none: leave --preset out"
            raise InputError(f"{self.name} has no preset {name!r}; {listed}")
        return presets[name]

    @property
    def claim(self) -> str:
        """The claim: the first paragraph of the docstring."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def minutes(self) -> float | None:
        """The cost: minutes of all variants and seeds on one core, or None if its docstring states none.

        docs/reproduce.md says how they were obtained.
        """
        stated = re.match(r"([\d.]+) minutes", self.about("Cost"))
        return float(stated[1]) if stated else None


def experiment_names() -> list[str]:
    """The names of all built-in experiments, sorted."""
    return sorted(path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_"))


def load_experiment(name: str) -> Experiment:
    """Load the experiment experiments/NAME.py, or of the file with the path `name` ("my/experiment.py").

    Raises InputError for an unknown name, with suggestions.

    >>> load_experiment("date_luong").config().data
    Dates(path='', reverse_source=True, examples=50000, validation=0)
    """
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise InputError(
                f"there is no experiment file {name}; give a name of `launch.py list`, or a file that exists"
            )
        return _experiment_of_module(_module_of(path), path.parent / "results")
    if name not in experiment_names():
        near = difflib.get_close_matches(name, experiment_names(), n=3, cutoff=0.5)
        hint = f"perhaps you meant {' or '.join(near)}" if near else "`launch.py list` shows them all"
        raise InputError(f"there is no experiment {name!r}; {hint}")
    return _experiment_of_module(_module_of(ROOT / f"{name}.py"), ROOT / "results")


@functools.cache
def _module_of(path: Path) -> ModuleType:
    """Import an experiment's file, given by an absolute path, once.

    A file of the checkout is `experiments.NAME` from any working directory, because the files import each other by that
    name. A user's package of the name `experiments` is restored afterwards.
    """
    package_spec = importlib.util.find_spec("experiments")
    if package_spec is None:
        sys.modules["experiments"] = _package("experiments", ROOT)
    if path.parent == ROOT:
        foreign = package_spec is not None and str(ROOT) not in (package_spec.submodule_search_locations or ())
        with _replacing_user_package() if foreign else contextlib.nullcontext():
            return importlib.import_module(f"experiments.{path.stem}")
    spec = importlib.util.spec_from_file_location(f"experiment_at_{path}", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[spec.name]
        raise InputError(
            f"{path} imports {error.name}, which is not found here: install it, or add its directory to PYTHONPATH"
        ) from error
    return module


@functools.cache
def _package(name: str, directory: Path) -> ModuleType:
    """The package `name` of the files in a directory."""
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(directory)]
    return importlib.util.module_from_spec(spec)


@contextlib.contextmanager
def _replacing_user_package() -> Iterator[None]:
    """Context in which `experiments` is the checkout's package; a module of that name is restored afterwards. The
    models in `experiments.papers` stay, because configurations name them."""
    package_modules = lambda: [
        name
        for name in sys.modules
        if name.partition(".")[0] == "experiments" and not f"{name}.".startswith(f"{PAPERS}.")
    ]
    user_modules = {name: sys.modules.pop(name) for name in package_modules()}
    sys.modules["experiments"] = _package("experiments", ROOT)
    try:
        yield
    finally:
        for name in package_modules():
            del sys.modules[name]
        sys.modules.update(user_modules)


@contextlib.contextmanager
def _explain_fields(file: str) -> Iterator[None]:
    """Context, or decorator of a function, in which the code of `file` that gives a class of options a field that it
    does not have, or none that it needs, is an InputError with the line."""
    try:
        yield
    except TypeError as error:
        match = re.match(r"(\w+)\.__init__\(\) (.*)", str(error))
        kind = Options.kinds.get(match[1]) if match else None
        if kind is None:
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        fields = ", ".join(field.name for field in dataclasses.fields(kind))
        line = f"line {lines[-1]}: " if lines else ""
        raise InputError(f"{file}, {line}{match[1]} {match[2]}; its fields are {fields}") from error


def _experiment_of_module(module: ModuleType, results: Path) -> Experiment:
    """Return the experiment of a module, with defaults for optional names."""
    if not hasattr(module, "config"):
        raise InputError(f"{module.__file__} is no experiment: it needs a function config() -> Config")
    explain, file = _explain_fields(module.__file__), Path(module.__file__)
    names = {name: name.lower() for name in ("sweep", "study", "attention_maps", "figure", "SEEDS", "GRIDS")}
    return Experiment(
        name=file.stem,
        doc=inspect.getdoc(module) or docstrings(file)[""],
        config=explain(module.config),
        smoke=explain(getattr(module, "smoke", lambda: smoke_config(module.config()))),
        variants=explain(getattr(module, "variants", lambda: {"": module.config()})),
        presets=explain(getattr(module, "presets", dict)),
        results=results,
        file=file,
        **{field: getattr(module, name) for name, field in names.items() if hasattr(module, name)},
        **load_declarations(file.with_suffix(".toml")),
    )


@functools.lru_cache
def _paragraphs(doc: str) -> dict[str, str]:
    """Return the lines "Word: text" of a docstring, with their continuation lines."""
    paragraphs = re.findall(r"^([A-Z][a-z]+): (.*(?:\n(?![A-Z][a-z]+: |\n).*)*)", doc, re.MULTILINE)
    return {word: " ".join(text.split()) for word, text in paragraphs}


sys.modules.setdefault(PAPERS, _package(PAPERS, ROOT / "papers"))
importlib.import_module(f"{PAPERS}.options")  # so that a config.json may name them wherever this package is imported

"""What may stand on the command line: each command's options as a documented dataclass. The only file that knows tyro.

`parse` reads the words of a command, `parse_with_config` also those of the experiment's configuration, and `complaint`
makes one line of what tyro says about a mistake.
"""

import contextlib
import dataclasses
import functools
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import Positional

from attention_jax import InputError, config as configs
from attention_jax.config import Config
from attention_jax.config.sweep import Method
from attention_jax.ledger import Reproduction

Command = TypeVar("Command")
Lists = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
"""An option that takes several values and may be repeated: a tuple for each time that it was given."""


def place(metavar: str):
    """How the help calls an argument that is known by its place."""
    return tyro.conf.arg(metavar=metavar)


@dataclass(frozen=True)
class List:
    """The experiments by chapter, a line each; all about one with its NAME."""

    experiment: Annotated[Positional[str], place("[NAME]")] = ""
    """An experiment: claim, source, data, command, cost, variants, verdicts, and how to give it data of your own."""


@dataclass(frozen=True)
class Train:
    """Train an experiment, any of its options changed: --model.hidden-size 128 ... (`launch.py train NAME --help`)."""

    experiment: Annotated[Positional[str], place("NAME")]
    """An experiment of `launch.py list`, or a file of your own, such as my/experiment.py; before all options."""
    preset: str = ""
    """One of the sizes that the experiment offers (`launch.py list NAME`): small, base, big."""
    out: str = ""
    """Directory of the run; by default a fresh runs/NAME/001, 002, ..."""
    resume: bool = False
    """Go on with the run in --out, or with the newest one; what is not said again stays as it was."""
    trust_code: bool = False
    """With --resume: import code from outside of this package and the experiment that the run names."""
    init_weights: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Begin with these weights and their model: a run, or a file of `launch.py import --help`."""
    coordinator: str = ""
    """Several hosts: HOST:PORT of the first, or auto (Slurm, Open MPI, Kubernetes, TPU pods)."""
    hosts: int = 0
    """How many hosts there are (not with auto)."""
    host: int = 0
    """Which of them this is, from 0 (not with auto)."""


@dataclass(frozen=True)
class Export:
    """Write a run's weights as safetensors or .npz, or what it computes as StableHLO, to a new directory."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/vit_digits/001."""
    to: Literal["safetensors", "npz", "stablehlo"] = "safetensors"
    """Weights as one of two kinds of files, or programs that run without this package."""
    naming: Literal["own", "timm", "huggingface", "google", "marian"] = "own"
    """Whose names the arrays have, with the config.json that library reads: of a ViT timm, huggingface or google
    (AugReg), of a Transformer marian."""
    platforms: tuple[Literal["cpu", "cuda", "tpu"], ...] = ("cpu", "cuda", "tpu")
    """Of StableHLO: a program each."""
    out: str = ""
    """The directory to make; by default RUN/export/NAMING or RUN/export/stablehlo."""
    trust_code: bool = False
    """Import code from outside of this package that the run names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Import:
    """Make a run of an experiment out of a file of weights, fitted to its data: to evaluate, predict and train on."""

    experiment: Annotated[Positional[str], place("NAME")]
    """An experiment of `launch.py list`, or a file of your own; before all options."""
    file: Annotated[Positional[str], place("FILE")]
    """safetensors or .npz, or a directory with one and its config.json. The names tell whose it is: this package's, or
    a ViT's of timm, Hugging Face or google-research (AugReg), or an encoder-decoder's of Marian (Hugging Face)."""
    out: str = ""
    """Directory of the run; by default a fresh runs/NAME/001, 002, ..."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a finished run on its held-out data."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/date_luong/001."""
    trust_code: bool = False
    """Import code from outside of this package that the run names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Predict:
    """What the model of a run makes of each text; of a vision model's run, of each image file."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/date_luong/001."""
    texts: Annotated[Positional[tuple[str, ...]], place("TEXT ...")]
    """The texts, each in quotes: "May 1, 1999"."""
    attention: str = ""
    """Draw where the model looks into this file: look.png."""
    trust_code: bool = False
    """Import code from outside of this package that the run names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Look:
    """Where the model of a run looks: one HTML file, which needs no network and no server."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/date_luong/001."""
    texts: Annotated[Positional[tuple[str, ...]], place("[TEXT or FILE ...]")] = ()
    """Texts in quotes, image files, or files that end in .txt with one of these a line; by default held-out ones."""
    out: str = ""
    """The file to write; by default figures/look.html of the run, or figures/look-own.html of texts of your own."""
    trust_code: bool = False
    """Import code from outside of this package that the run names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Translate:
    """Translate a text file line by line."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/multi30k_ende_tiny/001."""
    file: Annotated[Positional[str], place("FILE")]
    """A text file in UTF-8, a sentence a line; empty lines stay empty."""
    out: str = ""
    """The file to write; by default standard output."""
    trust_code: bool = False
    """Import code from outside of this package that the run names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Watch:
    """Curves, pace, time left and newest samples of a run while it trains, until it has ended."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/date_luong/001."""
    once: bool = False
    """Show how it stands now and stop."""


@dataclass(frozen=True)
class Plot:
    """Draw the figures of a finished run again."""

    run: Annotated[Positional[str], place("RUN")]
    """The directory of a run, such as runs/date_luong/001."""
    trust_code: bool = False
    """Import code from outside of this package that the run names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Reproduce(Reproduction):
    """Run experiments and judge their claims; options of the experiment may be added: --data.path P ..."""

    names: Annotated[Positional[tuple[str, ...]], place("[NAME ...]")] = ()
    """Experiments of `launch.py list`, or files of your own; by default all that there are."""
    rows: str = ""
    """Run what this file registers, such as experiments/replication.json, in its order (docs/replication.md)."""
    check: bool = False
    """Run recorded runs again, as many as fit --minutes, in runs/check, and hold their numbers against the record."""
    minutes: float = 30.0
    """Of --check: the time there is; of each chapter the cheapest run, then more."""
    local_data: str = ""
    """Of --check and --rows: a directory with the files that recorded commands name (date.txt.gz, multi30k), in it or
    one deeper; what is neither there nor in the cache is skipped.
    """


@dataclass(frozen=True)
class Sweep:
    """Search the options of an experiment; a sweep that is there goes on. Its other options may be added."""

    experiment: Annotated[Positional[str], place("NAME")]
    """An experiment of `launch.py list`; before all options."""
    over: Lists = ()
    """optim.learning-rate=1e-4..1e-2:log model.hidden-size=64,128 ...; by default the experiment's own."""
    seeds: int = 1
    """Runs of each trial, with seeds from --train.seed on; their mean counts."""
    trials: int = 0
    """Points to try; 0: the whole grid, or 20."""
    method: Method = "auto"
    """auto: a grid of lists, otherwise random."""
    metric: str = ""
    """What is best on validation data, such as valid.bleu; by default --train.best-metric. No metric of test data."""
    jobs: int = 0
    """Worker processes; 0 runs everything in this one."""
    ray: str = ""
    """auto, or HOST:PORT of a Ray cluster."""
    population: int = 64
    """Most runs in one compiled program; 1: every run by itself."""
    out: str = ""
    """Directory of the sweep, by default runs/sweeps/NAME."""
    dry_run: bool = False
    """Only show the trials and estimate the time."""
    record: bool = False
    """Keep the results in experiments/results, as reproduce does."""


@dataclass(frozen=True)
class SweepReport:
    """The table, figures and best command of a sweep, also while it is running."""

    directory: Annotated[Positional[str], place("DIR")]
    """The directory of a sweep, such as runs/sweeps/date_luong."""
    trust_code: bool = False
    """Import code from outside of this package that the sweep names: a score, model or dataset of somebody's own."""


@dataclass(frozen=True)
class Compile:
    """What training, evaluating and decoding need on chips that are absent; the experiment's options may be added."""

    experiment: Annotated[Positional[str], place("NAME")]
    """An experiment of `launch.py list` that trains, or a file of your own; before all options."""
    target: str
    """The chips: v5e:2x4, v6e:2x2, v5p:2x2x1, h200:8, h100, a100, b200, ...; without a size it is one."""
    variant: str = ""
    """One of the variants that the experiment compares, instead of its own configuration."""
    facts: Lists = ()
    """Sizes of data that are not at hand: classes=1000 train_images=8192 ...; nothing is downloaded."""
    out: str = ""
    """Also write all figures to this JSON file."""


@dataclass(frozen=True)
class Bench:
    """Measure side by side with peers; each benchmark has options of its own: launch.py bench WHAT --help."""

    what: Annotated[Positional[str], place("WHAT")]
    """attention, compile, date, input, ntm, sweep, transformer, translation or vision."""


def parse(kind: type[Command], words: Sequence[str], *before: str) -> Command:
    """The options in `words`, as a dataclass.

    `before` are the words of the command so far. --help prints and exits with code 0. Raises InputError with tyro's
    complaint in one line.
    """
    return _tyro(kind, words, before or (command_name(kind),))


def parse_call(function: Callable, words: Sequence[str], *before: str) -> Callable[[], Any]:
    """`function` with its options in `words`, still to be called: outside of the parser, which keeps stderr to itself
    and takes any SystemExit for a mistake in the options."""

    @functools.wraps(function)
    def later(*args, **options):
        return functools.partial(function, *args, **options)

    return _tyro(later, words, before)


def parse_known(kind: type[Command], words: Sequence[str]) -> tuple[Command, list[str]]:
    """What `words` say about a command whose other options depend on it, and the rest of the words.

    --help is the command's own only where nothing stands before it.
    """
    if words and words[0] in ("-h", "--help"):
        return parse(kind, words), []
    return _tyro(kind, words, (command_name(kind),), return_unknown_args=True, add_help=False)


def parse_with_config(
    kind: Callable[..., Command], words: Sequence[str], default: Callable[[Command], Config]
) -> tuple[Command, Config]:
    """The options of a command and the configuration of an experiment, checked.

    Two passes: the first reads the command's own options, from which `default` finds the configuration (a stored one
    for --resume); the second reads all words, the fields of that configuration among them.
    """
    first, _ = parse_known(kind, words)
    config = default(first)
    refuse_earlier_names(config, words)
    fields = Annotated[tyro.conf.SuppressFixed[configs.concrete(config)], tyro.conf.arg(name="")]
    own = Annotated[kind, tyro.conf.arg(name="")]
    joined = dataclasses.make_dataclass(
        kind.__name__, [("options", own), ("config", fields, dataclasses.field(default=config))]
    )
    joined.__doc__ = kind.__doc__
    both = parse(joined, words, command_name(kind), *words[:1])
    return both.options, both.config


def refuse_earlier_names(config: Config, words: Sequence[str]):
    """InputError with the name that an option has now, where `words` have an earlier one."""
    said = {word.partition("=")[0].replace("_", "-") for word in words}
    for earlier, name in configs.earlier_names(config).items():
        if configs.option_name(earlier) in said:
            raise InputError(f"{configs.option_name(earlier)} is now called {configs.option_name(name)}")


def command_name(kind: type) -> str:
    """The word for a command.

    >>> command_name(SweepReport)
    'sweep-report'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def complaint(box: str) -> str:
    """One line of the box that tyro draws around a mistake: the title is left out, a rule inside becomes a semicolon.

    An `InputError` of a dataclass of options names the option itself.

    >>> complaint("╭─ Missing argument ─╮\\n│ Missing value for  │\\n│ argument '--out'.  │\\n╰────────────────────╯")
    "Missing value for argument '--out'."
    """
    lines = [re.sub(r"^[│╰─\s]+|[│╯─\s]+$", "", line) for line in box.splitlines()[1:]]
    parts = [re.sub(r"\s+", " ", part).strip() for part in "\n".join(lines).split("\n\n")]
    line = "; ".join(part for part in parts if part and not part.startswith("For full helptext"))
    return re.sub(r"^Error parsing [\w.]+: (?=--)", "", line)


def _tyro(kind: Callable, words: Sequence[str], before: Sequence[str], **settings) -> Any:
    """tyro's parser, with its complaint as an InputError."""
    command = " ".join(["launch.py", *before])
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(kind, args=words, prog=command, **settings)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(f"{complaint(box.getvalue())}; see {command} --help") from None

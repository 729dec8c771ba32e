"""The options of every command, a documented dataclass each. The only file that imports tyro.

`parse` reads the arguments of a command, `parse_with_config` also the options of an experiment's configuration, and
the names of options are checked before tyro reads their values.
"""

import contextlib
import dataclasses
import difflib
import functools
import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import Positional

from attention_jax import config as configs
from attention_jax.claims.record import Reproduction
from attention_jax.cli.help import NEEDED, command_help, common_help, list_option_names, unknown_option
from attention_jax.config import Config
from attention_jax.config.fields import field_docs
from attention_jax.config.options import Method
from attention_jax.config.per_layer import overlay_per_layer
from attention_jax.errors import InputError

Command = TypeVar("Command")
ALL = "--help-all"
"""Shows every option of an experiment, of which `--help` shows those that are changed most."""
Lists = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
"""An option that takes several values and may be repeated: one tuple per occurrence."""


def positional(metavar: str):
    """The name of a positional argument in the help."""
    return tyro.conf.arg(metavar=metavar)


@dataclass(frozen=True)
class RunCommand:
    """Arguments of every command about a run."""

    run: Annotated[Positional[str], positional("RUN")]
    """The directory of a run, such as runs/date_luong/001, or of a pretrained model, or a .gguf file."""
    trust_code: bool = dataclasses.field(default=False, kw_only=True)
    """Import code that the run names from outside of this package: a custom score, model, dataset or optimizer."""


@dataclass(frozen=True)
class FileCommand:
    """Arguments of every command that writes a file where the user says."""

    force: bool = dataclasses.field(default=False, kw_only=True)
    """Replace files that exist already."""


@dataclass(frozen=True)
class List:
    """List the experiments: all, those of a chapter, or those with a word; with a NAME or RUN, show all about it."""

    experiment: Annotated[Positional[str], positional("[NAME, WORD or RUN]")] = ""
    """An experiment: claim, source, data, command, cost, variants, results, and how to run it on your own data. Or a
    chapter or a word, such as vision or multi30k, of the experiments to list. Or the directory of a run, to watch it
    train: its progress, remaining time, metrics and latest samples."""


@dataclass(frozen=True)
class Train:
    """Train an experiment; any of its options can be changed, such as --model.hidden-size 128."""

    experiment: Annotated[Positional[str], positional("NAME")]
    """An experiment of `launch.py list`, or your own file, such as my/experiment.py; before all options."""
    preset: str = ""
    """One of the sizes that the experiment offers, if it has any (`launch.py list NAME`)."""
    out: str = ""
    """Directory of the run; by default a fresh runs/NAME/001, 002, ..."""
    resume: bool = False
    """Resume the run in --out, or the newest one; unspecified options keep their stored values."""
    trust_code: bool = False
    """With --resume: import code that the run names from outside of this package and the experiment."""
    init_weights: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Begin with these weights and their model: a run directory, or a file that `launch.py import --help` describes."""
    coordinator: str = ""
    """Train on several hosts: HOST:PORT of the first, or auto (Slurm, Open MPI, Kubernetes, TPU pods)."""
    hosts: int = 0
    """Number of hosts (not with auto)."""
    host: int = 0
    """Index of this host, from 0 (not with auto)."""


@dataclass(frozen=True)
class Export(RunCommand):
    """Export a run's weights as safetensors or .npz, a fine-tuned model to Hugging Face, or a run's computation as
    StableHLO."""

    to: Literal["safetensors", "npz", "huggingface", "stablehlo"] = "safetensors"
    """Weights in one of two file formats, the directory of Hugging Face that the model came from with its weights now,
    or StableHLO programs that run without this package."""
    naming: Literal[
        "own",
        "timm",
        "huggingface",
        "google",
        "marian",
        "gpt2",
        "llama",
        "qwen2",
        "qwen3",
        "bert",
        "roberta",
        "distilbert",
    ] = "own"
    """Names of the arrays, with the config.json that the library reads: timm, huggingface or google (AugReg) for a ViT,
    marian for a Transformer, gpt2, llama, qwen2 or qwen3 for a LanguageModel, the others for a MaskedLanguageModel."""
    platforms: tuple[Literal["cpu", "cuda", "tpu"], ...] = ("cpu", "cuda", "tpu")
    """Platforms of the StableHLO programs, one program each."""
    out: str = ""
    """Directory to create; by default RUN/export/NAMING, or huggingface or stablehlo in the place of NAMING."""


@dataclass(frozen=True)
class Import:
    """Create a run of an experiment from a file of weights, fitted to its data, to evaluate, predict or fine-tune."""

    experiment: Annotated[Positional[str], positional("NAME")]
    """An experiment of `launch.py list`, or a file of your own; before all options."""
    file: Annotated[Positional[str], positional("FILE")]
    """safetensors or .npz, or a directory with one and its config.json. The names of the arrays determine the format:
    this package, a ViT of timm, Hugging Face or google-research (AugReg), or MarianMT or GPT-2 (Hugging Face)."""
    out: str = ""
    """Directory of the run; by default a fresh runs/NAME/001, 002, ..."""


@dataclass(frozen=True)
class Evaluate(RunCommand, FileCommand):
    """Evaluate a finished run on its held-out data, a classifier also on new labeled data, or a language model on a
    text."""

    figures: bool = False
    """Also plot the figures of the run again."""
    data: str = ""
    """New data for a classifier, instead of its held-out ones: a file of labeled texts as --data.tsv-file takes it, or
    a directory with one sub-directory of images per class."""
    out: str = ""
    """With --data: a .csv, .tsv, .jsonl or .parquet for the number, label, predicted class and text of each example."""
    text: str = ""
    """A text file for a language model, a run or a pretrained one, whose perplexity on it is printed."""


@dataclass(frozen=True)
class Predict(RunCommand, FileCommand):
    """Print the output of a run's model for each text, or for each image file. Options of a pretrained model, which
    comes before them, may be added: --model.normalizer "top_k(32)" --decode.length 40 ..."""

    texts: Annotated[Positional[tuple[str, ...]], positional("TEXT or FILE ...")]
    """Texts in quotes, "May 1, 1999", image files, or files of these: .txt with one per line (- is standard input, read
    while it is written), or a column of a .csv, .tsv, .jsonl or .parquet."""
    out: str = ""
    """Write a table to a .csv, .tsv, .jsonl or .parquet: the columns of the input and the predictions, of a classifier
    the class and the probabilities of all classes. To any other file, such as a .txt, write the outputs alone, to
    translate a file line by line: an empty line stays empty."""
    column: str = ""
    """The column of the texts in a table, or its number in one without a header; by default text, of a translator
    source, of an image model path, or the only column of a .jsonl or .parquet."""
    attention: str = ""
    """Also draw attention maps to this file: look.png."""
    temperature: float | None = None
    """Of a language model: sample tokens from softmax(logits / temperature); 0 takes the most probable one."""
    top_k: int | None = None
    """Of a language model: sample from this many of the most probable tokens; 0 is all."""
    top_p: float | None = None
    """Of a language model: sample from the fewest tokens whose probabilities add up to this."""
    length: int | None = None
    """Of a language model: tokens to generate."""
    chat: bool = False
    """Answer each text as what a user says to an instruct model, by the chat template in its files."""


@dataclass(frozen=True)
class Look(RunCommand, FileCommand):
    """Show the attention maps of a run's model in one HTML file, which needs no network and no server. Options of a
    pretrained model, which comes before them, may be added: --model.normalizer "top_k(32)" ..."""

    texts: Annotated[Positional[tuple[str, ...]], positional("[TEXT or FILE ...]")] = ()
    """Texts in quotes, image files, or .txt files with one of these per line (- is standard input); by default held-out
    examples."""
    out: str = ""
    """The file to write; by default figures/look.html of the run, or figures/look-own.html of texts of your own; of a
    pretrained model NAME.html in the working directory, where NAME is that of its directory or file."""


@dataclass(frozen=True)
class Reproduce(Reproduction):
    """Run experiments and evaluate their claims; options of the experiment may be added: --data.path P ..."""

    names: Annotated[Positional[tuple[str, ...]], positional("[NAME ...]")] = ()
    """Experiments of `launch.py list`, or files of your own; all of them with --check or --scale smoke."""
    check: bool = False
    """Re-run recorded runs in runs/check, as many as fit --minutes, and compare with the recorded numbers."""
    minutes: float = 30.0
    """Time budget of --check: the cheapest run of each chapter, then more."""
    local_data: str = ""
    """With --check: a directory that contains the files of recorded commands (date.txt.gz, multi30k), or one
    level deeper; runs whose data are neither there nor in the cache are skipped.
    """


@dataclass(frozen=True)
class Sweep:
    """Search the options of an experiment; an existing sweep is resumed. Its other options may be added."""

    experiment: Annotated[Positional[str], positional("NAME")]
    """An experiment of `launch.py list`, or its file in experiments/; before all options."""
    init_weights: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Begin with these weights and their model: a run directory, or a file that `launch.py import --help` describes."""
    over: Lists = ()
    """optim.learning-rate=1e-4..1e-2:log model.hidden-size=64,128 ...; by default that of the experiment."""
    seeds: int = 1
    """Runs per trial, with consecutive seeds from --train.seed; trials are ranked by the mean over seeds."""
    trials: int = 0
    """Trials; 0: the whole grid, or 20."""
    method: Method = "auto"
    """Search method; auto: a grid where all parameters are lists, otherwise random."""
    metric: str = ""
    """Validation metric that ranks the trials, such as valid.bleu; by default --train.best-metric."""
    jobs: int = 0
    """Worker processes; 0 runs everything in the main process."""
    ray: str = ""
    """auto, or HOST:PORT of a Ray cluster."""
    population: int = 64
    """The maximum number of runs that one compiled program trains together; 1 trains each separately."""
    out: str = ""
    """Directory of the sweep, by default runs/sweeps/NAME."""
    dry_run: bool = False
    """Only show the trials."""
    report: bool = False
    """Only write the table, figures and best command of the sweep in --out, also while it is running."""
    record: bool = False
    """Write the results to experiments/results, as reproduce does."""


@dataclass(frozen=True)
class Compare(FileCommand):
    """Compare runs of different options, grouped by these: a table with 95 % intervals over seeds, and one figure."""

    runs: Annotated[Positional[tuple[str, ...]], positional("RUN ...")]
    """Runs, directories of runs (runs/NAME) or of a sweep, and recorded results (experiments/results/NAME.json)."""
    metric: str = ""
    """The metric to compare; by default the last one of the test split, or of validation, that all runs have."""
    out: str = ""
    """A figure of the learning curves of all variants, and of their differences to the first with 95 %
    intervals: fig.pdf, .svg or .png."""
    curve: str = ""
    """The metric of this figure, by default that of the table."""
    latex: str = ""
    """A file for the table in LaTeX (booktabs)."""
    csv: str = ""
    """A file for the numbers of all runs, a line each."""


@dataclass(frozen=True)
class Check:
    """Check your own score, normalizer, bias, mask or pooling: what must hold for it in `attend`; your own layer of
    self-attention: does it keep its mask, and decode with a cache; or which laws an attention function (query, key,
    value) obeys (docs/laws.md)."""

    rule: Annotated[Positional[str], positional("mine:Score")]
    """The import path of the class, with arguments or without, or a name, such as gaussian; or of a function."""
    symmetric: bool = False
    """A score is claimed to be the same with query and key exchanged."""


@dataclass(frozen=True)
class Bench:
    """Benchmark against other libraries; options of a benchmark: launch.py bench WHAT --help."""

    benchmark: Annotated[Positional[str], positional("WHAT")]
    """attention, attribution, card, date, normalizers, pretrained, registers, transformer, translation, variants,
    vision."""


def parse(kind: type[Command], words: Sequence[str]) -> Command:
    """The options in the arguments `words`, as a dataclass.

    --help prints and exits with code 0. Raises InputError with tyro's message in one line.
    """
    if {"-h", "--help"} & {*words}:
        print(command_help(command_name(kind), kind))
        raise SystemExit(0)
    return _parse_with_tyro(kind, words, (command_name(kind),))


def parse_call(function: Callable, words: Sequence[str], *command_words: str) -> Callable[[], Any]:
    """Return `function` with its options from `words`, to be called outside of the parser, which captures stderr and
    takes any SystemExit for an error in the options."""

    @functools.wraps(function)
    def later(*args, **options):
        return functools.partial(function, *args, **options)

    return _parse_with_tyro(later, words, command_words)


def parse_known(kind: type[Command], words: Sequence[str]) -> tuple[Command, list[str]]:
    """Return the options of a command on which its further options depend, and the remaining arguments.

    --help belongs to the command only if it comes first.
    """
    if words and words[0] in ("-h", "--help"):
        return parse(kind, words), []
    return _parse_with_tyro(kind, words, (command_name(kind),), partial=True)


def parse_with_config(
    kind: Callable[..., Command], words: Sequence[str], default: Callable[[Command], Config]
) -> tuple[Command, Config]:
    """Return the validated options of a command and the configuration of an experiment.

    There are two passes: the first reads the command's options, from which `default` finds the configuration (a stored
    one for --resume); the second reads all words, including the fields of that configuration.
    """
    wants_help = bool({"-h", "--help"} & {*words})
    try:
        first, _ = parse_known(kind, words)
    except InputError:
        if not wants_help:
            raise
        return parse(kind, ["--help"])  # which exits
    config = default(first)
    fields = Annotated[tyro.conf.SuppressFixed[configs.concrete(config)], tyro.conf.arg(name="")]
    command_type = Annotated[kind, tyro.conf.arg(name="")]
    joined = dataclasses.make_dataclass(
        kind.__name__, [("options", command_type), ("config", fields, dataclasses.field(default=config))]
    )
    joined.__doc__ = kind.__doc__
    command_words = (command_name(kind), *words[:1])
    if wants_help:
        print(common_help(command_words[0], getattr(first, "experiment", "") or config.name, kind, config))
        raise SystemExit(0)
    option_names = (*list_option_names(kind, config), "help_all")
    parsed = _parse_with_tyro(
        joined, ["--help" if word == ALL else word for word in words], command_words, option_names
    )
    model = overlay_per_layer(config.model, parsed.config.model)
    return parsed.options, parsed.config if model is parsed.config.model else dataclasses.replace(
        parsed.config, model=model
    )


def parse_with_model(
    kind: Callable[..., Command], words: Sequence[str], model: configs.ModelOptions, decode: configs.Generation | None
) -> tuple[Command, configs.ModelOptions, configs.Generation | None]:
    """Return the options of a command about a pretrained model, those of the model and those of sampling, if any."""
    command_type = Annotated[kind, tyro.conf.arg(name="")]
    fields = [("options", command_type), ("model", type(model), dataclasses.field(default=model))]
    fields += [] if decode is None else [("decode", configs.Generation, dataclasses.field(default=decode))]
    joined = dataclasses.make_dataclass(kind.__name__, fields)
    joined.__doc__ = kind.__doc__
    names = [
        f"{section}.{name}"
        for section, options in (("model", model), ("decode", decode))
        if options
        for name, _, _ in configs.walk(options)
    ]
    parsed = _parse_with_tyro(joined, words, (command_name(kind), *words[:1]), [*list_option_names(kind), *names])
    return parsed.options, overlay_per_layer(model, parsed.model), getattr(parsed, "decode", None)


def command_name(kind: type) -> str:
    """The name of a command on the command line.

    >>> command_name(Train)
    'train'
    """
    return kind.__name__.lower()


def suggest_commands(name: str, commands: Iterable[str]) -> list[str]:
    """Return the commands that a name may mean: those with all its words in their help, else one that is spelled alike.

    >>> suggest_commands("trian", ["list", "train"]), suggest_commands("translate", ["list", "train", "predict"])
    (['train'], ['predict'])
    """
    words, matches = {*re.findall(r"\w{3,}", name.lower())}, []
    for command in commands:
        kind = globals()[command.title()]
        help_text = " ".join([command, kind.__doc__ or "", *sum(field_docs(kind).items(), ())])
        if words and words <= {*re.findall(r"\w+", help_text.lower())}:
            matches.append(command)
    return matches[:2] or difflib.get_close_matches(name, commands, n=1)


def unbox_error(box: str) -> str:
    """Convert tyro's boxed error message to one line, without its title; a rule within the box becomes a semicolon.

    An `InputError` of a dataclass of options names the option itself.

    >>> unbox_error("╭─ Missing argument ─╮\\n│ Missing value for  │\\n│ argument '--out'.  │\\n╰────────────────────╯")
    "Missing value for argument '--out'."
    """
    titled = [line for line in box.splitlines() if not re.match(r"\s*(╭─|\+-|--- ?)", line)]
    lines = [re.sub(r"^\s*[│|]\s*|\s*[│|]\s*$", "", line) for line in titled]
    lines = ["" if re.fullmatch(r"[\s─╰╯+-]*", line) else line for line in lines]
    paragraphs = [re.sub(r"\s+", " ", paragraph).strip() for paragraph in "\n".join(lines).split("\n\n")]
    line = "; ".join(
        paragraph for paragraph in paragraphs if paragraph and not paragraph.startswith("For full helptext")
    )
    return re.sub(r"^Error parsing [\w.]+: (?=--)", "", line)


def explain_unexpected(extra: Sequence[str], typed: Sequence[str]) -> str:
    """Return the error message for the words `extra` of those that were `typed`, which no option takes, with a hint if
    one looks like a file or like the value of a flag.

    >>> explain_unexpected(["pairs.tsv"], ["pairs.tsv"])
    'unexpected pairs.tsv: a file of data is given by its option, such as --data.tsv-file FILE'
    """
    separate = [piece for word in typed for piece in (word.split("=", 1) if word.startswith("--") else [word])]
    for name, value in itertools.pairwise(separate):
        if name.startswith("--") and value.lower() in ("true", "false") and value in extra:
            head, dot, last = name[2:].rpartition(".")
            last = last.removeprefix("no-")
            return f"{name} takes no value, got {value}: give --{head}{dot}{last} or --{head}{dot}no-{last}"
    is_file = any(re.search(r"[./]", word) for word in extra)
    hint = ": a file of data is given by its option, such as --data.tsv-file FILE" if is_file else ""
    return f"unexpected {' '.join(extra)}{hint}"


def _parse_with_tyro(
    kind: Callable,
    words: Sequence[str],
    command_words: Sequence[str],
    option_names: Sequence[str] = (),
    partial: bool = False,
) -> Any:
    """tyro's parser, with an error as an InputError; if `partial`, return what it does not know, too.

    `option_names` are the dotted names of the options of a command and of an experiment, by default those of `kind`.
    """
    command, box, extra = " ".join(["launch.py", *command_words]), io.StringIO(), []
    names = option_names or list_option_names(kind)
    message = "" if partial or not names else unknown_option(words, names)
    try:
        if not message:
            with contextlib.redirect_stderr(box):
                result, extra = tyro.cli(kind, args=words, prog=command, return_unknown_args=True, add_help=not partial)
    except SystemExit as stop:
        if stop.code != 2:  # --help, or a signal
            raise
        message = unbox_error(box.getvalue())
        if missing := re.match(r"Missing from [^:]*: ([A-Z]+) ", message):
            message = f"{command_words[0]} needs {NEEDED.get(missing[1]) or missing[1]}"
            raise InputError(message) from None
        if "Missing value for argument 'experiment'" in message:
            raise InputError(f"{command_words[0]} needs {NEEDED['NAME']}; it comes before all options") from None
    if partial and not message:
        return result, extra
    if extra:
        message = unknown_option(extra, ()) or explain_unexpected(extra, words)
    if message:
        raise InputError(f"{message}; see {command} {ALL if 'help_all' in names else '--help'}")
    return result

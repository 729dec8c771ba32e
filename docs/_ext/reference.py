"""Write the reference pages of the documentation from the code: public names, options, commands.

`pages()` returns Markdown by file name and needs nothing but the package itself. As a Sphinx extension, this file
writes them to docs/generated/ before the pages are read. Signatures are taken from the source text, so that shapes
look as they were written, `Float[Array, "Q D"]`, and no default shows an address in memory.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
import typing
from pathlib import Path

import attention_jax
from attention_jax import config as configs
from attention_jax.cli import command_options
from attention_jax.cli.commands import COMMANDS
from attention_jax.config import DataOptions, Grid, ModelOptions, Options
from attention_jax.config.fields import field_docs
from attention_jax.declarations import Claim, Threshold

GROUPS = {
    "attention": (
        "Attention functions",
        ("ops.attention", "ops.heads", "ops.dispatch", "ops.dropin", "ops.blockwise.ring", "ops.kernel_regression"),
    ),
    "scores": ("Score functions", ("ops.scores",)),
    "masks": ("Masks", ("ops.masks",)),
    "biases": ("Biases and relative positions", ("ops.biases",)),
    "normalizers": ("Normalizers: softmax, entmax, sigmoid and others", ("ops.normalizers",)),
    "pooling": ("Pooling: mean, variance and local linear attention", ("ops.pooling",)),
    "models": ("Models (Flax Linen modules)", ("models",)),
    "runs": (
        "Pretrained models, experiments and runs from Python",
        ("pretrained.load", "pretrained.interface", "runs.api", "catalog"),
    ),
    "interpret": ("Interventions, lenses and attributions", ("interpret",)),
    "decoding": ("Greedy and beam search, sampling", ("decode", "sampling")),
    "recurrences": ("Retention (RetNet, Mamba-2) and the delta rule", ("ops.retention", "ops.delta")),
    "pytrees": ("Custom pytrees", ("ops.trees",)),
    "errors": ("Exceptions", ("errors",)),
}
"""Page of the API reference: its title, and the modules of `attention_jax` whose public names are on it."""
CONFIG_TITLE = "Configurations and claims from Python"
FIRST = (
    "Softmax", "Sigmoid", "Softpick", "Sparsemax", "Entmax", "TopK", "StickBreaking", "ReluPower", "ScaledDot", "Dot",
    "Additive", "Bilinear", "Concat", "Cosine", "QKNorm", "SoftCap", "Gaussian", "causal", "lengths", "sliding_window",
    "window", "segments", "dense", "Mean", "ALiBi", "Forget", "T5Bias", "ShawBias", "Transformer", "LanguageModel",
    "ViT",
    "MultiHeadAttention", "trace", "run", "Part", "ablate", "patch", "patch_sweep",
    "attend", "attend_heads", "attention_weights", "explain",
    "load_pretrained", "Pretrained", "load_experiment", "train_run", "load_run", "import_run", "export_run",
)  # fmt: skip
"""What most users need, in this order; the rest of a page follows, and base classes come last."""
ERRORS = ("InputError", "Diverged", "Interrupted", "lower_is_better")
HIDDEN = {"parent", "name", "kinds"}
MODEL_METHODS = {"__call__", "encode", "decode", "start", "step", "output"}
"""What code outside of a Flax module calls; the other methods are its parts."""


def pages() -> dict[str, str]:
    """Each generated page: {file name: Markdown}."""
    api = {f"api_{name}.md": _api_page(title, modules) for name, (title, modules) in GROUPS.items()}
    api |= {"api_config.md": config_functions(), "api.md": api_index()}
    return api | {"configuration.md": configuration(), "cli.md": commands()}


# --- public names -----------------------------------------------------------------------------------------------------


def public_names(module: str) -> dict[str, object]:
    """The public names of a module of `attention_jax`, {path by which users import it: function or class}.

    >>> list(public_names("ops.heads")), list(public_names("ops.pooling"))[-1], list(public_names("ops.delta"))[0]
    (['attention_jax.attend_heads'], 'attention_jax.pooling.Pool', 'attention_jax.ops.delta.chunked_delta')
    """
    top = [name for name, home in attention_jax.HOMES.items() if home == f"attention_jax.{module}"]
    module_object = importlib.import_module(f"attention_jax.{module}")
    names = ERRORS if module == "errors" else getattr(module_object, "__all__", top)
    module_name = module.rpartition(".")[2]
    space = f"attention_jax.{module_name if module_name in attention_jax.HOMES else module}"
    exported = {*attention_jax.__all__}
    return {f"{'attention_jax' if name in exported else space}.{name}": getattr(module_object, name) for name in names}


def api_index() -> str:
    """The page that lists all public names by task, each with the first sentence of its docstring."""
    groups = {f"api_{name}": (title, rank_names(modules)) for name, (title, modules) in GROUPS.items()}
    groups["api_config"] = CONFIG_TITLE, config_names()
    text = ["(api-index)=\n# API: all public names"]
    for page, (title, objects) in groups.items():
        lines = [f"* [`{_short_path(path)}`](#{_anchor(path)}): {first_line(value)}" for path, value in objects.items()]
        text += [f"## [{title}]({page}.md)", "\n".join(lines)]
    tree = [f"{page.removeprefix('api_').capitalize()} <{page}>" for page in groups]
    text.append("\n".join(["```{toctree}", ":hidden:", ":maxdepth: 1", "", *tree, "```"]))
    return "\n\n".join(text) + "\n"


def first_line(value) -> str:
    """The first sentence of a docstring, on one line.

    >>> first_line(api_index)
    'The page that lists all public names by task, each with the first sentence of its docstring.'
    """
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`\]]\.) (?=[A-Z])", paragraph)[0]


def _short_path(path: str) -> str:
    """The name with its namespace, as it follows `attention_jax.`; functions of `ops` with their module."""
    return path.removeprefix("attention_jax.").removeprefix("ops.")


def rank_names(modules) -> dict[str, object]:
    """The public names of modules, {path: function or class}, in the order of their page."""
    objects = {path: value for module in modules for path, value in public_names(module).items()}
    return dict(sorted(objects.items(), key=lambda item: rank(*item)))


def _api_page(title: str, modules) -> str:
    objects = rank_names(modules)
    entries = [entry(value, path) for path, value in objects.items()]
    return "\n\n".join([f"# {title}", _contents(objects), *entries]) + "\n"


def rank(path: str, value) -> tuple[bool, int]:
    """The place of a public name on its page: those in FIRST, then the others, then the base classes."""
    name = path.rpartition(".")[2]
    return prose(value).startswith("Base class"), FIRST.index(name) if name in FIRST else len(FIRST)


def config_names() -> dict[str, object]:
    """The functions of `attention_jax.config` and the classes of claims, {path: function or class}."""
    functions = {name: value for name, value in vars(configs).items() if inspect.isfunction(value) and name[0] != "_"}
    paths = {f"attention_jax.config.{name}": value for name, value in functions.items()}
    paths = {path: value for path, value in paths.items() if value.__module__.startswith(configs.__name__)}
    return paths | {f"{kind.__module__}.{kind.__name__}": kind for kind in (Claim, Threshold, Grid)}


def config_functions() -> str:
    """The page of `config_names`; the dataclasses of options are in the configuration reference."""
    objects = config_names()
    entries = [entry(value, path) for path, value in objects.items()]
    return "\n\n".join([f"# {CONFIG_TITLE}", _contents(objects), *entries]) + "\n"


def _contents(paths) -> str:
    return ", ".join(f"[`{path.rpartition('.')[2]}`](#{_anchor(path)})" for path in paths)


def _anchor(path: str) -> str:
    """The label of a name; a claim's `Threshold` has another than the normalizer."""
    name = path.rpartition(".")[2].lower().replace("_", "-")
    return f"api-claim-{name}" if ".declarations." in path else f"api-{name}"


def entry(value, path: str) -> str:
    """The entry of a function or class: anchor, signature, docstring, and the methods that a class defines."""
    head = f"({_anchor(path)})="
    if not inspect.isclass(value):
        return f"{head}\n" + _directive("function", f"{path}{signature(value)}", prose(value))
    body = [prose(value), *_fields(value), *_methods(value)]
    return f"{head}\n" + _directive("class", f"{path}{class_signature(value)}", "\n\n".join(filter(None, body)))


def _directive(kind: str, line: str, body: str, option: str = "") -> str:
    """A directive of Sphinx' Python domain; its fence is longer than any inside of it."""
    longest = max([2, *(len(fence) for fence in re.findall(r"^`{3,}", body, re.MULTILINE))])
    fence = "`" * (longest + 1)
    return f"{fence}{{py:{kind}}} {line}\n{option}\n{body}\n{fence}"


def _methods(kind: type) -> list[str]:
    """The public methods and properties that a class of this package documents, a nested directive each.

    Those that it takes from a public base class are only named.
    """
    methods, bases = {}, [parent for parent in _parents(kind)[1:] if parent in public_objects()]
    for parent in reversed(_parents(kind)):
        for name, value in vars(parent).items():
            raw = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            raw = raw.fget if isinstance(raw, property) else getattr(raw, "func", raw)
            public = name in MODEL_METHODS if hasattr(kind, "setup") else name == "__call__" or name[0] != "_"
            if public and inspect.isfunction(raw) and raw.__doc__ and raw.__module__.startswith("attention_jax"):
                methods[name] = (value, raw, parent)
    entries, inherited = [], {}
    for name, (value, raw, parent) in methods.items():
        base = next((base for base in bases if name in dir(base)), None)
        if parent is not kind and base is not None:
            inherited.setdefault(base.__name__, []).append(f"`{name}`")
        elif isinstance(value, property) or hasattr(value, "attrname"):
            entries.append(_directive("property", name, prose(raw)))
        else:
            option = ":classmethod:\n" if isinstance(value, classmethod) else ""
            entries.append(_directive("method", f"{name}{signature(raw)}", prose(raw), option))
    inherited_lines = [f"Of [`{base}`](#{_anchor(base)}): {', '.join(names)}." for base, names in inherited.items()]
    return entries + inherited_lines


@functools.cache
def public_objects() -> dict[object, str]:
    """{function or class: path by which users import it} of everything on the API pages."""
    modules = [module for _, modules in GROUPS.values() for module in modules]
    return {value: path for module in modules for path, value in public_names(module).items()}


def _fields(kind: type) -> list[str]:
    """The documented fields of a dataclass, a list."""
    if not dataclasses.is_dataclass(kind):
        return []
    docs = field_docs(kind)
    lines = [f"* `{f.name}`: {docs[f.name]}" for f in dataclasses.fields(kind) if docs.get(f.name)]
    return ["\n".join(lines)] if lines else []


def _parents(kind: type) -> list[type]:
    return [parent for parent in kind.__mro__ if parent.__module__.startswith("attention_jax")]


def _tree(value) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def signature(function) -> str:
    """The arguments and result of a function as its source has them, without `self` and `cls`.

    >>> from attention_jax import attention_weights
    >>> signature(attention_weights).partition(",\\\\n")[0].partition(", key")[0]
    '(query: Float[Array, "Q D"]'
    """
    tree = _tree(inspect.unwrap(function))
    arguments = tree.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        del arguments.args[0]
    result = f" -> {_source(tree.returns)}" if tree.returns else ""
    return f"({_source(arguments)}){result}"


def class_signature(kind: type) -> str:
    """The fields of a dataclass or a Flax module as arguments of its constructor; of another class its `__init__`."""
    if "__init__" in vars(kind) and inspect.isfunction(kind.__init__) and not dataclasses.is_dataclass(kind):
        return signature(kind.__init__).partition(" -> ")[0]
    fields = {}
    if dataclasses.is_dataclass(kind):
        for parent in reversed(_parents(kind)):
            for node in _tree(parent).body:
                if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                    fields[node.target.id] = node
    arguments = [_field(node) for name, node in fields.items() if name not in HIDDEN]
    return f"({', '.join(arguments)})"


def _field(node: ast.AnnAssign) -> str:
    text = f"{node.target.id}: {_source(node.annotation)}"
    if node.value is None:
        return text
    if not isinstance(node.value, ast.Call) or ast.unparse(node.value.func) not in ("field", "dataclasses.field"):
        return f"{text} = {_source(node.value)}"
    default = [word.value for word in node.value.keywords if word.arg == "default"]
    return f"{text} = {_source(default[0])}" if default else text


def _source(node: ast.AST) -> str:
    """The source of an expression, with the double quotes of this code."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', ast.unparse(node))


def prose(value) -> str:
    """The docstring as Markdown: doctests are fenced, and the sections of Google's style become lists."""
    text = inspect.getdoc(value) or ""
    sections = r"Args(?: \(.*\))?|Returns|Raises|Yields|Attributes|Examples?|References?|Note"
    out, code, indent = [], [], None
    for line in [*text.splitlines(), ""]:
        depth = len(line) - len(line.lstrip())
        if line.lstrip().startswith((">>>", "...")) or (code and line.strip()):
            code.append(line)
            continue
        if code:
            out += ["```pycon", *textwrap.dedent("\n".join(code)).splitlines(), "```"]
            code = []
        if re.fullmatch(rf"({sections}):", line):
            out, indent = [*out, f"**{line[:-1]}**", ""], 0
            continue
        if indent is not None and line and not depth:
            indent = None
        if indent is not None and line:
            indent = indent or depth
            line = _item(line.strip()) if depth == indent else f"  {line.strip()}"
        out.append(line)
    return "\n".join(out).strip()


def _item(line: str) -> str:
    """A line "name, other: what it is" of a docstring's section, as an item of a list; other lines stay."""
    match = re.match(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: (.*)", line)
    return "* " + ", ".join(f"`{name}`" for name in match[1].split(", ")) + f": {match[2]}" if match else line


# --- options ----------------------------------------------------------------------------------------------------------

RUN = (
    ("optim", configs.Optim),
    ("train", configs.Train),
    ("decode", configs.Decode),
    ("decode", configs.Sampling),
    ("decode", configs.Generation),
)


def configuration() -> str:
    """The page of all options: optimizer, training and decoding, then each dataset and each model."""
    text = [
        "(configuration-reference)=\n# Configuration reference: every option",
        "A run is described by one `Config` with the parts `data`, `model`, `optim`, `train` and `decode`. Each "
        "option is a field of a frozen dataclass in `attention_jax.config` and a flag of the command line: "
        "`--optim.learning-rate 1e-3` sets `config.optim.learning_rate`. The defaults below are those of the "
        "dataclass; an experiment may set others, which `python launch.py train NAME --help-all` prints. This page is "
        "generated.",
        "## Run",
    ]
    text += [options_table(kind, section) for section, kind in RUN]
    kinds = [kind for kind in Options.kinds.values() if kind.__module__.startswith("attention_jax.")]
    for title, base, section in (("Datasets", DataOptions, "data"), ("Models", ModelOptions, "model")):
        text.append(f"## {title}")
        required_field = "module" if base is ModelOptions else "loader"
        concrete = [kind for kind in kinds if issubclass(kind, base) and hasattr(kind, required_field)]
        text += [options_table(kind, section) for kind in sorted(concrete, key=lambda kind: kind.__name__)]
    return "\n\n".join(text) + "\n"


def options_table(kind: type, section: str) -> str:
    """A heading, the docstring and the table of the options of one dataclass."""
    docs, hints = field_docs(kind), typing.get_type_hints(kind, include_extras=True)
    rows = [
        f"| `--{section}.{f.name.replace('_', '-')}` | {_cell(type_text(hints[f.name]))} | {_cell(_default(f))} "
        f"| {_cell(docs.get(f.name, ''))} |"
        for f in dataclasses.fields(kind)
    ]
    table = ["| option | type | default | meaning |", "|---|---|---|---|", *rows] if rows else ["No options."]
    return "\n\n".join([f"### {kind.__name__}", prose(kind), "\n".join(table)])


def type_text(hint) -> str:
    """A type as a user reads it: the values of a Literal, the names of a choice, or the name of the type.

    >>> type_text(typing.Literal["a", "b"]), type_text(tuple[int, ...]), type_text(float | None)
    ('`a`, `b`', '`int` ...', '`float` or `None`')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        listed = [mark for mark in hint.__metadata__ if hasattr(mark, "names")]
        if not listed:
            return type_text(arguments[0])
        return ", ".join(f"`{name}`" for name in listed[0].names) + " or `package.file:Class`"
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"{type_text(arguments[0])} ..."
    if arguments:
        return " or ".join(type_text(argument) for argument in arguments)
    return f"`{getattr(hint, '__name__', hint)}`".replace("NoneType", "None")


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return "" if field.default == "" or field.default == () else f"`{_plain(field.default)}`"
    return "required" if field.default_factory is dataclasses.MISSING else ""


def _plain(value) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """The page of the command line: arguments and options of each command."""
    text = [
        "(command-line-reference)=\n# Command-line reference",
        "`python launch.py COMMAND ...`; without a command it trains the default experiment, `date_luong`. Commands "
        "that name an experiment also take its options ([configuration](configuration.md)); `--help-all` prints both. "
        "Exit codes: [run directory](../run_directory.md). This page is generated.",
    ]
    kinds = (getattr(command_options, name.title()) for name in COMMANDS)
    return "\n\n".join([*text, *map(command_section, kinds)]) + "\n"


def command_section(kind: type) -> str:
    """A heading, the usage line, the docstring and the arguments of one command."""
    docs, hints = field_docs(kind), typing.get_type_hints(kind, include_extras=True)
    name, words, rows = command_options.command_name(kind), [], []
    for field in dataclasses.fields(kind):
        marks = getattr(hints[field.name], "__metadata__", ())
        metavar = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)
        renamed = next((mark.name for mark in marks if getattr(mark, "name", None)), None)
        flag = metavar or "--" + (renamed or field.name).replace("_", "-")
        words += [metavar] if metavar else []
        type_cell = type_text(hints[field.name]) if not metavar else ""
        rows.append(f"| `{flag}` | {_cell(type_cell)} | {_cell(_default(field))} | {_cell(docs.get(field.name, ''))} |")
    usage = f"```\npython launch.py {' '.join([name, *words])} [options]\n```"
    table = ["| argument | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n\n".join([f"## {name}", usage, prose(kind), "\n".join(table)])


# --- Sphinx -----------------------------------------------------------------------------------------------------------


def write_pages(app) -> None:
    """Write the pages that have changed to docs/generated/."""
    directory = Path(app.srcdir) / "generated"
    directory.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def double_quotes(app, tree) -> None:
    """Shapes in signatures with the quotes of this code: Sphinx prints strings with single ones."""
    from docutils import nodes
    from sphinx import addnodes

    for node in tree.findall(addnodes.desc_sig_literal_string):
        text = node.astext()
        if text[:1] == text[-1:] == "'" and '"' not in text:
            node.children = [nodes.Text(f'"{text[1:-1]}"')]


def add_sources(app, tree) -> None:
    """Name the module in which each public thing is defined, from which `sphinx.ext.viewcode` shows the source."""
    from sphinx import addnodes

    homes = {path: value for value, path in public_objects().items()}
    for node in tree.findall(addnodes.desc_signature):
        path, attributes = node.get("fullname", ""), []
        while path and path not in homes:
            path, _, last = path.rpartition(".")
            attributes.insert(0, last)
        if path:
            value = homes[path]
            node["module"], node["fullname"] = value.__module__, ".".join([value.__qualname__, *attributes])


def setup(app) -> dict:
    app.connect("builder-inited", write_pages)
    app.connect("doctree-read", add_sources, priority=400)  # before viewcode
    app.connect("doctree-read", double_quotes)
    return {"version": attention_jax.__version__, "parallel_read_safe": True}

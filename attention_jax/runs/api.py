"""Python API for training runs and for using trained ones; `launch.py` is the command line."""

import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from attention_jax.config import Config, ModelOptions, Sampling, differences, option_name, walk
from attention_jax.data.text_files import to_nfc
from attention_jax.data.text_tables import Columns, chunks, write_table
from attention_jax.errors import InputError, explain_errors
from attention_jax.files import check_output
from attention_jax.pretrained import gguf
from attention_jax.pretrained.interface import Pretrained, check_texts
from attention_jax.pretrained.load import is_pretrained, load_pretrained
from attention_jax.printing import outlasting_readers
from attention_jax.runs import directory as run_directory, lifecycle, saved

FOR_LANGUAGE_MODELS = "--temperature, --top-k, --top-p and --length are for language models: leave them out"


@dataclass(frozen=True)
class LoadedRun:
    """A run and its directory. Data and parameters are loaded on first use.

    >>> run = load_run("runs/date_luong/001")  # doctest: +SKIP
    >>> run.predict(["May 1, 1999"]), run.result["metrics"]["test.exact_match"]  # doctest: +SKIP
    (['1999-05-01'], 1.0)
    """

    directory: Path
    config: Config
    result: dict | None = field(repr=False)
    """{"metrics": {name: number}, "history": [...], "seconds": ...}, or None while the run has not ended."""

    @cached_property
    def task(self) -> Any:
        """Data, model, loss and evaluation (attention_jax/tasks), with all data, which are loaded again. Raises
        InputError if they are missing or have changed, or if the run has no checkpoint."""
        with explain_errors():
            return saved.load_task(self.directory, self.config)

    @cached_property
    def _answering(self) -> tuple:
        with explain_errors():
            return saved.load_trained(self.directory, self.config, whole_data=False)[1:]

    @property
    def params(self) -> dict:
        """The final parameters, a tree of arrays; of an interrupted run those of its best epoch or latest checkpoint,
        with a note. Raises InputError if the run has no checkpoint."""
        return self._answering[1]

    @property
    def excerpt_task(self) -> Any:
        """The task on the excerpt of its data that the run stores, for predictions and attention maps."""
        return self._answering[0]

    def predict(self, texts: list[str] | tuple[str, ...], attention: Path | str | None = None) -> list[str]:
        """Return the model's output for each text (for a vision model: each image file) as a line of text.

        Attention maps are plotted to the file `attention`, if given. Raises InputError for a text that is empty or that
        the model cannot read.
        """
        texts = self._check_texts(texts, "predict")
        if not texts:
            return []
        with explain_errors():
            return self.excerpt_task.predict(self.params, texts, None if attention is None else Path(attention))

    def _check_texts(self, texts, method: str) -> list[str]:
        """Return texts in the form in which those of the training data are read, or paths of images as they are."""
        texts = check_texts(texts, method)
        return texts if not texts or self.table_columns.is_path else [*map(to_nfc, texts)]

    @property
    def table_columns(self) -> Columns:
        """The names of columns in tables of texts and predictions."""
        return Columns() if self.config.model is None else self.excerpt_task.table_columns

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of a classifier, in the order of `classify`; () of another model."""
        return () if self.config.model is None else self.excerpt_task.classes

    function: ClassVar[str] = "softmax"
    """What makes the logits of a classifier its probabilities, as `Pretrained.function`."""

    def classify(self, texts: list[str] | tuple[str, ...]) -> np.ndarray:
        """Return the probabilities [N, classes] of each text (of a vision model: each image file).

        Texts are padded to 16, 32, 64, ... tokens and batches to 1, 4, 16, ... texts, so that few programs are
        compiled. Raises InputError for a model without classes and for a text that is empty.
        """
        texts = self._check_texts(texts, "classify")
        with explain_errors():
            if not texts:
                return np.zeros((0, len(self.classes)), np.float32)
            return self.excerpt_task.probabilities(self.params, texts)

    def warm_up(self, lengths: int | Sequence[int], *, rows: int = 1):
        """Compile what `predict` and `classify` need for `rows` texts of these numbers of tokens, before the first
        request of a service; a language model continues one text after another, whatever `rows`.

        Raises InputError for a model whose inputs have one shape, such as one of images.

        >>> load_run("runs/classify_text/001").warm_up([16, 32, 64])  # doctest: +SKIP
        """
        try:
            numbers = [operator.index(x) for x in (*(lengths if isinstance(lengths, Iterable) else [lengths]), rows)]
        except TypeError:
            numbers = [0]
        if min(numbers) < 1:
            message = "warm_up takes numbers of tokens and of rows, at least 1, got"
            raise InputError(f"{message} {str(lengths)[:60]} and {rows!r}")
        with explain_errors():
            for length in numbers[:-1]:
                self.excerpt_task.warm_up(self.params, length, numbers[-1])

    def evaluate(self, *, figures: bool = False) -> dict[str, float]:
        """Return the metrics on the held-out data; with `figures` plot the figures and page.md of the run again.

        Raises InputError if the data have changed, or for figures of a run that has not ended.
        """
        if figures and self.result is None:
            raise InputError(f"--figures needs a run that has ended, which {self.directory} has not")
        evaluation = self.task.evaluate(self.params, True)
        if figures:
            from attention_jax.tasks.run_figures import draw_figures

            draw_figures(self.task, self.params, evaluation, self.directory)
        return evaluation.metrics

    def perplexity(self, text: str) -> dict[str, float]:
        """Return loss in nats per token, perplexity and bits per character of a new text, of a language model.

        Windows are as long as those of the training, the stride: each begins with the last token of the one before.
        """
        return self.excerpt_task.perplexity(self.params, to_nfc(text))

    def with_sampling(
        self,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        length: int | None = None,
    ) -> "LoadedRun":
        """Return this run with other options of `config.Sampling` for the texts that it continues.

        Raises InputError for another model than a language model, and for a value that an option cannot have.
        """
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "length": length}
        options = {name: value for name, value in options.items() if value is not None}
        sampling = self.config.decode or getattr(self.excerpt_task, "sampling", None)
        if not isinstance(sampling, Sampling):
            raise InputError(FOR_LANGUAGE_MODELS)
        return replace(self, config=replace(self.config, decode=replace(sampling, **options)))

    def evaluate_classes(self, data: Path | str, out: Path | str | None = None, *, force: bool = False) -> dict:
        """Return the metrics of each class and of calibration on new labeled `data`, as result.json has them of the
        test split: a file as `--data.tsv-file` takes it, or a directory of images.

        Examples of a class that the model does not have are left out, with a note. `out` is a table to write, a .csv,
        .tsv, .jsonl or .parquet: number, label, predicted class and text of each example, or its path; with `force` it
        replaces a file. Raises InputError for another model than a classifier, and for no example of its classes.
        """
        from attention_jax.report.class_report import report_classes

        if out is not None:
            check_output(out, "file", force=force)
        numbers, unknown, probabilities = {name: i for i, name in enumerate(self.classes)}, Counter(), []
        labels, rows = [], []
        with explain_errors():
            for examples in chunks(self.excerpt_task.new_examples(str(data))):
                unknown.update(name for name, _ in examples if name not in numbers)
                probabilities.append(self.classify([text for _, text in examples]))
                labels += [numbers.get(name, -1) for name, _ in examples]
                best = probabilities[-1].argmax(axis=1)
                rows += [(label, self.classes[i], text) for i, (label, text) in zip(best, examples, strict=True)]
        has_class = np.array(labels) >= 0
        if unknown:
            message = (
                f"{data} has the class {min(unknown)!r}, which the model does not have; its classes are "
                f"{', '.join(self.classes)[:200]}"
            )
            if not has_class.any():
                raise InputError(message)
            print(f"note: {unknown.total()} of {len(labels)} examples left out: {message}", file=sys.stderr)
        if not labels:
            raise InputError(f"{data} has no examples; at least one is needed")
        if out is not None:
            columns = "row", "label", "predicted", "text"
            with write_table(Path(out), columns) as write:
                write([dict(zip(columns, (number, *row))) for number, row in enumerate(rows, start=1)])
        return report_classes(np.array(labels)[has_class], np.concatenate(probabilities)[has_class], self.classes)

    def attention(self, texts: list[str] | tuple[str, ...] = ()) -> tuple:
        """Compute attention maps for each text (for a vision model: each image file), or for some held-out inputs.

        Returns:
          An `AttentionRecord` (attention_jax/report/attention_data.py) for each input. Its `predictions[0].attentions`
          belong to the best prediction; each has `kind` ("encoder", "decoder", "cross", ...), `weights` [layers, heads,
          queries, keys], and the tokens of queries and keys.

        Raises:
          InputError: the model has no attention, or a text cannot be read.
        """
        texts = self._check_texts(texts, "attention")
        with explain_errors():
            records = self._attention_maps(texts)
        if not records:
            raise InputError(f"{self.config.name} has no model with attention, so there are no attention maps")
        return records

    def look(self, texts: list[str] | tuple[str, ...] = ()) -> Any:
        """Show the result of `attention` as an interactive page (`attention_jax.report.attention_page.Page`).

        A notebook displays it, and `.save("attention.html")` writes it as one file. Raises what `attention` raises.
        """
        from attention_jax.report.attention_page import page

        return page(self.attention(check_texts(texts, "look")), f"{self.config.name}, run {self.directory.name}")

    def _attention_maps(self, texts: list[str]) -> tuple:
        if self.config.model is not None:
            return self.excerpt_task.attention_maps(self.params, texts)
        from attention_jax import catalog

        compute = catalog.load_experiment(self.config.name).attention_maps
        return () if compute is None else tuple(compute(self.config, texts))


def load_run(directory: Path | str, *, trust_code: bool = False) -> "LoadedRun | Pretrained":
    """Load the run in `directory`. Raises InputError if there is none.

    A run with a score, model or dataset from outside of this package imports their code, which needs `trust_code`. The
    directory or .gguf file of a pretrained model is loaded as by `load_pretrained`.

    >>> load_run("runs/none")
    Traceback (most recent call last):
    attention_jax.errors.InputError: ...runs/none...
    """
    if is_pretrained(directory):
        return load_pretrained(directory)
    directory = Path(directory)
    return LoadedRun(directory, run_directory.read_config(directory, trust_code), run_directory.read_result(directory))


def _with_weights_of(weights: str, config: Config) -> Config:
    """`lifecycle.with_weights`; InputError for options of the model that it would drop: those that differ from the
    experiment's. Sizes are those of the weights, whatever `config` has."""
    adopted = lifecycle.with_weights(weights, config)
    training = {name for name, info, _ in walk(config.model) if info.training_only}
    for name, (usual, value) in differences(_usual_model(config), config.model).items():
        if not (type(usual) is int or name in training or value == getattr(adopted.model, name, None)):
            raise InputError(
                f"the weights of {weights} bring their model, without {option_name(name, 'model')} {value}: "
                f'pass replace(load_run({weights!r}).config, **{{"model.{name}": {value!r}, "train.init_weights": '
                f"{weights!r}}}) to train_run without init_weights, or give the option to launch.py train --from or "
                "launch.py import"
            )
    return adopted


def _usual_model(config: Config) -> ModelOptions:
    """The options of the experiment that `config` is named after; without one, or of another model, the defaults."""
    from attention_jax import catalog

    if config.name in catalog.experiment_names():
        model = catalog.load_experiment(config.name).config().model
        if type(model) is type(config.model):
            return model
    return type(config.model)()


def train_run(
    config: Config,
    out: Path | str | None = None,
    *,
    init_weights: Path | str = "",
    study: Callable[[Config, Path], dict] | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> LoadedRun:
    """Train `config` in the directory `out`, by default a fresh runs/NAME/001, 002, ..., and return the run.

    It begins with `init_weights`, a run or a file of weights, and with their model: options, but for sizes, that
    `config` changes from its experiment's and this model does not have raise an InputError. To change them, too, pass
    `replace(load_run(RUN).config, **{"model.bias": ..., "train.init_weights": RUN})`.
    `study(config, directory) -> metrics` is called instead of training for an experiment without training; with
    `resume` an interrupted run continues. Raises InputError, Interrupted or Diverged.

    >>> from tempfile import mkdtemp
    >>> answer = lambda config, directory: {"answer": 42.0}
    >>> run = train_run(Config("x", None, None), f"{mkdtemp()}/x", study=answer, quiet=True)
    >>> run.result["metrics"]
    {'answer': 42.0}
    """
    directory = run_directory.fresh_directory(config.name) if out is None else Path(out)
    with explain_errors(), outlasting_readers():
        if init_weights:
            config = _with_weights_of(str(init_weights), config)
        lifecycle.start(config, directory, study=study, resume=resume, quiet=quiet)
    return LoadedRun(directory, run_directory.read_config(directory, like=config), run_directory.read_result(directory))


def import_run(config: Config, file: Path | str, out: Path | str | None = None) -> LoadedRun:
    """Create a run of `config` that has not trained, with the weights in `file` and their model fitted to its data.

    Raises InputError for a file that is none of weights, weights that do not fit, or options of the model, but for
    sizes, that `config` changes from its experiment's and their model does not have.

    >>> from attention_jax import load_experiment
    >>> import_run(load_experiment("vit_digits").config(), "none.safetensors")
    Traceback (most recent call last):
    attention_jax.errors.InputError: ...none.safetensors...
    """
    directory = run_directory.fresh_directory(config.name) if out is None else Path(out)
    with explain_errors():
        lifecycle.create_run(_with_weights_of(str(file), config), directory)
    return LoadedRun(directory, run_directory.read_config(directory, like=config), None)


def export_run(
    run: Path | str,
    *,
    to: Literal["safetensors", "npz", "huggingface", "stablehlo"] = "safetensors",
    naming: str = "own",
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu"),
    out: Path | str | None = None,
    trust_code: bool = False,
) -> str:
    """Export the weights of a run or pretrained model, or the computation of a run.

    Args:
      run: a directory of a run or of a pretrained model, or a file of one.
      to: a file format of weights, a directory of Hugging Face for a model that came from one, or programs that run
        without this package.
      naming: the names of the arrays of safetensors and npz, those of another library or our "own".
      platforms: of the StableHLO programs.
      out: the directory to create; by default RUN/export/NAMING, RUN/export/huggingface or RUN/export/stablehlo; of a
        .gguf file, beside it in a directory of its name.
      trust_code: as in `load_run`.

    Returns a line about what was written, for arrays of a run also where its vocabularies and classes are. Raises
    InputError for a model that the library of `naming` does not have, and if `out` exists.

    >>> export_run("runs/none", to="stablehlo", naming="timm")
    Traceback (most recent call last):
    attention_jax.errors.InputError: --naming timm names arrays of safetensors and npz: leave it or --to stablehlo out
    """
    if to in ("huggingface", "stablehlo") and naming != "own":
        raise InputError(f"--naming {naming} names arrays of safetensors and npz: leave it or --to {to} out")
    if to == "stablehlo" and is_pretrained(run):
        raise InputError(f"--to {to} needs a run; {run} is a pretrained model")
    with explain_errors():
        kind = to if to in ("huggingface", "stablehlo") else naming
        root = Path(run).with_suffix("") if Path(run).suffix == gguf.SUFFIX else Path(run)
        directory = Path(out or root / "export" / kind)
        check_output(directory, "directory")
        if to == "stablehlo":
            from attention_jax.export import stablehlo

            loaded = load_run(run, trust_code=trust_code)
            return stablehlo.export(loaded.excerpt_task, loaded.params, directory, platforms)
        from attention_jax.pretrained import exchange, hugging_face

        if to == "huggingface":
            source, is_run = saved.source_of(Path(run), trust_code=trust_code), not is_pretrained(run)
            weights = saved.weights_of(Path(run), trust_code=trust_code)
            return hugging_face.write(weights, source, directory, is_run)
        summary = exchange.write(saved.weights_of(Path(run), trust_code=trust_code), directory, to, naming)
        preprocessing = Path(run) / "preprocessing.json"
        return f"{summary}; vocabularies, classes: {preprocessing}" if preprocessing.is_file() else summary

"""Python API for training runs and for using trained ones; `launch.py` is the command line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attention_jax.config import Config, ModelOptions, differences, option_name, walk
from attention_jax.data.text_tables import Columns
from attention_jax.errors import InputError, explain_errors
from attention_jax.pretrained.interface import Pretrained, check_texts
from attention_jax.pretrained.load import is_pretrained, load_pretrained
from attention_jax.printing import outlasting_readers
from attention_jax.runs import directory as run_directory, lifecycle, pack, saved


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
        texts = check_texts(texts, "predict")
        if not texts:
            return []
        with explain_errors():
            return self.excerpt_task.predict(self.params, texts, None if attention is None else Path(attention))

    @property
    def table_columns(self) -> Columns:
        """The names of columns in tables of texts and predictions."""
        return Columns() if self.config.model is None else self.excerpt_task.table_columns

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of a classifier, in the order of `classify`; () of another model."""
        return () if self.config.model is None else self.excerpt_task.classes

    def classify(self, texts: list[str] | tuple[str, ...]) -> np.ndarray:
        """Return the probabilities [N, classes] of each text (of a vision model: each image file).

        Texts are padded to 16, 32, 64, ... tokens and batches to 1, 4, 16, ... texts, so that few programs are
        compiled. Raises InputError for a model without classes and for a text that is empty.
        """
        texts = check_texts(texts, "classify")
        with explain_errors():
            if not texts:
                return np.zeros((0, len(self.classes)), np.float32)
            return self.excerpt_task.probabilities(self.params, texts)

    def evaluate(self, *, figures: bool = False) -> dict[str, float]:
        """Return the metrics on the held-out data; with `figures` plot the figures and page.md of the run again.

        Raises InputError if the data have changed, or for figures of a run that has not ended or is packed.
        """
        if figures and (self.result is None or (self.directory / "weights.safetensors").exists()):
            raise InputError(
                f"--figures needs the directory of a run that has ended, with its log; {self.directory} is "
                + ("of a run that has not" if self.result is None else "of a packed run")
            )
        evaluation = self.task.evaluate(self.params, True)
        if figures:
            from attention_jax.tasks.run_figures import draw_figures

            draw_figures(self.task, self.params, evaluation, self.directory)
        return evaluation.metrics

    def evaluate_classes(self, data: Path | str) -> dict:
        """Return the metrics of each class and of calibration on new labeled `data`, as result.json has them of the
        test split: a file as `--data.tsv-file` takes it, or a directory of images.

        Raises InputError for another model than a classifier, and for a class that it does not have.
        """
        from attention_jax.data.text_tables import chunks
        from attention_jax.report.class_report import report_classes

        numbers, labels, probabilities = {name: i for i, name in enumerate(self.classes)}, [], []
        with explain_errors():
            for examples in chunks(self.excerpt_task.new_examples(str(data))):
                names, texts = zip(*examples)
                if unknown := sorted({*names} - numbers.keys()):
                    raise InputError(
                        f"{data} has the class {unknown[0]!r}, which the model does not have; its classes are "
                        f"{', '.join(self.classes)[:200]}"
                    )
                labels += [numbers[name] for name in names]
                probabilities.append(self.classify(texts))
        if not labels:
            raise InputError(f"{data} has no examples; at least one is needed")
        return report_classes(np.array(labels), np.concatenate(probabilities), self.classes)

    def attention(self, texts: list[str] | tuple[str, ...] = ()) -> tuple:
        """Compute attention maps for each text (for a vision model: each image file), or for some held-out inputs.

        Returns:
          An `AttentionRecord` (attention_jax/report/attention_data.py) for each input. Its `predictions[0].attentions`
          belong to the best prediction; each has `kind` ("encoder", "decoder", "cross", ...), `weights` [layers, heads,
          queries, keys], and the tokens of queries and keys.

        Raises:
          InputError: the model has no attention, or a text cannot be read.
        """
        texts = check_texts(texts, "attention")
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

        return page(self.attention(check_texts(texts, "look")), self.config.name)

    def _attention_maps(self, texts: list[str]) -> tuple:
        if self.config.model is not None:
            return self.excerpt_task.attention_maps(self.params, texts)
        from attention_jax.claims import catalog

        compute = catalog.load_experiment(self.config.name).attention_maps
        return () if compute is None else tuple(compute(self.config, texts))


def load_run(directory: Path | str, *, trust_code: bool = False) -> "LoadedRun | Pretrained":
    """Load the run in `directory`, or in a file of `export_run(to="zip")`. Raises InputError if there is none.

    A run with a score, model or dataset from outside of this package imports their code, which needs `trust_code`. The
    directory or .gguf file of a pretrained model is loaded as by `load_pretrained`.

    >>> load_run("runs/none")
    Traceback (most recent call last):
    attention_jax.errors.InputError: ...runs/none...
    """
    if is_pretrained(directory):
        return load_pretrained(directory)
    directory = pack.unpack_run(directory)
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
    from attention_jax.claims import catalog

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
    to: Literal["safetensors", "npz", "huggingface", "stablehlo", "zip"] = "safetensors",
    naming: str = "own",
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu"),
    out: Path | str | None = None,
    trust_code: bool = False,
) -> str:
    """Export the weights of a run or pretrained model, the computation of a run, or the whole run as one file.

    Args:
      run: a directory of a run or of a pretrained model, or a file of one.
      to: a file format of weights, a directory of Hugging Face for a model that came from one, programs that run
        without this package, or a zip that `load_run` reads.
      naming: the names of the arrays of safetensors and npz, those of another library or our "own".
      platforms: of the StableHLO programs.
      out: what to create; by default RUN/export/NAMING, RUN/export/huggingface, RUN/export/stablehlo or RUN.zip.
      trust_code: as in `load_run`.

    Returns a line about what was written. Raises InputError for a model that the library of `naming` does not have, and
    if `out` exists.

    >>> export_run("runs/none", to="stablehlo", naming="timm")
    Traceback (most recent call last):
    attention_jax.errors.InputError: --naming timm names arrays of safetensors and npz: leave it or --to stablehlo out
    """
    if to in ("huggingface", "stablehlo", "zip") and naming != "own":
        raise InputError(f"--naming {naming} names arrays of safetensors and npz: leave it or --to {to} out")
    if to in ("stablehlo", "zip") and is_pretrained(run):
        raise InputError(f"--to {to} needs a run; {run} is a pretrained model")
    with explain_errors():
        if to == "zip":
            return _export_zip(run, Path(out or f"{str(run).rstrip('/')}{pack.PACKED}"), trust_code)
        kind = to if to in ("huggingface", "stablehlo") else naming
        directory = Path(out or pack.output_directory(run) / "export" / kind)
        if to == "stablehlo":
            from attention_jax.compile import stablehlo

            loaded = load_run(run, trust_code=trust_code)
            return stablehlo.export(loaded.excerpt_task, loaded.params, directory, platforms)
        from attention_jax.pretrained import exchange, hugging_face

        if to == "huggingface":
            source, is_run = saved.source_of(Path(run), trust_code=trust_code), not is_pretrained(run)
            weights = saved.weights_of(Path(run), trust_code=trust_code)
            return hugging_face.write(weights, source, directory, is_run)
        return exchange.write(saved.weights_of(Path(run), trust_code=trust_code), directory, to, naming)


def _export_zip(run: Path | str, out: Path, trust_code: bool) -> str:
    """Write a finished run to one file, with which everything but training works anywhere."""
    pack.check_directory(run, "--to zip")
    if out.suffix != pack.PACKED:
        raise InputError(f"--out needs a file that ends in {pack.PACKED}; got {out}")
    _, params = saved.load_weights(Path(run), trust_code=trust_code)
    pack.write_pack(Path(run), params, out)
    return f"{out}: {out.stat().st_size:,} bytes"

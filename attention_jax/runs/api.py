"""Python API for training runs and for using trained ones; `launch.py` is the command line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from attention_jax.config import Config
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

    @cached_property
    def view(self) -> Any:
        """The `View` (attention_jax/views) for predictions and attention maps, with the run's stored preprocessing."""
        from attention_jax.views import view_of

        return view_of(self._answering[0])

    def predict(self, texts: list[str] | tuple[str, ...], attention: Path | str | None = None) -> list[str]:
        """Return the model's output for each text (for a vision model: each image file) as a line of text.

        Attention maps are plotted to the file `attention`, if given. Raises InputError for a text that is empty or that
        the model cannot read.
        """
        texts = check_texts(texts, "predict")
        if not texts:
            return []
        with explain_errors():
            return self.view.predict(self.params, texts, None if attention is None else Path(attention))

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
            return self.view.attention_maps(self.params, texts)
        from attention_jax.claims import catalog

        compute = catalog.load_experiment(self.config.name).attention_maps
        return () if compute is None else tuple(compute(self.config, texts))


def load_run(directory: Path | str, *, trust_code: bool = False) -> "LoadedRun | Pretrained":
    """Load the run in `directory`, or in a file of `launch.py pack`. Raises InputError if there is none.

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


def train_run(
    config: Config,
    directory: Path | str | None = None,
    *,
    study: Callable[[Config, Path], dict] | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> LoadedRun:
    """Train `config` in `directory`, by default a fresh runs/NAME/001, 002, ..., and return the run.

    `study(config, directory) -> metrics` is called instead of training for an experiment without training; with
    `resume` an interrupted run continues. Raises InputError, Interrupted or Diverged.

    >>> from tempfile import mkdtemp
    >>> answer = lambda config, directory: {"answer": 42.0}
    >>> run = train_run(Config("x", None, None), f"{mkdtemp()}/x", study=answer, quiet=True)
    >>> run.result["metrics"]
    {'answer': 42.0}
    """
    directory = run_directory.fresh_directory(config.name) if directory is None else Path(directory)
    with explain_errors(), outlasting_readers():
        lifecycle.start(config, directory, study=study, resume=resume, quiet=quiet)
    return LoadedRun(directory, run_directory.read_config(directory, like=config), run_directory.read_result(directory))

"""Views: what a trained model answers, its figures, and its attention maps. One view per family of models.

A task names its view (`Task.view`), so training imports none of this.
"""

from dataclasses import dataclass
from pathlib import Path

from attention_jax import InputError
from attention_jax.config import import_object
from attention_jax.report.attended import Looked
from attention_jax.tasks import Evaluation, Task


@dataclass(frozen=True, eq=False)
class View:
    """The answers and figures of a task's model; a family overrides what it has.

    A view is equal to itself only (`eq=False`), because compiled functions are cached by bound method.
    """

    task: Task

    @property
    def data(self):
        """The task's dataset."""
        return self.task.data

    @property
    def model(self):
        """The Flax module."""
        return self.task.model

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """One line of output per text; the attention is drawn to the file `figure`, if one is given."""
        raise InputError(f"a {type(self.task).__name__} predicts nothing from texts: evaluate it instead")

    def attention_maps(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Attention maps for each text, or for some held-out inputs without any; () for a model without attention."""
        return ()

    def excerpt(self):
        """The part of the data that answers need, which a run keeps (`data/stored.py`): vocabularies, names, shapes,
        and the examples that `attention_maps` shows. None where a run cannot do without its data."""
        return None

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Draw figures in `directory` and write texts beside it, after a full evaluation; the figures' paths."""
        return []


def view_of(task: Task) -> View:
    """The view that a task names. Raises InputError if it names none."""
    if not task.view:
        raise InputError(
            f'{type(task).__name__} has no view: predict and look need one, `view = "package.file:Name"` of a View'
        )
    return import_object(task.view)(task)

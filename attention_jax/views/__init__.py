"""Views: predictions, figures and attention maps of trained models, one view per model family.

A task names its view (`Task.view`), so training does not import this package.
"""

from dataclasses import dataclass
from pathlib import Path

import jax

from attention_jax.config import import_object
from attention_jax.errors import InputError
from attention_jax.report.attention_data import AttentionRecord
from attention_jax.tasks import Evaluation, Task

FUNCTIONS = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid, "none": lambda logits: logits}
"""{how a classifier of another library is meant (pretrained/config_json.py): what makes its logits its answer}"""


@dataclass(frozen=True, eq=False)
class View:
    """Predictions, figures and attention maps of a task's model; a family overrides what it supports.

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
        """Return one line of output per text; plot the attention to the file `figure`, if given."""
        raise InputError(f"a {type(self.task).__name__} has no predictions for texts: evaluate it instead")

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return attention maps for each text, or for some held-out inputs if there are none; () without attention."""
        return ()

    def excerpt(self):
        """Return the part of the data that predictions need, which a run stores (`data/stored.py`).

        It has vocabularies, names, shapes, and the examples that `attention_maps` shows. None means that a run needs
        its dataset.
        """
        return None

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Plot figures to `directory` and write texts to its parent after a full evaluation; return the figures."""
        return []


def view_of(task: Task) -> View:
    """Return the view that a task names; InputError if it names none."""
    if not task.view:
        raise InputError(
            f'{type(task).__name__} has no view: predict and look need one, `view = "package.file:Name"` of a View'
        )
    return import_object(task.view)(task)

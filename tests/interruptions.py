"""The end of a training by a signal, as a batch system sends it."""

import contextlib
import signal
from collections.abc import Iterator

import pytest

from attention_jax.errors import Interrupted
from attention_jax.train.run import Run


@contextlib.contextmanager
def interrupt_after(epochs: int) -> Iterator[None]:
    """Context in which SIGTERM comes after so many epochs of a run and ends its training with a checkpoint."""
    end_epoch = Run.end_epoch

    def end_epoch_and_signal(run, *arguments):
        end_epoch(run, *arguments)
        if len(run.history) == epochs:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Run, "end_epoch", end_epoch_and_signal)
        yield

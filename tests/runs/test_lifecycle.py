"""The life of a run: what is refused before it starts, and a signal while it is finished."""

import os
import signal

import pytest

from attention_jax import train_run
from attention_jax.cli import commands
from attention_jax.config import Config, Dates, Decode, LuongSeq2seqConfig, Train, replace
from attention_jax.errors import InputError, Interrupted
from attention_jax.files import write_json
from attention_jax.runs import directory as run_directory, lifecycle

TRAIN = Train(total_epochs=1, max_steps=1, best_metric="train.loss")
TINY = Config(
    "tiny", Dates(examples=100), LuongSeq2seqConfig(hidden_size=4, embed_size=4), train=TRAIN, decode=Decode()
)


def test_an_interrupt_during_the_final_evaluation_ends_after_it(tmp_path, monkeypatch):
    """A caller with several runs would begin the next one."""

    def finish(config, task, run, params):
        os.kill(os.getpid(), signal.SIGINT)
        write_json(tmp_path / "run" / "result.json", {})
        return {}

    monkeypatch.setattr(lifecycle, "finish", finish)
    with pytest.raises(Interrupted):
        lifecycle.start(TINY, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "result.json").exists(), "what has been trained is evaluated"


def test_a_run_is_not_resumed_with_fewer_steps(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 384, "epoch": 0, "train.loss": 1.0}\n{"step": 4')
    with pytest.raises(InputError, match="has 384 steps behind it, got 100"):
        run_directory.check_longer(replace(TINY, **{"train.max_steps": 100}), tmp_path)
    run_directory.check_longer(replace(TINY, **{"train.max_steps": 384}), tmp_path)


def test_a_run_that_has_not_ended_is_not_plotted(tmp_path):
    with pytest.raises(InputError, match="no result.json"):
        commands.plot([str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_run_may_be_anywhere(tmp_path):
    """In a directory with spaces and letters beyond ASCII, reached by a link."""
    (tmp_path / "eine Übung, 1").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "eine Übung, 1", target_is_directory=True)
    run = train_run(TINY, tmp_path / "link" / "run é", study=lambda config, directory: {"x": 1.0}, quiet=True)
    assert run.result["metrics"] == {"x": 1.0}
    assert (tmp_path / "eine Übung, 1" / "run é" / "result.json").is_file()

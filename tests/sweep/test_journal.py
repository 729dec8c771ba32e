"""The journal: what is told twice is there once, and half a line hurts nothing."""

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from attention_jax.config import Config, Dates, LuongSeq2seq
from attention_jax.sweep.journal import Journal
from attention_jax.sweep.space import parse

SPACE = parse(
    Config("x", Dates(), LuongSeq2seq()), {"optim.learning-rate": "1e-4..1:log", "model.score": "dot,general"}
)
POINTS = [{"optim.learning_rate": rate, "model.score": "dot"} for rate in (0.001, 0.01, 0.1)]


def test_repeating_everything_changes_nothing_and_optuna_reads_it(tmp_path):
    for _ in range(2):
        journal = Journal(tmp_path, SPACE, lower=True)
        journal.add(POINTS, "x")
        journal.tell(0, 0.5, "", {1: 0.9, 2: 0.5})
        journal.tell(1, None, "pruned after epoch 1", {1: 0.95})
        journal.tell(2, None, "seed 0: the loss was nan", {})
    study = optuna.load_study(
        study_name="sweep", storage=JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    )
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
    assert [trial.params for trial in study.trials] == POINTS
    assert study.best_value == 0.5 and study.trials[0].intermediate_values == {1: 0.9, 2: 0.5}
    assert study.trials[2].user_attrs["reason"] == "seed 0: the loss was nan"


@pytest.mark.parametrize("half", [b'{"op_code":4,"wor', b'{"op_code":4'])
def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path, half):
    Journal(tmp_path, SPACE, lower=False).add(POINTS[:1], "x")
    with (tmp_path / "journal.log").open("ab") as file:
        file.write(half)
    Journal(tmp_path, SPACE, lower=False).add(POINTS, "x")
    assert len(Journal(tmp_path, SPACE, lower=False).trials()) == 3

"""The sweep's optuna study: a JournalStorage file beside the runs, which every optuna tool can read.

It follows the run directories: each trial is written in one line when it is planned, and told its values as they come.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from attention_jax.sweep.search import distributions
from attention_jax.sweep.space import Point, Space

NAME = "sweep"


class _Held:
    """No lock: the sweep holds its own (driver._lock), which the system frees when a process is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Journal:
    """journal.log in `directory`; `lower` says whether smaller values are better."""

    def __init__(self, directory: Path, space: Space, lower: bool):
        path = Path(directory) / "journal.log"
        if path.exists():
            _drop_half_line(path)
        self.storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_Held()))
        self.space = space
        self.study = optuna.create_study(
            study_name=NAME, storage=self.storage, direction="minimize" if lower else "maximize", load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(0),
        )  # fmt: skip

    def trials(self) -> list[FrozenTrial]:
        """All trials; number i is point i."""
        return self.study.get_trials(deepcopy=False)

    def add(self, points: list[Point], label: str):
        """Record points that are about to run (those already recorded are passed over)."""
        known = len(self.trials())
        for point in points[known:]:
            template = optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=point,
                distributions=distributions(self.space),
                user_attrs={"sweep": label},
            )
            self.study.add_trial(template)

    def tell(self, number: int, value: float | None, reason: str, curve: Mapping[int, float]):
        """End a trial with its value, or pruned or failed for a `reason`; `curve`: its metric by epoch. Repeatable."""
        trial = self.trials()[number]
        if trial.state.is_finished():
            return
        study = self.storage.get_study_id_from_name(NAME)
        key = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        for epoch, seen in curve.items():
            if epoch not in trial.intermediate_values:
                self.storage.set_trial_intermediate_value(key, epoch, seen)
        if reason:
            self.storage.set_trial_user_attr(key, "reason", reason)
        if value is not None:
            self.study.tell(number, value)
        else:
            self.study.tell(number, state=TrialState.PRUNED if reason.startswith("pruned") else TrialState.FAIL)


def _drop_half_line(path: Path):
    """Cut off what a killed process left of its last line."""
    with path.open("rb+") as file:
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            file.truncate(whole)
            os.fsync(file.fileno())

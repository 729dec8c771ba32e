"""The sweep in one process: what it writes and refuses; repeating it does nothing twice."""

import json
import math
import shutil
import subprocess
import sys
import types

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from attention_jax import catalog, tasks
from attention_jax.cli import commands
from attention_jax.config import Config, Dates, Decode, LanguageModelConfig, LuongConfig, LuongSeq2seqConfig, replace
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import directory_lock, write_json
from attention_jax.runs import lifecycle
from attention_jax.sweep import driver, plan, summary
from attention_jax.sweep.plan import Trial
from attention_jax.sweep.search import load_study
from attention_jax.sweep.space import label

STUDY = Config("date_luong", Dates(), LuongSeq2seqConfig())
TINY = Config("date_luong", Dates(validation=2), LuongSeq2seqConfig(hidden_size=4, embed_size=4), decode=Decode())


@pytest.fixture
def calls(monkeypatch):
    """Every run is a computation of no time: (learning rate - 0.01)^2 + seed / 1e6; a weight decay of 1 fails, one of 2
    diverges."""
    rates_and_seeds = []

    def study(config, directory):
        rates_and_seeds.append((config.optim.learning_rate, config.train.seed))
        if config.optim.weight_decay == 1:
            raise FloatingPointError("too heavy")
        if config.optim.weight_decay == 2:
            raise Diverged(7, float("nan"))
        return {"valid.loss": (config.optim.learning_rate - 0.01) ** 2 + config.train.seed * 1e-6}

    file = catalog.ROOT / "study.py"
    experiment = types.SimpleNamespace(study=study, config=lambda: STUDY, name="study", file=file)
    monkeypatch.setattr(catalog, "load_experiment", lambda name: experiment)
    return rates_and_seeds


def settings(over, method="auto", trials=0, seeds=1, metric="valid.loss", config=STUDY):
    return driver.settings_of(config, over, method, trials, seeds, metric)


RATES = {"optim.learning-rate": "0.001,0.01,0.1"}


def test_summary_names_the_best_trial_and_its_command(calls, tmp_path, capsys):
    trials = driver.sweep(settings(RATES, seeds=3), tmp_path)
    assert sorted(calls) == sorted((rate, seed) for rate in (0.001, 0.01, 0.1) for seed in range(3))
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert [row["params"]["optim.learning_rate"] for row in written["ranking"]] == [0.01, 0.001, 0.1] and written[
        "best"
    ] == 1
    assert written["ranking"][0]["value"] == pytest.approx(1e-6)
    assert written["ranking"][0]["interval95"] == pytest.approx(
        4.302653 * 1e-6 / 3**0.5
    )  # t(2 degrees of freedom) s / sqrt(3)
    assert written["command"] == "python launch.py train date_luong --optim.learning-rate 0.01"
    assert written["command"] in capsys.readouterr().out
    assert (tmp_path / "figures" / "slices.png").stat().st_size and (
        tmp_path / "figures" / "parallel_coordinates.png"
    ).stat().st_size
    assert [trial.state for trial in trials] == ["done"] * 3


def test_repeated_sweep_runs_only_lost_runs(calls, tmp_path):
    driver.sweep(settings(RATES), tmp_path)
    first = (tmp_path / "sweep.json").read_text()
    driver.sweep(settings(RATES), tmp_path)
    assert len(calls) == 3 and (tmp_path / "sweep.json").read_text() == first
    (tmp_path / "trials" / "0002" / "seed0" / "result.json").unlink()
    driver.sweep(settings(RATES), tmp_path)
    assert len(calls) == 4 and calls[-1] == (0.1, 0)


def test_failed_trials_run_again_unless_they_diverged(calls, tmp_path, capsys):
    decays = settings(RATES | {"optim.weight-decay": "0,1,2"})
    trials = driver.sweep(decays, tmp_path)
    assert [trial.state for trial in trials] == ["done", "failed", "failed"] * 3
    assert trials[1].reason == "seed 0: FloatingPointError: too heavy"
    assert "too heavy" in capsys.readouterr().out
    again = driver.sweep(decays, tmp_path)
    assert len(calls) == 9 + 3 and [trial.reason for trial in again] == [trial.reason for trial in trials]


def test_the_search_learns_that_a_point_diverged(calls, tmp_path):
    """For TPE it is worse than any number, also of a metric to maximize; another failure says nothing."""
    for metric, worst in (("valid.loss", math.inf), ("valid.accuracy", -math.inf)):
        decays = settings({"optim.weight-decay": "1,2"}, metric=metric)
        driver.sweep(decays, tmp_path / metric)
        failed, diverged = load_study(tmp_path / metric / "journal.log").get_trials()
        assert failed.state.name == "FAIL" and diverged.values == [worst]


def test_a_running_trial_without_a_number_is_ranked_last(calls):
    values = (math.nan, 0.1, 0.5, math.nan, 0.3)
    trials = [trial(n, {"optim.learning_rate": 0.1}, value)._replace(state="running") for n, value in enumerate(values)]
    assert [t.number for t in summary.rank_trials(settings(RATES), trials)] == [1, 4, 2, 0, 3]


def test_a_sweep_in_which_no_run_could_begin_takes_other_settings(tmp_path, capsys):
    indivisible = replace(TINY, **{"train.accumulation_steps": 3, "train.batch_size": 64})
    trials = driver.sweep(settings(RATES, config=indivisible), tmp_path / "sweep")
    assert {trial.state for trial in trials} == {"failed"} and "must be a multiple of 3" in trials[0].reason
    assert driver.sweep(settings(RATES, trials=2, config=indivisible), tmp_path / "sweep")[1].number == 1
    assert sorted(path.name for path in (tmp_path / "sweep" / "trials").iterdir()) == ["0000", "0001"]


@pytest.mark.parametrize("name, option", [("translate_files", "data.tsv_file"), ("vit_digits", "data.path")])
def test_mistyped_data_are_one_error_and_no_directory(name, option, tmp_path):
    """Of eight trials none begins, and the same command reads the file that is there later (0.5 CPU-seconds)."""
    config, path = catalog.load_experiment(name).config(), tmp_path / "data.tsv"
    config = replace(config, **{option: str(path)} | ({"data.dataset": "folder"} if name == "vit_digits" else {}))
    search = settings({"optim.learning-rate": "1e-4..1:log"}, trials=8, config=config, metric="train.loss")
    with pytest.raises(InputError, match=r"data\.tsv"):
        driver.sweep(search, tmp_path / "sweeps" / "mine")
    assert not any(tmp_path.iterdir())
    path.write_text("only one pair\teine Zeile\n")
    with pytest.raises(InputError, match="at least|directory|folder"):  # what is there now
        driver.sweep(search, tmp_path / "sweeps" / "mine")


@pytest.fixture
def no_training(calls, monkeypatch):
    """Every epoch takes no time: after N of them the loss is 1 / N."""

    def start(config, directory, **_):
        last = config.train.total_epochs
        rows = [{"step": n, "epoch": n, "seconds": 1.0 * n, "valid.loss": 1 / n} for n in range(1, last + 1)]
        result = {"metrics": {"valid.loss": 1 / last}, "history": rows, "seconds": 1.0 * last}
        write_json(directory / "config.json", {})
        write_json(directory / "result.json", result)

    monkeypatch.setattr(driver.worker.lifecycle, "start", start)
    monkeypatch.setattr(summary, "figures", lambda *_: [])


@pytest.mark.parametrize("method, base", [("grid", 1), ("grid", 2), ("random", 9), ("tpe", 2)])
@pytest.mark.usefixtures("no_training")
def test_each_trial_is_trained_to_its_own_end(tmp_path, method, base):
    """Whatever the number of epochs in the configuration that the sweep starts from."""
    config = replace(STUDY, **{"train.total_epochs": base})
    trials = driver.sweep(settings({"train.total-epochs": "1,3"}, method, config=config), tmp_path)
    assert {t.point["train.total_epochs"]: (t.state, t.value) for t in trials} == {1: ("done", 1.0), 3: ("done", 1 / 3)}
    assert json.loads((tmp_path / "sweep.json").read_text())["ranking"][0]["params"] == {"train.total_epochs": 3}


@pytest.mark.slow
@pytest.mark.parametrize("method, trials", [("random", 6), ("tpe", 16)])
def test_trials_succeed_after_a_repair(calls, tmp_path, monkeypatch, capsys, method, trials):
    """A full disk is no property of a point: with the disk of the second attempt, all have results."""
    monkeypatch.setattr(summary, "figures", lambda *_: [])
    config = replace(STUDY, **{"train.total_epochs": 9})
    search_settings = settings({"optim.learning-rate": "1e-4..1:log"}, method, trials, config=config)
    undisturbed = driver.sweep(search_settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        start = driver.worker.lifecycle.start

        def full(config, directory, **options):
            if directory.parent.name in ("0001", "0004"):
                raise InputError("metrics.jsonl could not be written (No space left on device)")
            return start(config, directory, **options)

        patch.setattr(driver.worker.lifecycle, "start", full)
        first = driver.sweep(search_settings, tmp_path / "full")
    output = capsys.readouterr().out
    assert "2 failed, trials 1, 4: seed 0: metrics.jsonl could not be written" in output and "trains failed" in output
    written = json.loads((tmp_path / "full" / "sweep.json").read_text())["failures"]
    assert list(written.values()) == [[1, 4]]
    attempts = len(calls)
    for _ in range(2):  # the second time there is nothing to do
        retried = driver.sweep(search_settings, tmp_path / "full")
        assert {trial.state for trial in retried} == {"done"} and len(calls) == attempts + 2
        assert [trial.point for trial in retried] == [trial.point for trial in first]
    if method != "tpe":
        assert [(t.point, t.value) for t in retried] == [(t.point, t.value) for t in undisturbed]
    assert "failed" not in capsys.readouterr().out.split("all runs have ended")[-1]


def test_removed_sweep_directory_raises_input_error(calls, tmp_path, monkeypatch):
    original = driver.worker.run_group
    monkeypatch.setattr(driver.worker, "run_group", lambda path: (original(path), shutil.rmtree(tmp_path / "s")))
    with pytest.raises(InputError, match="s was removed or replaced"):
        driver.sweep(settings(RATES), tmp_path / "s", population=1)
    assert len(calls) == 1 and not (tmp_path / "s").exists()


class Killed(Exception):
    pass


def sweep_until(groups: int, search_settings, directory, monkeypatch):
    """A sweep that is killed before it has trained `groups` + 1 groups."""
    left, original = [groups], driver.worker.run_group

    def run_some(path):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        original(path)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(driver.worker, "run_group", run_some)
        driver.sweep(search_settings, directory)


@pytest.mark.parametrize("method, trials", [("random", 12), ("tpe", 16)])
def test_interrupted_search_resumes_to_the_same_trials(calls, tmp_path, monkeypatch, method, trials):
    search_settings = settings({"optim.learning-rate": "1e-4..1:log"}, method, trials)
    whole = driver.sweep(search_settings, tmp_path / "whole")
    for groups in (3, 2, 6):
        sweep_until(groups, search_settings, tmp_path / "parts", monkeypatch)
    resumed = driver.sweep(search_settings, tmp_path / "parts")
    assert [(t.point, t.value) for t in resumed] == [(t.point, t.value) for t in whole]
    assert len(calls) == 2 * trials


def test_optuna_reads_the_journal(calls, tmp_path):
    driver.sweep(settings(RATES | {"optim.weight-decay": "0,1"}), tmp_path)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    study = optuna.load_study(study_name="sweep", storage=storage)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.FAIL] * 3
    assert study.best_params == {"optim.learning_rate": 0.01, "optim.weight_decay": 0.0} and study.best_value == 0
    assert study.trials[1].user_attrs["reason"] == "seed 0: FloatingPointError: too heavy"


def test_what_cannot_be_is_said_before_anything_starts(calls, tmp_path):
    for wrong, message in [
        (lambda: settings(RATES, seeds=0), "--seeds"),
        (lambda: settings({"optim.learning-rate": "1e-3..1"}, method="grid"), "how many values"),
        (lambda: settings({"train.best-metric": "valid.loss,test.loss"}), "best-metric must be of validation"),
        (lambda: driver.executor(2, "auto"), "one of them"),
        (
            lambda: driver.sweep(settings(RATES, metric="valid.blue"), tmp_path / "metric"),
            "--metric must be one of valid.loss",
        ),
        (lambda: summary.report(tmp_path / "nothing"), "is not a sweep"),
    ]:
        with pytest.raises(InputError, match=message):
            wrong()


def test_directory_holds_one_sweep_at_a_time(calls, tmp_path):
    driver.sweep(settings(RATES), tmp_path)
    with pytest.raises(InputError, match="has space .*0.001,0.01,0.1.* got"):
        driver.sweep(settings({"optim.learning-rate": "0.5"}), tmp_path)
    with pytest.raises(InputError, match="optim.clip_norm = 0.0"):
        driver.sweep(settings(RATES, config=replace(STUDY, **{"optim.clip_norm": 2.0})), tmp_path)
    with directory_lock(tmp_path), pytest.raises(InputError, match="another process"):
        driver.sweep(settings(RATES), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=str(tmp_path / "file" / "x")):
        driver.sweep(settings(RATES), tmp_path / "file" / "x")


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_sweep_resumes_only_on_the_data_of_its_first_runs(tmp_path, monkeypatch, seeds):
    """An interrupted sweep whose file of dates changes: the second run would be ranked with the first."""
    file, sizes = tmp_path / "dates.txt", []
    lines = [f"{day}/1/99_1999-01-{day}" for day in range(10, 30)]

    def start(config, directory, **_):
        if sizes == [4]:
            sizes.append(None)
            raise Interrupted(1)
        lifecycle.describe(config, directory, tasks.build(config))
        write_json(directory / "result.json", {"metrics": {"valid.loss": 1.0}, "history": [], "seconds": 1.0})
        sizes.append(config.model.hidden_size)

    monkeypatch.setattr(lifecycle, "start", start)
    config = replace(TINY, **{"data.path": str(file)})
    over = settings({"model.hidden-size": "4,5"}, seeds=seeds, config=config)

    def sweep():
        return driver.sweep(over, tmp_path / "sweep", population=1)

    file.write_text("\n".join(lines))
    with pytest.raises(Interrupted):
        sweep()
    file.write_text("\n".join([*lines[:-1], "29/1/99_1999-01-92"]))
    with pytest.raises(InputError, match="the data of the run in .* have changed"):
        sweep()
    assert sizes == [4, None] and not list(tmp_path.glob("sweep/trials/*/*/failure.json"))
    file.unlink()
    file.write_text("\n".join(lines))
    assert [trial.state for trial in sweep()] == ["done", "done"]


def test_a_full_disk_is_one_clear_line(calls, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(driver.worker.lifecycle, "start", full)
    with pytest.raises(InputError, match="No space left on device; free some space"):
        driver.sweep(settings(RATES), tmp_path)


def test_a_group_that_is_no_population_says_why(tiny, tmp_path, monkeypatch, capsys):
    from attention_jax.sweep import batch

    def refuse(*_):
        raise TypeError("this model\nlooks at its learning rate")

    started = []
    monkeypatch.setattr(batch, "check_traceable", refuse)
    monkeypatch.setattr(driver.worker.lifecycle, "start", lambda config, directory, **_: started.append(directory))
    driver.sweep(settings({"optim.learning-rate": "0.01,0.02"}, config=tiny), tmp_path)
    assert "2 runs one by one: TypeError: this model looks at its learning rate" in capsys.readouterr().err
    assert len(started) == 2


@pytest.mark.parametrize("name", ["sweep_scores", "sweep_warmup", "sweep_vit"])
def test_built_in_sweeps_record_their_claimed_variants(name):
    experiment = catalog.load_experiment(name)
    shipped = driver.settings_of(experiment.config(), experiment.sweep(), "auto", 0, experiment.seeds, "")
    points, variants = driver.first_points(shipped), experiment.variants()
    [measured] = experiment.grids
    names = [summary.variant(shipped, point) for point in points]
    assert names == list(variants) == list(measured.variants)
    other_settings = shipped._replace(config=replace(shipped.config, **{"train.batch_size": 7}))
    assert summary.variant(other_settings, points[0]) == label(points[0]), "another configuration is no variant"
    assert {name for claim in experiment.claims for name in (claim.variant, claim.minus)} <= {*variants, None}
    assert [replace(experiment.config(), **point) for point in points] == list(variants.values())


def test_trial_mean_needs_all_seeds(tmp_path):
    """A mean of the seeds that came first would rank a trial by its luck; a metric that is no number fails a trial."""
    two = settings(RATES, seeds=2)
    write_seed_result = lambda seed, value: write_json(
        plan.trial_directory(tmp_path, 0, seed) / "result.json", {"metrics": {"valid.loss": value}, "history": []}
    )
    state = lambda: plan.trials(tmp_path, two, {0: {"optim.learning_rate": 0.1}})[0][2:6]
    write_seed_result(0, 1.0)
    assert state() == ("waiting", None, [1.0], "")
    write_seed_result(1, 3.0)
    assert state() == ("done", 2.0, [1.0, 3.0], "")
    write_seed_result(1, float("inf"))
    assert state() == ("failed", None, [1.0, float("inf")], "its valid.loss is inf")


def trial(number, point, *values):
    outcome = ("done", sum(values) / len(values), list(values)) if values else ("failed", None, [])
    return Trial(number, point, *outcome, "", [], [], [])


def test_an_interval_over_seeds_stays_on_the_scale(calls):
    sweep_settings = settings(RATES, seeds=2, metric="valid.bleu")
    [row] = summary.table(sweep_settings, [trial(0, {"optim.learning_rate": 0.1}, 99.0, 100.0)]).rows
    assert row[2] == "99.5 (93.15-100)"


def test_sweep_of_failed_trials_exits_with_one(calls, tmp_path, capsys):
    words = ["date_luong", "--metric", "valid.loss", "--out", str(tmp_path / "s"), "--over"]
    with pytest.raises(SystemExit) as stop, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "require", lambda *_: None)
        commands.sweep([*words, "optim.weight-decay=1"])
    assert stop.value.code == 1
    output = capsys.readouterr().out
    assert "1 failed" in output and output.endswith("sweep.json\n")


def test_a_report_is_of_its_own_experiment_and_takes_no_other_options(calls, tmp_path):
    driver.sweep(settings(RATES), tmp_path)
    written = (tmp_path / "sweep.json").read_bytes()
    words = ["date_luong", "--report", "--out", str(tmp_path)]
    for extra in (["--over", "optim.weight-decay=1"], ["--dry-run"], ["--seeds", "2"], ["--jobs", "1"]):
        with pytest.raises(InputError, match=f"leave {extra[0]} out"):
            commands.sweep(words + extra)
    with pytest.raises(InputError, match="is a sweep of date_luong, not of vit"):
        summary.report(tmp_path, like=replace(STUDY, name="vit"))
    assert (tmp_path / "sweep.json").read_bytes() == written
    commands.sweep(words)


GROUPED = Config("lm_parity", Dates(), LanguageModelConfig(hidden_size=24, num_heads=4))


@pytest.mark.parametrize(
    ("over", "cause"),
    [
        ({"model.normalizer": "softpick,top_k(0)"}, r"normalizer cannot be top_k\(0\): .* whole number of keys"),
        ({"model.score": "gaussian(0.5),gaussian(-1)"}, r"score cannot be gaussian\(-1\): .* above 0"),
        ({"model.num-kv-heads": "1,3", "optim.learning-rate": "1e-4..1:log"}, "num-kv-heads cannot be 3: .* 4 heads"),
        ({"model.num-kv-heads": "1,3", "model.num-heads": "4,8"}, "num-kv-heads cannot be 3: "),
        ({"model.num-kv-heads": "1,3", "model.num-heads": "4,3"}, ""),  # 3 with 3
    ],
)
def test_a_value_that_is_never_valid_is_refused_before_any_trial(over, cause):
    if not cause:
        assert settings(over, config=GROUPED).trials == 4
        return
    with pytest.raises(InputError, match=cause):
        settings(over, config=GROUPED)
    if "num" not in cause:
        with pytest.raises(InputError, match=cause):  # of a recurrent model
            settings(over, config=Config("luong", Dates(), LuongConfig()))


def test_an_option_that_the_sweep_varies_is_not_given_beside_it(tmp_path):
    """Neither one of --over nor one of the experiment's own sweep; 0.1 s."""
    words = ["translate_files", "--optim.learning_rate", "0.5", "--dry-run", "--out", str(tmp_path / "sweep")]
    for over in (["--over", "optim.learning-rate=0.01,0.02"], []):
        with pytest.raises(InputError, match="--optim.learning-rate is an option that the sweep varies"):
            commands.sweep([*words, *over])


@pytest.mark.slow
def test_the_scheduler_checks_models_without_a_device():
    code = (
        "from jax._src import xla_bridge\n"
        "from attention_jax.config import Config, Dates, LanguageModelConfig\n"
        "from attention_jax.sweep import driver\n"
        "over = {'model.normalizer': 'softmax(0),learned_sink(2)', 'model.mask': 'none,window(3)'}\n"
        "driver.settings_of(Config('x', Dates(), LanguageModelConfig()), over, 'auto', 0, 1, 'valid.loss')\n"
        "assert not xla_bridge._backends"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("calls")
def test_sweep_deletes_nothing_of_others(tmp_path):
    """Neither where it refuses a directory, nor in one of its own in which no run has begun."""
    foreign_files = {"settings.json": '{"a": 1}', "trials/p01/answers.csv": "1", "groups/x": "2", "journal.log": "3"}
    for name, text in foreign_files.items():
        (tmp_path / "D" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "D" / name).write_text(text)
    with pytest.raises(InputError, match=r"new or empty, and has groups \(4 of something else\)"):
        driver.sweep(settings(RATES), tmp_path / "D")
    assert {name: (tmp_path / "D" / name).read_text() for name in foreign_files} == foreign_files
    assert sum(path.is_file() for path in (tmp_path / "D").rglob("*")) == len(foreign_files)
    sweep_directory = tmp_path / "own"
    write_json(sweep_directory / "settings.json", plan.settings_json(settings({"optim.learning-rate": "5,6"})))
    write_json(sweep_directory / "trials" / "0000" / "seed0" / "failure.json", {"reason": "no file", "diverged": False})
    notes = [sweep_directory / "trials" / "notes.txt", sweep_directory / "journal.log.md"]
    for path in notes:
        path.write_text("mine")
    assert [trial.state for trial in driver.sweep(settings(RATES), sweep_directory)] == ["done"] * 3
    assert [path.read_text() for path in notes] == ["mine"] * 2

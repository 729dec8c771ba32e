"""Reproducing an experiment: what ended is kept, what differs is done anew, what was measured is recorded."""

import dataclasses
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_experiment
from PIL import Image
from toy_experiment import CONFIG

from attention_jax import catalog, config as configs, provenance
from attention_jax.claims import record
from attention_jax.claims.record import Reproduction
from attention_jax.claims.verdicts import is_met, median_value
from attention_jax.declarations import Threshold
from attention_jax.errors import Diverged, InputError
from attention_jax.files import read_json, write_json
from attention_jax.report import style
from attention_jax.sweep import summary

BOUND = Threshold(text="error", metric="test.error", source="hand", at_most=1.5)


@pytest.fixture
def calls():
    """The seeds that the toy's study was run with, in order."""
    return []


@pytest.fixture
def toy(tmp_path, calls):
    """An experiment whose study counts its calls and measures its seed."""

    def study(config, directory):
        calls.append(config.train.seed)
        return {"test.error": config.train.seed + config.optim.learning_rate}

    return toy_experiment.toy(tmp_path / "results", study=study, thresholds=(BOUND,), seeds=3)


def as_built_in(toy, rate=0.25):
    """The toy as an experiment of the checkout, with a learning rate of its own."""
    declared = configs.replace(CONFIG, **{"optim.learning_rate": rate})
    return dataclasses.replace(toy, file=record.ROOT / "date_luong.py", variants=lambda: {"": declared})


def reproduce(toy, tmp_path, rate=0.25, words=(), **options):
    override = lambda c: configs.replace(c, **{"optim.learning_rate": rate})
    return record.reproduce(toy, Reproduction(root=str(tmp_path / "runs"), **options), override, words)


def test_each_seed_is_recorded_once_without_local_paths(toy, calls, tmp_path):
    runs = reproduce(toy, tmp_path, words=["--data.path", "/somewhere/date.txt.gz", "--root", "/elsewhere"])
    assert [run["metrics"]["test.error"] for run in runs] == [0.25, 1.25, 2.25] and calls == [0, 1, 2]
    (recorded, *_) = record.load_recorded_runs("toy", toy.results)
    assert recorded["command"] == "python launch.py reproduce toy --data.path date.txt.gz"
    text = (tmp_path / "results" / "toy.json").read_text()
    assert "somewhere" not in text and "elsewhere" not in text
    reproduce(toy, tmp_path)
    assert calls == [0, 1, 2], "what had ended was run again"
    assert [run["seed"] for run in record.load_recorded_runs("toy", toy.results)] == [0, 1, 2]
    assert median_value(BOUND, runs) == 1.25 and is_met(BOUND, runs)


def test_run_with_other_options_keeps_the_old_one(toy, tmp_path):
    reproduce(toy, tmp_path)
    assert [run["metrics"]["test.error"] for run in reproduce(toy, tmp_path, rate=0.5)] == [0.5, 1.5, 2.5]
    assert len(list((tmp_path / "runs" / "full" / "toy").iterdir())) == 6


def repository(directory: Path) -> Path:
    """A repository with a committed experiment, x.py."""
    if not shutil.which("git"):
        pytest.skip("needs git")
    directory.mkdir()
    (directory / "x.py").write_text('"""An experiment."""\n')
    git = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    return directory / "x.py"


def test_uncommitted_experiment_is_not_recorded(toy, calls, tmp_path):
    file = repository(tmp_path / "mine")
    user_experiment = dataclasses.replace(toy, file=file)
    reproduce(user_experiment, tmp_path, seeds=1)
    [run] = record.load_recorded_runs("toy", toy.results)
    assert run["experiment_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_text('"""Changed."""\n')
    with pytest.raises(InputError, match=r"x\.py.*--no-record"):
        reproduce(user_experiment, tmp_path, seeds=2)
    assert calls == [0], "refused before anything was run"
    reproduce(user_experiment, tmp_path, seeds=2, record=False)
    assert calls == [0, 1] and len(record.load_recorded_runs("toy", toy.results)) == 1
    record.check_committed(
        dataclasses.replace(toy, file=tmp_path / "y.py")
    )  # outside of a repository: no commit to name


def test_built_in_experiment_needs_a_clean_checkout(toy, monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda *options: "0" * 40)  # an unpacked archive has none
    monkeypatch.setattr(provenance, "changes", lambda *options: [] if options else ["attention_jax/x.py"])
    with pytest.raises(InputError, match="not committed: attention_jax/x.py"):
        record.check_committed(as_built_in(toy))


def test_without_git_a_built_in_experiment_runs_and_is_not_recorded(toy, calls, tmp_path, monkeypatch):
    """As in an unpacked archive: no commit could be named."""
    monkeypatch.setattr(provenance, "git_output", lambda *words, directory=None: None)
    with pytest.raises(InputError, match="recording toy needs git and a clone of the repository.*--no-record"):
        reproduce(as_built_in(toy), tmp_path)
    assert calls == [], "refused before anything was run"
    assert len(reproduce(as_built_in(toy), tmp_path, record=False)) == 3
    assert not record.load_recorded_runs("toy", toy.results)
    assert (
        run_started_in(tmp_path).is_dir() and read_json(run_started_in(tmp_path) / "environment.json")["commit"] is None
    )


def run_started_in(tmp_path, **environment) -> Path:
    """The directory of a run with seed 0 that was begun in `environment`."""
    directory = tmp_path / "runs" / "full" / "toy" / "seed0"
    values = read_json(directory / "environment.json") | environment
    write_json(directory / "environment.json", values)
    return directory


@pytest.mark.skipif(provenance.commit() is None, reason="needs a clone of the repository")
def test_run_of_uncommitted_code_is_never_recorded(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(record.provenance, "changes", lambda *options: [])
    toy = as_built_in(toy)
    reproduce(toy, tmp_path, seeds=1, record=False)
    directory = run_started_in(tmp_path, changed=["attention_jax/ops/blockwise/softmax.py"])
    with pytest.raises(InputError, match=r"seed0 .*not committed \(attention_jax/ops/blockwise/softmax.py\)"):
        reproduce(toy, tmp_path, seeds=1)
    assert not record.load_recorded_runs("toy", toy.results)
    assert reproduce(toy, tmp_path, seeds=1, record=False), "without recording it is as good as any"
    old = "0" * 40
    run_started_in(tmp_path, changed=[], commit=old)
    (directory / "result.json").unlink()
    with pytest.raises(InputError, match=f"begun at commit {old[:10]}"):
        reproduce(toy, tmp_path, seeds=1)
    write_json(directory / "result.json", {"metrics": {}, "history": []})
    with pytest.raises(InputError, match=f"commit {old[:10]}, which is not in this repository"):
        record.run_origin(toy, directory, [])
    reproduce(as_built_in(toy, rate=0.5), tmp_path, rate=0.5, seeds=1)
    [run] = record.load_recorded_runs("toy", toy.results)
    assert run["metrics"]["test.error"] == 0.5, "with other options it is another run"


@pytest.mark.skipif(provenance.commit() is None, reason="needs a clone of the repository")
def test_built_in_experiment_is_recorded_with_declared_options(toy, calls, tmp_path, monkeypatch):
    monkeypatch.setattr(record.provenance, "changes", lambda *options: [])
    with pytest.raises(InputError, match=r"value of --optim.learning-rate: .*--no-record"):
        reproduce(as_built_in(toy), tmp_path, rate=0.5)
    assert calls == [], "refused before anything was run"
    assert len(reproduce(as_built_in(toy), tmp_path, rate=0.5, record=False)) == 3
    data = {"train.seed": 7, "data.path": "date.txt"}
    options = Reproduction(root=str(tmp_path / "runs"), seeds=1)
    record.reproduce(as_built_in(toy), options, lambda config: configs.replace(config, **data))
    assert [run["seed"] for run in record.load_recorded_runs("toy", toy.results)] == [7]


def test_diverged_seed_is_recorded_and_the_next_runs(toy, tmp_path, capsys):
    def study(config, directory):
        if config.train.seed == 1:
            raise Diverged(7, float("nan"))
        return {"test.error": 1.0}

    diverging = dataclasses.replace(toy, study=study)
    runs = reproduce(diverging, tmp_path)
    assert [run["seed"] for run in runs] == [0, 1, 2] and "diverged" in capsys.readouterr().out
    assert not is_met(BOUND, runs) and not is_met(BOUND, record.load_recorded_runs("toy", toy.results))
    assert "step 7" in record.load_recorded_runs("toy", toy.results)[1]["diverged"]
    smoke = dataclasses.replace(diverging, smoke=lambda: configs.replace(CONFIG, **{"train.seed": 1}))
    with pytest.raises(Diverged):
        reproduce(smoke, tmp_path, scale="smoke")


def test_variants_and_seeds_may_be_chosen(toy, calls, tmp_path):
    """Seeds count from that of the command line; the variant without a name is one, too."""
    two = dataclasses.replace(toy, variants=lambda: {"": CONFIG, "large": CONFIG})
    for variant, names in ("", [""]), ("large", ["large"]), (None, ["", "large"]):
        assert [run["variant"] for run in reproduce(two, tmp_path, variant=variant, seeds=1)] == names
    with pytest.raises(InputError, match="--variant must be one of '', 'large' for toy, got 'huge'"):
        reproduce(two, tmp_path, variant="huge")
    with pytest.raises(InputError, match="--seeds must be 0, .* or more; got -1"):
        reproduce(two, tmp_path, seeds=-1)
    calls.clear()
    options = Reproduction(root=str(tmp_path / "runs"), seeds=2)
    runs = record.reproduce(toy, options, lambda c: configs.replace(c, **{"train.seed": 7}))
    assert calls == [7, 8] == [run["seed"] for run in runs]


def test_sweep_of_uncommitted_code_is_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "record_run", lambda *run: pytest.fail("recorded"))
    write_json(tmp_path / "environment.json", {"commit": "c", "changed": ["experiments/x.py"]})
    trial = SimpleNamespace(directories=[tmp_path], results=[{"metrics": {}}])
    settings = SimpleNamespace(config=SimpleNamespace(name="date_luong"))
    with pytest.raises(InputError, match="experiments/x.py"):
        summary.record(tmp_path, settings, [trial], [])


def test_long_history_is_thinned_unless_claims_need_epochs(toy):
    history = [{"epoch": epoch} for epoch in range(1, 2004)]
    epochs = lambda count: [row["epoch"] for row in record.thin_history(toy, history[:count])]
    assert epochs(200) == [*range(1, 201)] and epochs(201) == [*range(10, 201, 10), 201]
    assert epochs(2000) == [*range(10, 2001, 10)] and epochs(2003) == [*range(100, 2001, 100), 2003]
    late = dataclasses.replace(toy, thresholds=(dataclasses.replace(BOUND, epoch=7),))
    assert record.thin_history(late, history) == history


def test_a_damaged_record_is_one_line(toy, tmp_path):
    toy.results.mkdir()
    (toy.results / "toy.json").write_text('{"experiment": ')
    with pytest.raises(InputError, match="toy.json is damaged .* put it back, or delete it"):
        record.load_recorded_runs("toy", toy.results)


def test_figures_are_drawn_from_what_is_recorded(toy, tmp_path):
    """The experiment's own compares all recorded runs, wherever they ran; a picture is of the first variant's run."""
    drawings, (small, large) = [], (CONFIG, configs.replace(CONFIG, **{"optim.learning_rate": 1.0}))

    def study(config, directory):
        (directory / "figures" / "it.png").write_text(str(config.optim.learning_rate))
        return {"test.error": config.optim.learning_rate}

    drawing = dataclasses.replace(
        toy,
        study=study,
        variants=lambda: {"small": small, "large": large},
        figure=lambda recorded, path: drawings.append(
            ({name: [run["metrics"]["test.error"] for run in its] for name, its in recorded.items()}, path)
        ),
    )
    again = lambda place, variant: record.reproduce(
        drawing, Reproduction(root=str(tmp_path / place), variant=variant, seeds=1)
    )
    reproduce(drawing, tmp_path, scale="smoke")
    assert not drawings and not toy.results.exists(), "a smoke run records nothing"
    again("here", "large")
    assert drawings == [({"large": [1.0]}, toy.results / "toy.png")]
    again("there", "small")
    assert drawings[-1][0] == {"small": [0.001], "large": [1.0]} and (toy.results / "toy-it.png").read_text() == "0.001"


def figure_inputs(path) -> str | None:
    with Image.open(path) as picture:
        return picture.text.get("Inputs")


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_recorded_figures_are_those_of_the_recorded_numbers(name, tmp_path):
    """`make figures` after a change to a JSON, or to what a comparison shows."""
    experiment = catalog.load_experiment(name)
    path = experiment.results / f"{name}-learning_curve.png"
    _, histories = record.first_variant_histories(experiment)
    if histories:
        assert figure_inputs(path) == style.fingerprint(histories)
    else:
        assert not path.exists()
    if experiment.figure and (
        figure_path := experiment.figure(record.runs_by_variant(experiment), tmp_path / "again.png")
    ):
        assert figure_inputs(experiment.results / f"{name}.png") == figure_inputs(figure_path)


@pytest.mark.parametrize("name", [name for name in catalog.experiment_names() if name.startswith("sweep_")])
def test_recorded_sweep_figures_match_recorded_runs(name, tmp_path):
    experiment = catalog.load_experiment(name)
    paths, config = summary.draw(experiment, f"{tmp_path / name}-"), experiment.config()
    ranked = any(config.train.best_metric in run["metrics"] for run in record.load_recorded_runs(name))
    assert len(paths) == (3 if ranked else 2), "no learning curves of the best trials by a test split"
    for path in paths:
        assert figure_inputs(path) == figure_inputs(experiment.results / path.name) is not None


@pytest.mark.slow
def test_processes_that_record_at_once_lose_nothing(tmp_path):
    code = (
        "import sys; from pathlib import Path; from attention_jax.claims import record\n"
        "run = lambda seed: {'variant': sys.argv[1], 'seed': seed, 'metrics': {}}\n"
        "[record.record_run('toy', run(seed), Path(sys.argv[2])) for seed in range(20)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name, str(tmp_path)]) for name in "abc"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    assert len(record.load_recorded_runs("toy", tmp_path)) == 60
    assert [path.name for path in tmp_path.iterdir()] == ["toy.json"]

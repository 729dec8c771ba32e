"""Experiments are found from wherever Python is started, whatever else is called `experiments` there; their list, and
the cost of each."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax import catalog, load_experiment
from attention_jax.claims import claim_tables, record
from attention_jax.config import replace, to_json
from attention_jax.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = [load_experiment(name) for name in catalog.experiment_names()]
LOAD = "from attention_jax import load_experiment; print(load_experiment({!r}).config().name)"


def python(code: str, cwd: Path, path: Path, **variables: str) -> str:
    """What `code` prints in a process of its own that finds the package at `path`."""
    environment = os.environ | {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "", **variables}
    process = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.fixture
def site_packages(tmp_path) -> Path:
    """The package alone, as an editable install leads to it (without the checkout's root on the path) or a wheel has
    it: a directory in which only attention_jax can be imported."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "attention_jax").symlink_to(ROOT / "attention_jax", target_is_directory=True)
    return tmp_path / "site"


@pytest.mark.parametrize("name", ["date_luong", "ntm_init", "head_pruning", "time_machine_truncation"])
def test_an_experiment_is_found_from_any_working_directory(site_packages, tmp_path, name):
    """The last three import another one."""
    assert python(LOAD.format(name), tmp_path, site_packages) == name


def test_user_package_named_experiments_is_restored(site_packages, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "ntm_copy.py").write_text("mine = True\n")
    load = LOAD.format("ntm_init") + "\nimport experiments.ntm_copy; assert experiments.ntm_copy.mine"
    again = "\nassert experiments.ntm_copy is mine; print(load_experiment('ntm_copy').config().name)"
    assert python(load, tmp_path, site_packages) == "ntm_init"
    names = python(f"import experiments.ntm_copy as mine\n{load}{again}", tmp_path, site_packages)
    assert names.split() == ["ntm_init", "ntm_copy"]


READ = """
import json, sys
from pathlib import Path
from attention_jax.runs.directory import read_config
config = read_config(Path("run"))
assert "jax" not in sys.modules and "experiments" not in sys.modules
from attention_jax import load_experiment
from attention_jax.config import import_object
assert config == load_experiment("cct_cifar10").config()
print(import_object("experiments.papers.options:CCTConfig") is type(config.model))
"""


@pytest.mark.parametrize("user_package", [False, True])
def test_model_of_papers_is_read_from_any_directory(site_packages, tmp_path, user_package):
    """Its options are trusted, though the path in config.json is not one of the package."""
    values = to_json(load_experiment("cct_cifar10").config())
    assert values["model"]["type"] == "experiments.papers.options:CCTConfig"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(values))
    if user_package:
        (tmp_path / "experiments" / "papers").mkdir(parents=True)
    assert python(READ, tmp_path, site_packages) == "True"


def test_user_file_imports_experiments_from_any_directory(site_packages, tmp_path):
    (tmp_path / "mine.py").write_text("from experiments.date_luong import config\n")
    assert python(LOAD.format("mine.py"), tmp_path, site_packages) == "date_luong"


def test_installed_package_finds_working_checkout(tmp_path):
    shutil.copytree(ROOT / "attention_jax", tmp_path / "site" / "attention_jax")
    code = "import attention_jax; print(attention_jax.__file__)\n" + LOAD.format("date_luong")
    file, name = python(code, ROOT, tmp_path / "site", PYTHONSAFEPATH="1").split()
    assert file.startswith(str(tmp_path)) and name == "date_luong"


def test_missing_module_of_experiment_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("import a_package_of_mine\n")
    with pytest.raises(InputError, match="mine.py.*a_package_of_mine.*PYTHONPATH"):
        load_experiment(str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("experiment='mine', data=None, model=None", "line 3: Config got an unexpected keyword argument 'experiment'"),
        ("'mine'", "line 3: Config missing 2 required positional arguments: 'data' and 'model'"),
    ],
)
def test_a_wrong_field_of_an_experiment_is_one_line(tmp_path, arguments, message):
    (tmp_path / "mine.py").write_text(
        f'"""Mine."""\nfrom attention_jax.config import Config\nconfig = lambda: Config({arguments})\n'
    )
    with pytest.raises(InputError, match=f"mine.py, {message}; its fields are name, data, model, optim") as caught:
        load_experiment(str(tmp_path / "mine.py")).config()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_cost_is_smallest_seconds_times_seeds(experiment):
    if experiment.about("Cost").startswith("not run"):
        assert experiment.name in ("transformer_wmt14", "vit_i1k_s16") and experiment.minutes is None
        return
    variants, runs = experiment.variants(), record.load_recorded_runs(experiment.name, experiment.results)
    timed = sorted((run for run in runs if "seconds" in run), key=lambda run: -run["seconds"])
    seconds = {run["variant"]: run["seconds"] for run in timed}
    minutes = sum(seconds[name] for name in variants if name in seconds) * experiment.seeds / 60
    assert experiment.minutes >= max(0.9 * minutes, 0.1)
    assert experiment.minutes <= max(1.1 * minutes, 0.1) or not variants.keys() <= seconds.keys()


def test_estimate_is_the_smallest_seconds_of_a_variant():
    experiment, runs = load_experiment("grokking"), record.load_recorded_runs("grokking")
    for name, config in experiment.variants().items():
        least = min(run["seconds"] for run in runs if run["variant"] == name)
        assert record.estimate_seconds(experiment, replace(config, **{"train.seed": 77})) == least
        assert record.estimate_seconds(experiment, replace(config, **{"train.total_epochs": 1})) is None
    unrun = load_experiment("vit_i1k_s16")
    assert record.estimate_seconds(unrun, unrun.config()) is None


def test_list_is_filtered_by_chapter_or_word():
    cases = {
        "vision": "vit_digits", "own data": "translate_files", "cora": "gat_cora", "TRANSFORMER": "table3_directions",
        "bahdanau et al. 2015": "bahdanau_length",
    }  # fmt: skip
    for word, expected in cases.items():
        names = {experiment.name for experiment in claim_tables.select_experiments(EXPERIMENTS, word)}
        assert expected in names and len(names) < 20


@pytest.mark.parametrize("width", [80, 160])
def test_the_list_fits_into_the_terminal(width):
    text = claim_tables.format_listing(EXPERIMENTS, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and all(experiment.name in text for experiment in EXPERIMENTS)
    [row] = [line for line in lines if line.startswith("date_luong ")]
    assert row.split()[-3:] == ["44", "s", "measured"] and "Luong" in row
    assert ("50,000 date conversions" in row) == (width > 100)

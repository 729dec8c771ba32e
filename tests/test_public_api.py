"""The public API: exported names, required packages, and the errors where one is missing."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax
from attention_jax import catalog, config as configs, errors, printing
from attention_jax.errors import InputError
from attention_jax.runs import api

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "attention_jax"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {"jax", "flax", "numpy", "scipy", "jaxtyping", "tyro", "safetensors"}


def python(code: str, *, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """Run `code` in a fresh process in which the packages of `without` cannot be imported."""
    blocker = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {set(without)!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    words = [sys.executable, "-c", blocker + code]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300)


def test_importing_the_package_imports_nothing_heavy():
    result = python("import attention_jax, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))")
    assert not set(result.stdout.split()) & CORE and not set(result.stdout.split()) & set(errors.EXTRAS), result.stderr


SPACES = ("biases", "interpret", "masks", "models", "normalizers", "pooling", "scores")


def test_the_namespaces_and_the_names_outside_of_them():
    assert 25 <= len(attention_jax.__all__) <= 40 and {*SPACES} < {*attention_jax.__all__} < {*dir(attention_jax)}
    for name in {*attention_jax.__all__} - {*SPACES, "config"}:
        value = getattr(attention_jax, name)
        home = attention_jax.HOMES.get(name, "attention_jax.errors")
        assert (value.__module__, value.__name__) == (home, name) and value.__doc__, name
    for space in SPACES:
        module = getattr(attention_jax, space)
        assert module is importlib.import_module(
            f"attention_jax.{'' if space in ('interpret', 'models') else 'ops.'}{space}"
        )
        for name in module.__all__:
            value = getattr(module, name)
            homes = (module.__name__.rstrip("s"), "attention_jax.ops.kernels.terms")  # what scores and biases return
            assert value.__doc__ and value.__module__.startswith(homes), name


@pytest.mark.parametrize("name", ["attention_jax", "attention_jax.interpret", "attention_jax.models"])
def test_imports_for_editors_equal_lazy_table(name):
    package = importlib.import_module(name)
    [block] = [node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If)]
    imports = {alias.name: line.module for line in block.body for alias in line.names}
    assert {name: home.removesuffix(f".{name}") for name, home in package.HOMES.items()} == imports


def test_a_star_import_brings_the_public_names():
    namespace = {}
    exec("from attention_jax import *\nfrom attention_jax.models import *", namespace)
    assert {*attention_jax.__all__, *attention_jax.models.__all__} <= {*namespace}


def test_unknown_name_is_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'atend'"):
        attention_jax.atend
    with pytest.raises(ImportError, match="atend"):
        from attention_jax import atend  # noqa: F401


MECHANISMS = """
import jax, jax.numpy as jnp, flax.linen as nn
from attention_jax import attend, attention_weights, beam_search, causal, greedy, nadaraya_watson, window
from attention_jax import biases, models, scores
x, gaussian = jnp.ones((4, 2)), scores.Gaussian()
print(attend(x, x, x, score=gaussian, mask=causal() & window(2)).shape, nadaraya_watson(x, x, x, gaussian).shape)
print(models.MultiHeadAttention, models.Transformer, models.ViT, models.NTM, models.LanguageModel, biases.ALiBi)
import sys
print(*sorted({name.partition('.')[0] for name in sys.modules}))
"""


@pytest.mark.slow
def test_missing_data_package_error_names_extra():
    code = "from attention_jax import load_run\nload_run('tests/runs/date_luong').task"
    message = python(code, without=("tensorflow_datasets", "array_record", "babel")).stderr.splitlines()[-1]
    assert "needs babel, " in message and "pip install '.[data]'" in message, message


def test_the_mechanisms_need_the_required_packages_only():
    """flax itself imports rich; every other optional package cannot even be found here."""
    result = python(MECHANISMS, without=("tyro", "safetensors", *(set(errors.EXTRAS) - {"rich"})))
    assert result.returncode == 0 and result.stdout.startswith("(4, 2) (4, 2)\n"), result.stderr


def find_imports(pattern: str) -> set[str]:
    """The top-level packages that the files that match `pattern` import anywhere."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.glob(pattern)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"attention_jax"}


def test_every_import_is_required_or_in_extra():
    core = set().union(*map(find_imports, ("ops/*.py", "models/*.py", "decode.py", "sampling.py")))
    assert core <= CORE - {"tyro", "safetensors"}
    assert find_imports("**/*.py") <= CORE | set(errors.EXTRAS)
    distributions = importlib.metadata.packages_distributions()
    bare = lambda requirement: re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")
    for package, extra in errors.EXTRAS.items():
        if package in distributions:  # spacy, ray and torch need not be installed here
            names = {name.lower().replace("_", "-") for name in distributions[package]}
            assert names & set(map(bare, PROJECT["optional-dependencies"][extra])), f"{package} is not in {extra}"
    assert set(map(bare, PROJECT["dependencies"])) == CORE


def test_requirements_file_matches_all_extras():
    extras = PROJECT["optional-dependencies"]
    (all_extra,) = extras["all"]
    names = re.search(r"\[(.*)\]", all_extra)[1].split(",")
    expected = [*PROJECT["dependencies"], *(line for name in names for line in extras[name]), *extras["test"][1:]]
    assert extras["test"][0] == "attention_jax[all]"
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == expected


def test_lock_file_pins_what_the_package_needs():
    """Every requirement of the extra all on Python 3.11 is pinned once, within its bounds (0.1 CPU-seconds)."""
    requirements = pytest.importorskip("packaging.requirements")
    canonical = pytest.importorskip("packaging.utils").canonicalize_name
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    versions = {canonical(name): version for name, version in pins}
    assert len(versions) == len(pins) and "pytest" not in versions and "ruff" not in versions
    extras = PROJECT["optional-dependencies"]
    names = re.search(r"\[(.*)\]", extras["all"][0])[1].split(",")
    waiting = [*PROJECT["dependencies"], *(line for name in names for line in extras[name])]
    for requirement in map(requirements.Requirement, waiting):
        if requirement.marker and not requirement.marker.evaluate({"python_version": "3.11"}):
            continue
        version = versions[canonical(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is pinned at {version}"


def test_accelerator_extras_install_same_jax():
    [jax] = [line for line in PROJECT["dependencies"] if line.startswith("jax>=")]
    for extra in ("cuda12", "cuda13", "tpu"):
        assert PROJECT["optional-dependencies"][extra] == [jax.replace("jax", f"jax[{extra}]")]
        assert extra in importlib.metadata.metadata("jax").get_all("Provides-Extra")


@pytest.mark.slow
def test_stored_run_predicts_with_required_packages():
    code = (
        "from attention_jax import load_run\n"
        "run = load_run('tests/runs/date_luong')\n"
        "print(run.predict(['May 1, 1999']), len(run.look(['May 1, 1999']).html))"
    )
    brought_by_flax = {"rich", "optax", "orbax"}
    result = python(code, without=tuple(set(errors.EXTRAS) - brought_by_flax))
    assert result.returncode == 0 and result.stdout.startswith("['"), result.stderr


DATA = pytest.param("tensorflow_datasets", "data", marks=pytest.mark.slow)


@pytest.mark.parametrize("package, extra", [("optax", "train"), DATA])
def test_a_missing_extra_is_one_line(package, extra, tmp_path):
    nothing_prepared = f"import os; os.environ['TFDS_DATA_DIR'] = {str(tmp_path)!r}\n"
    code = (
        nothing_prepared
        + f"import runpy, sys; sys.argv = ['launch.py', 'train', 'vit_digits', '--out', {str(tmp_path / 'run')!r}];"
    )
    result = python(code + "runpy.run_path('launch.py', run_name='__main__')", without=(package,))
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    install = f"pip install {package.replace('_', '-')} (in a checkout pip install '.[{extra}]')"
    assert f"this needs {package}, " in result.stderr and install in result.stderr
    assert not (tmp_path / "run").exists()


PICTURES = [pytest.param(*names, marks=pytest.mark.slow) for names in (("PIL", "pillow"), ("matplotlib", "matplotlib"))]


@pytest.mark.parametrize("package, pip", [("sacrebleu", "sacrebleu"), *PICTURES])
def test_packages_needed_later_are_checked_first(package, pip, tmp_path):
    code = (
        "from attention_jax import train_run\nfrom attention_jax.config import Config, Dates, LuongSeq2seqConfig\n"
        f"train_run(Config('x', Dates(examples=300), LuongSeq2seqConfig()), {str(tmp_path / 'run')!r})"
    )
    result = python(code, without=(package,))
    assert f"InputError: this needs {package}, " in result.stderr and f"pip install {pip} " in result.stderr
    assert not (tmp_path / "run").exists()


def test_experiments_are_of_the_checkout_or_the_package(tmp_path):
    package, checkout, elsewhere = tmp_path / "site" / "attention_jax", tmp_path / "checkout", tmp_path / "elsewhere"
    for directory in (package / "experiments", checkout / "experiments", elsewhere):
        directory.mkdir(parents=True)
    (checkout / "launch.py").touch()
    assert catalog.experiments_directory(package, working_directory=elsewhere) == package / "experiments"
    assert catalog.experiments_directory(package, working_directory=checkout) == checkout / "experiments"
    assert (
        catalog.experiments_directory(checkout / "attention_jax", working_directory=elsewhere)
        == checkout / "experiments"
    )
    assert ROOT / "experiments" == catalog.ROOT and catalog.CHECKOUT


def test_messages_name_user_command_line(monkeypatch):
    for script, typed in (("launch.py", "launch.py"), ("/venv/bin/attention-jax", "attention-jax")):
        monkeypatch.setattr(sys, "argv", [script])
        assert printing.as_typed("see `launch.py list`") == f"see `{typed} list`"


OWN = '''"""Dates, in a place of my own.

Chapter: recurrent attention
Source: me,
  myself
"""

from attention_jax.config import Config, Dates, Decode, LuongSeq2seqConfig, Train


def config():
    small = LuongSeq2seqConfig(hidden_size=8, embed_size=4)
    return Config("mine", Dates(examples=300), small, train=Train(best_metric="train.loss"), decode=Decode())
'''


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    return catalog.load_experiment(str(tmp_path / "mine.py"))


def test_a_file_of_ones_own_is_an_experiment(experiment, tmp_path):
    assert (experiment.name, experiment.claim, experiment.claims, experiment.seeds) == (
        "mine",
        "Dates, in a place of my own.",
        (),
        1,
    )
    assert (
        experiment.about("Source") == "me, myself"
        and experiment.about("Cost") == ""
        and experiment.about("Chapter") == catalog.CHAPTERS[1]
    )
    assert (
        experiment.variants() == {"": experiment.config()}
        and experiment.sweep() == {}
        and experiment.study is None
        and experiment.figure is None
    )
    assert experiment.smoke() == configs.replace(
        experiment.config(), **{"train.total_epochs": 1, "train.max_steps": 2, "decode.max_length": 4}
    )
    assert experiment.results == tmp_path / "results"
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(InputError, match="empty.py is no experiment: it needs a function config"):
        catalog.load_experiment(str(tmp_path / "empty.py"))


def test_default_smoke_config_keeps_model_kind():
    deep = catalog.load_experiment("gnmt_multi30k").config()
    small = configs.differences(deep, configs.smoke_config(deep))
    assert {option: size for option, (_, size) in small.items()} == {
        "model.hidden_size": 8, "model.embed_size": 8, "model.readout_size": 8,
        "train.total_epochs": 1, "train.max_steps": 2, "decode.max_length": 4,
    }  # fmt: skip


def test_a_run_trained_from_python_predicts(experiment, tmp_path):
    run = api.train_run(experiment.smoke(), tmp_path / "run", quiet=True)
    assert run.result["metrics"]["test.loss"] > 0 and run.config == experiment.smoke()
    (written,) = run.predict(["May 1, 1999"])
    assert isinstance(written, str)
    again = api.load_run(str(tmp_path / "run"))
    assert again == run and again.predict(("May 1, 1999",), attention=None) == [written]
    leaf = lambda run: np.asarray(run.params["embed_source"]["embedding"] if "embed_source" in run.params else 0)
    np.testing.assert_array_equal(leaf(again), leaf(run))
    [looked] = run.attention(["May 1, 1999"])
    assert looked.predictions[0].text == written and looked.predictions[0].attentions[0].weights.ndim == 4
    assert run.look(["May 1, 1999"]).html.startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match="text 2 of 2 is ' '"):
        run.predict(["May 1, 1999", " "])
    with pytest.raises(InputError, match="a list of texts"):
        run.predict("May 1, 1999")
    with pytest.raises(InputError, match="is not a run"):
        api.load_run(tmp_path)


def test_kernel_regression_is_the_formula():
    query, x, y = np.array([[0.3]]), np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [2.0]])
    weight = np.exp(-((query - x.T) ** 2) / 2)
    arrays = (jnp.asarray(a, jnp.float32) for a in (query, x, y))
    answer = attention_jax.nadaraya_watson(*arrays, attention_jax.scores.Gaussian(1.0))
    np.testing.assert_allclose(answer, weight @ y / weight.sum(), rtol=1e-5)

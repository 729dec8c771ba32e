"""A run answers from its directory alone: after its data are gone, before it has ended, and refuses damaged files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from tiny import MODELS, builder

from attention_jax import config as configs, export_run, import_run, load_experiment, load_run, tasks, train_run
from attention_jax.data import stored
from attention_jax.data.pairs import Tokenizer
from attention_jax.errors import InputError
from attention_jax.files import write_json
from attention_jax.pretrained import exchange
from attention_jax.runs import lifecycle, saved

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "runs" / "date_luong"
"""A run of 2026-11-23, with the option names of 0.1.0 in its config.json."""
FAMILIES = {model.task.rpartition(":")[2]: model for model in reversed(MODELS)}
TEXTS = {
    "Seq2seqTask": ["a b", "c d 3"],
    "LanguageTask": ["abc a"],
    "TextTask": ["a good meal"],
    "PointingTask": ["0.1,0.1 0.9,0.9 0.9,0.1 0.1,0.9"],
    "NodeTask": ["3"],
    "MemoryTask": ["10110010 01101100"],
}


@pytest.mark.slow
def test_stored_run_predicts_what_it_did():
    recorded = json.loads(STORED.with_suffix(".json").read_text(encoding="utf-8"))
    run = load_run(STORED)
    assert run.predict(list(recorded["predictions"])) == list(recorded["predictions"].values())
    total = sum(float(np.abs(x).sum()) for x in jax.tree.leaves(run.params))
    assert total == pytest.approx(recorded["sum of |parameters|"], rel=1e-6) and run.config.name == "dates"


def test_arrays_come_with_the_place_of_the_vocabulary(tmp_path):
    """The one file that a reader of weights alone lacks: which token a row of the embedding is of."""
    summary = export_run(STORED, to="npz", out=tmp_path / "out")
    path = Path(summary.partition("; vocabularies, classes: ")[2])
    fields = json.loads(path.read_text())["data"]["fields"]["mapping"]
    shapes = {name: x.shape for name, x in np.load(tmp_path / "out" / "model.npz").items() if "embed" in name}
    tokens = {side: fields[f"{side}_vocabulary"]["vocabulary"] for side in ("source", "target")}
    assert sorted(shape[0] for shape in shapes.values()) == sorted(map(len, tokens.values())), shapes
    assert "7" in tokens["source"]


def test_file_is_no_run(tmp_path):
    (tmp_path / "run.tar").write_bytes(b"\0" * 512)
    with pytest.raises(InputError, match=r"run\.tar is not a run"):
        load_run(tmp_path / "run.tar")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_run_keeps_is_enough_to_answer(name, tmp_path):
    task = builder(tmp_path)(FAMILIES[name])
    saved.store_preprocessing(tmp_path, task)
    again = tasks.build(task.config, saved.read_preprocessing(tmp_path, task.config))
    params = jax.jit(task.init)(jax.random.PRNGKey(0))
    if name in TEXTS:
        predictions, reloaded_predictions = (each.predict(params, TEXTS[name]) for each in (task, again))
        assert predictions == reloaded_predictions and len(predictions) == len(TEXTS[name])
    for record, reloaded in zip(*(each.attention_maps(params, []) for each in (task, again)), strict=True):
        assert record.title == reloaded.title
        for answer, same in zip(record.predictions, reloaded.predictions, strict=True):
            assert answer.text == same.text
            for attention, equal in zip(answer.attentions, same.attentions, strict=True):
                np.testing.assert_array_equal(attention.weights, equal.weights)
    assert (tmp_path / "preprocessing.json").stat().st_size < 50_000


READ = """
import sys, pathlib
from attention_jax import files, load_experiment  # which imports the options of the papers
from attention_jax.config import from_json
from attention_jax.runs.saved import read_preprocessing
config = from_json(files.read_object(pathlib.Path(sys.argv[1], "config.json")))
print(type(read_preprocessing(pathlib.Path(sys.argv[1]), config)).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_fresh_process_reads_every_kind_of_data(name, tmp_path):
    task = builder(tmp_path)(FAMILIES[name])
    saved.store_preprocessing(tmp_path, task)
    write_json(tmp_path / "config.json", configs.to_json(task.config))
    fresh = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, cwd=ROOT)
    assert fresh.stdout.strip() == type(task.excerpt()).__name__, fresh.stderr


def pairs(place, words: str) -> configs.Config:
    """A small translator of words, on pairs that are written to `place`."""
    lines = [f"{' '.join(words[i % 5 : i % 5 + 3])}\t{' '.join(words[i % 3 : i % 3 + 2])}\n" for i in range(40)]
    place.write_text("".join(lines))
    model = configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4)
    train = configs.Train(batch_size=8, total_epochs=2, best_metric="valid.loss")
    data = configs.Corpus(tsv_file=str(place), held_out_fraction=0.2)
    return configs.Config("pairs", data, model, train=train, decode=configs.Decode(max_length=5))


@pytest.mark.slow
def test_moved_run_predicts_without_its_data(tmp_path, capsys):
    config = pairs(tmp_path / "pairs.tsv", "abcdefgh")
    expected = train_run(config, tmp_path / "run", quiet=True).predict(["a b c", "c d e"])
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    (tmp_path / "pairs.tsv").rename(tmp_path / "gone.tsv")
    run = load_run(tmp_path / "elsewhere")
    assert run.predict(["a b c", "c d e"]) == expected and len(run.attention(["a b c"])) == 1
    with pytest.raises(InputError, match="pairs.tsv"):
        load_run(tmp_path / "elsewhere").task
    pairs(tmp_path / "pairs.tsv", "stuvwxyzabc")
    with pytest.raises(InputError, match="have changed") as refused:
        load_run(tmp_path / "elsewhere").task
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)
    assert run.predict(["a b c", "c d e"]) == expected
    shutil.rmtree(tmp_path / "elsewhere" / "final")  # as if it had been interrupted before its end
    interrupted = load_run(tmp_path / "elsewhere")
    assert interrupted.predict(["a b c"]) is not None
    capsys.readouterr()
    weights = saved.weights_of(tmp_path / "elsewhere")
    assert "has not ended; the parameters are those of its best epoch, step" in capsys.readouterr().err
    flat = exchange.flat(interrupted.params)
    assert weights.arrays.keys() == flat.keys()
    for name, array in flat.items():
        np.testing.assert_array_equal(weights.arrays[name], array)


@pytest.mark.slow
def test_run_without_preprocessing_loads_data_with_note(tmp_path, capsys):
    run = train_run(pairs(tmp_path / "pairs.tsv", "abcdefgh"), tmp_path / "run", quiet=True)
    expected = run.predict(["a b c", "c d e"])
    for path in (tmp_path / "run").glob("preprocessing.*"):
        path.unlink()
    capsys.readouterr()
    old = load_run(tmp_path / "run")
    assert old.predict(["a b c", "c d e"]) == expected and len(old.attention(["a b c"])) == 1
    (note,) = capsys.readouterr().err.splitlines()
    assert note == f"note: {tmp_path / 'run'} keeps no preprocessing; its training data were loaded"


DATES = configs.Config("dates", configs.Dates(), configs.LuongSeq2seqConfig())


def test_a_damaged_or_later_file_is_one_line(tmp_path):
    (tmp_path / "preprocessing.json").write_text(json.dumps({"format": 99, "data": None}))
    with pytest.raises(InputError, match="format 99"):
        saved.read_preprocessing(tmp_path, DATES)
    np.savez(tmp_path / "preprocessing.npz", array0=np.zeros(1))
    for damaged in ({"type": "os.system", "fields": {}}, {"tokenizer": ["exec", "x"]}, {"array": "array7"}, {"x": 1}):
        (tmp_path / "preprocessing.json").write_text(json.dumps({"format": 1, "data": damaged}))
        with pytest.raises(InputError):
            saved.read_preprocessing(tmp_path, DATES)


class Points(NamedTuple):
    x: np.ndarray
    nested: tuple = ()


def test_storable_named_tuples_are_stored(monkeypatch):
    arrays, points = {}, Points(np.arange(3.0), (Points(np.ones(2)),))
    with pytest.raises(stored.NotStored):
        stored.encode(points, {})
    monkeypatch.setattr(stored, "TYPES", dict(stored.TYPES))
    assert stored.storable(Points) is Points
    [again] = stored.decode(json.loads(json.dumps(stored.encode({"train": points}, arrays))), arrays).values()
    assert isinstance(again, Points) and isinstance(again.nested[0], Points) and again.nested[0].nested == ()
    np.testing.assert_array_equal(again.x, points.x)


def test_a_tokenizer_of_ones_own_is_not_stored():
    with pytest.raises(stored.NotStored):
        stored.encode(Tokenizer(str.split, " ".join), {})


def test_run_loads_without_unused_packages(monkeypatch):
    """What its own data need is imported, and named if it is missing."""
    monkeypatch.setattr("attention_jax.errors.is_installed", lambda package: False)
    monkeypatch.setattr("attention_jax.runs.saved.load_task", lambda directory, config: "the task")
    assert load_run(STORED).task == "the task"

    def missing(directory, config):
        raise ModuleNotFoundError(name="sentencepiece")

    monkeypatch.setattr("attention_jax.runs.saved.load_task", missing)
    with pytest.raises(InputError, match="this needs sentencepiece, which is not installed: pip install"):
        load_run(STORED).task


WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow_datasets", "array_record", "babel", "sklearn", "importlib_resources"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from attention_jax import load_run
run = load_run(sys.argv[1])
print(sorted(run.task.evaluate(run.params, True).metrics))
"""


@pytest.mark.slow
def test_evaluation_on_pair_file_needs_no_tfds(tmp_path):
    run = train_run(pairs(tmp_path / "pairs.tsv", "abcdefgh"), tmp_path / "run", quiet=True)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    evaluated = run.task.evaluate(run.params, True).metrics
    assert result.stdout.strip() == str(sorted(evaluated))


@pytest.mark.slow
def test_options_that_weights_would_drop_are_an_error(tmp_path):
    """Three trainings of two steps: a bias is lost with `init_weights`, and stays by the recipe of the message; sizes
    are those of the weights."""
    config, first = load_experiment("language_model").smoke(), tmp_path / "first"
    train_run(config, first, quiet=True)
    biased = configs.replace(config, **{"model.bias": "alibi"})
    for start in (lambda out: train_run(biased, out, init_weights=first), lambda out: import_run(biased, first, out)):
        with pytest.raises(InputError, match=r"without --model.bias alibi: pass replace\(load_run\("):
            start(tmp_path / "lost")
        assert not (tmp_path / "lost").exists()
    changes = {"rope_theta": 500.0, "normalize_qk": True, "position_embedding": "rotary", "logit_cap": 30.0}
    for name, value in (changes | {"norm": "post", "scan_layers": True}).items():
        with pytest.raises(InputError, match=f"without --model.{name.replace('_', '-')} {value}: pass"):
            train_run(configs.replace(config, **{f"model.{name}": value}), tmp_path / "lost", init_weights=first)
    larger = configs.replace(load_experiment("language_model").config(), **{"data.sequence_length": 32})
    assert import_run(larger, first, tmp_path / "sizes").config.model.hidden_size == config.model.hidden_size
    recipe = configs.replace(load_run(first).config, **{"model.bias": "alibi", "train.init_weights": str(first)})
    assert train_run(recipe, tmp_path / "kept", quiet=True).config.model.bias == "alibi"
    assert train_run(config, tmp_path / "same", init_weights=first, quiet=True).config.model.bias == "none"


def test_weights_of_a_run_that_has_not_ended_say_so(tmp_path):
    """Its preprocessing.npz is no file of weights."""
    config = configs.Config("dates", configs.Dates(), configs.LuongSeq2seqConfig())
    lifecycle.describe(config, tmp_path)
    np.savez(tmp_path / "preprocessing.npz", array0=np.ones(2))
    with pytest.raises(InputError, match="has not ended; end it with"):
        saved.weights_of(tmp_path)

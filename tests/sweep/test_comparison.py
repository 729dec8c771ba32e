"""Runs side by side: grouping by options, intervals by hand, and what is written."""

import csv
import json
import math

import numpy as np
import pytest

from attention_jax import config as configs
from attention_jax.cli import commands
from attention_jax.errors import InputError
from attention_jax.files import write_json
from attention_jax.report import curves
from attention_jax.sweep import comparison
from attention_jax.sweep.comparison import Run
from attention_jax.sweep.search import load_study

ACCURACY = {"dot": (0.50, 0.60, 0.70), "mine.student:T": (0.55, 0.61, 0.72)}


def write_run(directory, score, seed, accuracy):
    directory.mkdir(parents=True)
    model = {"type": "ViTConfig", "score": score, "hidden_size": 8}
    config = {"type": "Config", "format": 1, "name": "x", "model": model, "train": {"type": "Train", "seed": seed}}
    history = [{"epoch": epoch, "seconds": 1.0, "valid.accuracy": accuracy - 0.1 / epoch} for epoch in (1, 2)]
    result = {"metrics": {"valid.loss": 1.0, "valid.accuracy": accuracy}, "history": history, "seed": seed}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "result.json").write_text(json.dumps(result))
    return directory


@pytest.fixture
def runs(tmp_path):
    """Two variants of three seeds; one as single runs, one in a directory as of a sweep."""
    for seed, accuracy in enumerate(ACCURACY["dot"]):
        write_run(tmp_path / "dot" / f"00{seed}", "dot", seed, accuracy)
    for seed, accuracy in enumerate(ACCURACY["mine.student:T"]):
        write_run(tmp_path / "sweep" / "trials" / "0000" / f"seed{seed}", "mine.student:T", seed, accuracy)
    return [str(tmp_path / "dot"), str(tmp_path / "sweep")]


def test_means_and_seed_differences_by_hand(runs):
    """Student's t of 2 degrees of freedom is 4.303; the standard deviations are 0.1 and, of 0.05, 0.01 and 0.02,
    0.020817."""
    groups, (dot, mine), metric = comparison.compare(runs)
    assert metric == "valid.accuracy" and [*groups] == ["score=dot", "score=mine.student:T"]
    assert (dot.mean, dot.median) == (pytest.approx(0.6), 0.6) and mine.values == {0: 0.55, 1: 0.61, 2: 0.72}
    np.testing.assert_allclose(dot.interval, [0.6 - 4.3027 * 0.1 / 3**0.5, 0.6 + 4.3027 * 0.1 / 3**0.5], atol=1e-4)
    difference, half = comparison.seed_difference(mine, dot)
    assert difference == pytest.approx(0.08 / 3) and half == pytest.approx(4.3027 * 0.020817 / 3**0.5, abs=1e-4)
    epochs, values = comparison.curves_of(groups, [dot, mine], metric)["score=dot"]
    assert epochs == [1, 2]
    np.testing.assert_allclose(values, [[0.4, 0.45], [0.5, 0.55], [0.6, 0.65]])
    assert comparison.curves_of(groups, [mine], "valid.loss") == {
        "score=mine.student:T": ([0], [[0.55], [0.61], [0.72]])
    }


def test_figure_has_interval_of_each_difference(runs, tmp_path, monkeypatch):
    """By hand as above: 0.08 / 3 +- 0.0517; of one evaluation, the means with theirs, 0.55 of the
    first, and no curve."""
    figures = []
    monkeypatch.setattr(curves, "save", lambda figure, path: figures.append(figure))
    bars = lambda axis: [line.get_xdata() for line in axis.lines if len(line.get_xdata()) == 2][: len(ACCURACY)]
    commands.main(["compare", *runs, "--out", str(tmp_path / "a.png")])
    for run in tmp_path.rglob("result.json"):
        write_json(run, {**(result := json.loads(run.read_text())), "history": result["history"][-1:]})
    commands.main(["compare", *runs, "--out", str(tmp_path / "b.png")])
    for figure in figures:
        first, second = bars(figure.axes[1])
        assert np.isnan(first).all()
        np.testing.assert_allclose(second, [0.08 / 3 - 0.0517, 0.08 / 3 + 0.0517], atol=1e-4)
    assert figures[0].axes[0].lines[1].get_xdata().tolist() == [1, 2]
    np.testing.assert_allclose(bars(figures[1].axes[0])[0], [0.55 - 0.2484, 0.55 + 0.2484], atol=1e-4)


def test_row_says_why_difference_is_missing():
    variant = lambda name, values: comparison.Variant(name, values, 0.0, None, 0.0)
    first, other = variant("a", {0: 1.0, 1: 2.0}), variant("b", {7: 1.0})
    rows = comparison.difference_rows([first, other, variant("c", {0: -math.inf, 1: 0.0})])
    assert [row.text for row in rows] == ["", "no shared seed", "diverged"]
    assert all(math.isnan(row.difference) for row in rows) and not comparison.difference_rows([first])


def test_the_command_writes_table_figure_and_numbers(runs, tmp_path, capsys):
    files = {option: tmp_path / "new" / f"file{ending}" for option, ending in FILES.items()}
    commands.main(["compare", *runs, *(str(word) for pair in files.items() for word in pair)])
    assert "score=mine.student:T      3" in capsys.readouterr().out
    assert files["--out"].read_bytes().startswith(b"%PDF")
    latex = files["--latex"].read_text().splitlines()
    assert latex[0] == r"\begin{tabular}{lrrrr}" and latex[5].startswith("score=mine.student:T & 3 & 0.6267 (")
    rows = list(csv.reader(files["--csv"].read_text().splitlines()))
    assert rows[0] == ["variant", "seed", "valid.accuracy"] and rows[-1] == ["score=mine.student:T", "2", "0.72"]
    assert len(rows) == 7


FILES = {"--out": ".pdf", "--latex": ".tex", "--csv": ".csv"}


def variant_names(*options):
    return [*comparison.group_runs([Run(point, 0, {}, []) for point in options])]


def test_a_variant_is_named_by_what_differs():
    vit = {"type": "Config", "model": "ViTConfig", "model.score": "dot", "model.mask": "none"}
    cct = {"type": "Config", "model": "CCTConfig", "model.score": "dot"}
    assert variant_names(vit, vit) == ["all runs"]
    assert variant_names(vit, vit | {"model.score": "mean"}) == ["score=dot", "score=mean"]
    assert variant_names(vit, cct) == ["model=ViTConfig", "model=CCTConfig"]
    masked = vit | {"model.mask": "window(2)"}
    assert variant_names(vit, masked, cct)[1:] == ["model=ViTConfig mask=window(2)", "model=CCTConfig"]
    older = {name: value for name, value in vit.items() if name != "model.mask"}
    assert variant_names(vit, masked, older)[2] == "mask=not stored"


def test_an_option_that_is_not_stored_has_its_default(tmp_path):
    """Beside one older run, runs that differ in the option are two variants; the older one belongs to the default."""
    for place, (mask, score) in enumerate((("none", 0.2), ("causal", 0.9), (None, 0.4))):
        path = write_run(tmp_path / str(place), "dot", place, score) / "config.json"
        values = json.loads(path.read_text())
        values["model"] |= {"mask": mask} if mask else {}
        path.write_text(json.dumps(values))
    default = configs.ViTConfig().mask
    groups, _, _ = comparison.compare([str(tmp_path)])
    assert {name: [run.seed for run in runs] for name, runs in groups.items()} == {
        f"mask={default}": [0, 2],
        "mask=causal": [1],
    }


@pytest.mark.parametrize(("metric", "median"), [("valid.loss", 0.9), ("valid.accuracy", 0.2)])
def test_a_diverged_run_is_worse_than_any_number(metric, median, tmp_path, capsys):
    """By hand: the median of 0.2, 0.9 and one that diverged, however that is recorded."""
    write_diverged = {
        "nan": lambda run: write_json(run / "result.json", {"metrics": {metric: math.nan}, "history": []}),
        "failure": lambda run: write_json(run / "failure.json", {"reason": "nan", "diverged": True}),
        "progress": lambda run: write_json(run / "progress.json", {"state": "diverged"}),
    }
    for name, write in write_diverged.items():
        runs = [write_run(tmp_path / name / str(seed), "dot", seed, 0.5) for seed in range(3)]
        for run, value in zip(runs, (0.2, 0.9)):
            write_json(run / "result.json", {"metrics": {metric: value}, "history": []})
        (runs[2] / "result.json").unlink()
        write(runs[2])
        groups, [variant], _ = comparison.compare([str(tmp_path / name)], metric)
        assert (variant.median, math.isinf(variant.mean), variant.interval) == (median, True, None), name
        [row] = comparison.table([variant], metric).rows
        assert row[1] == "3 (1 diverged)" and comparison.comma_separated(groups, metric).endswith(",2,nan\n")
        assert comparison.seed_difference(variant, variant) is None


def test_a_failed_run_is_left_out_with_its_reason(runs, tmp_path, capsys):
    (tmp_path / "dot" / "002" / "result.json").unlink()
    write_json(tmp_path / "dot" / "002" / "failure.json", {"reason": "no memory", "diverged": False})
    comparison.compare(runs)
    assert "002 failed (no memory) and is left out" in capsys.readouterr().err


def test_numbered_directories_are_in_their_order(tmp_path):
    for number, accuracy in (("10", 0.9), ("9", 0.2)):
        write_run(tmp_path / number, "dot", 0, accuracy)
    assert comparison.compare([str(tmp_path)])[1][0].values == {0: 0.9}, "of one seed the last run counts"


def test_recorded_results_are_variants(capsys):
    commands.main(["compare", "experiments/results/sweep_warmup.json", "--metric", "test.exact_match"])
    assert "learning_rate=0.003 warmup_steps=200      6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "compare needs runs, .* nowhere is none"),
        (["--metric", "bleu"], "one that all runs have, valid.loss, valid.accuracy; got bleu"),
        (["--curve", "bleu", "--out", "new.png"], "--curve must be .*valid.accuracy; got bleu"),
        (["--out", "new.txt"], "must|needs a file that ends in"),
    ],
)
def test_wrong_options_are_one_line_and_write_nothing(runs, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        commands.main(["compare", *(runs if words[0].startswith("--") else []), *words, "--latex", "table.tex"])
    assert {path.name for path in tmp_path.iterdir()} == {"dot", "sweep"}


def test_runs_on_other_data_are_refused(runs, tmp_path):
    for name, kind in (("images", "Digits"), ("texts", "TextFile")):
        path = write_run(tmp_path / name / "000", "dot", 0, 0.5) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "data": {"type": kind}}))
    with pytest.raises(InputError, match="runs on the same kind of data, got Digits, TextFile: give fewer"):
        comparison.compare([str(tmp_path / "images"), str(tmp_path / "texts")])


def test_a_run_that_has_not_ended_is_left_out(runs, tmp_path, capsys):
    (tmp_path / "dot" / "002" / "result.json").unlink()
    _, (dot, _), _ = comparison.compare(runs)
    assert sorted(dot.values) == [0, 1] and "002 has not ended and is left out" in capsys.readouterr().err


DAMAGED = """[]
null
NaN
{}
{"metrics": 3}
{"metrics": {"loss": "x"}, "history": []}
{"metrics": {}, "history": [{"loss": 1}]}
{"metrics": {
Stra\xdfe"""


@pytest.mark.parametrize("content", ["", *DAMAGED.splitlines()])
def test_damaged_results_are_one_line_with_their_name(content, runs, tmp_path):
    """Of a run, and in recorded results."""
    for path, text in (
        (tmp_path / "dot" / "001" / "result.json", content),
        (tmp_path / "NAME.json", f'{{"runs": [{content}]}}' if content else ""),
    ):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=f"{path} is damaged") as error:
            comparison.compare([*runs, str(path)] if path.name == "NAME.json" else runs)
        assert "\n" not in str(error.value)
        path.unlink()


def test_damaged_journal_is_one_line(tmp_path):
    (tmp_path / "journal.log").write_text("[]")
    with pytest.raises(InputError, match="journal.log is damaged"):
        load_study(tmp_path / "journal.log")


def test_runs_of_other_data_are_other_variants(tmp_path):
    """The file of the options was another one for seed 1; both have a fingerprint of what they read."""
    for seed, fingerprint in enumerate(("aaaa", "bbbb", "aaaa")):
        run = write_run(tmp_path / f"{seed}", "dot", seed, 0.5)
        (run / "facts.json").write_text(json.dumps({"fingerprint": fingerprint}))
    groups = comparison.group_runs(comparison.load_runs([str(tmp_path)]))
    seeds = {name: [run.seed for run in members] for name, members in groups.items()}
    assert seeds == {"all runs, data aaaa": [0, 2], "all runs, data bbbb": [1]}

"""The command line as a user sees it, right and wrong: launch.py as the main program, in this process or in its own."""

import contextlib
import dataclasses
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from attention_jax import catalog, config as configs, load_run
from attention_jax.cli import command_options, commands
from attention_jax.config.fields import field_docs
from attention_jax.errors import InputError
from attention_jax.files import directory_lock
from attention_jax.runs import directory as run_directory, lifecycle

ROOT = Path(__file__).resolve().parents[1]
TINY = ["--data.examples", "600", "--model.hidden-size", "8", "--model.embed-size", "4", "--train.steps-per-call", "1"]


def launch(*arguments, timeout=300) -> subprocess.CompletedProcess:
    """`python launch.py ...` in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
    )


def launch_here(*arguments, cwd=ROOT) -> subprocess.CompletedProcess:
    """`python launch.py ...` in `cwd` and in this process, which has imported everything: output and exit code."""
    words, code = [str(ROOT / "launch.py"), *map(str, arguments)], 0
    out, error = io.StringIO(), io.StringIO()
    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(cwd):
            patch.setattr(sys, "argv", words)
            patch.setattr("attention_jax.cli.commands.end_on_signals", lambda: None)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())


def error_line(*arguments) -> str:
    """The one line of an error: exit code 2, nothing like a traceback."""
    result = launch_here(*arguments)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished tiny run."""
    directory = tmp_path_factory.mktemp("runs") / "a"
    result = launch_here("train", "date_luong", *TINY, "--train.total-epochs", "2", "--out", directory)
    assert result.returncode == 0, result.stderr
    return directory


def test_help_answers_in_under_a_second():
    """Of computing time, which other processes of the machine do not prolong."""
    start = os.times()
    result = launch("--help")
    end = os.times()
    assert "reproduce" in result.stdout and result.returncode == 0
    assert end.children_user + end.children_system - start.children_user - start.children_system < 1.0


def test_list_names_every_experiment():
    result = launch_here("list")
    assert all(path.stem in result.stdout for path in (ROOT / "experiments").glob("*.py")), result.stderr


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_every_command_documents_its_options(command, capsys):
    kind = getattr(command_options, command.title())
    with pytest.raises(SystemExit) as stop:
        command_options.parse(kind, ["--help"])
    assert stop.value.code == 0
    help_text = " ".join(re.sub(r"[│╭╰─╮╯]", " ", capsys.readouterr().out).split())
    assert " ".join(kind.__doc__.split()) in help_text
    for field in dataclasses.fields(kind):
        text = field_docs(kind)[field.name]
        assert text and text in help_text, field.name


@pytest.mark.parametrize("options", [[], ["--out", "x"], ["--data.examples", "600", "--out=x"], ["--help-all"]])
def test_options_without_command_train_main_job(options, monkeypatch):
    trained = []
    monkeypatch.setitem(commands.COMMANDS, "train", trained.append)
    commands.main(options)
    assert trained == [["date_luong", *options]]


def test_wrong_option_without_command_is_one_line():
    assert "perhaps you meant --out; see launch.py train date_luong --help-all" in error_line("--outt", "x")
    assert "there is no command 'trian'; perhaps you meant train" in error_line("trian", "--out", "x")


@pytest.mark.parametrize("first", ["-h", "--help", "help", "-V", "--version"])
def test_help_and_version_need_no_command(first, capsys, monkeypatch):
    monkeypatch.delitem(commands.COMMANDS, "train")
    commands.main([first])
    assert capsys.readouterr().out.startswith(("Attention in JAX", "attention_jax "))


def test_list_is_by_chapter_and_narrow_when_piped():
    lines = launch_here("list").stdout.splitlines()
    chapters = [line for line in lines if line in catalog.CHAPTERS]
    assert sorted(chapters) == sorted(catalog.CHAPTERS) and chapters[0] == "your own data"
    assert max(map(len, lines)) <= 100 and lines[0].split() == ["name", "paper", "data", "time", "status"]


def test_one_experiment_is_shown_whole():
    page = launch_here("list", "date_attention").stdout
    experiment = catalog.load_experiment("date_attention")
    assert max(map(len, page.splitlines())) <= 100
    words = " ".join(page.split())
    assert experiment.claim in words and all(" ".join(claim.text.split()) in words for claim in experiment.claims)
    assert all(experiment.about(heading) in words for heading in ("Chapter", "Source", "Data", "Command", "Cost"))
    table = (ROOT / "docs" / "results" / "date_attention.md").read_text(encoding="utf-8")
    start = "| attention, exact match after epoch 3 |"
    [row] = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith(start)]
    text, published, measured, difference, verdict = row
    expected = f"{verdict}: {text}; source {published}; this code {measured}; difference {difference} ("
    assert expected in words, "the verdict and the number of the experiment's page"
    assert "--data.path A published date.txt or date.txt.gz" in words
    assert "Variants: token, mean, attention" in launch_here("list", "pooling").stdout
    assert "perhaps you meant date_luong" in error_line("list", "date_long")


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, str(ROOT / "launch.py"), "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 128 + signal.SIGPIPE


MISTAKES = {
    "an option that there is not": (
        ["--model.hiden-size", "3"],
        "there is no option --model.hiden-size; perhaps you meant --model.hidden-size",
    ),
    "no number": (["--model.hidden-size", "big"], "--model.hidden-size: invalid literal for int() with base 10: 'big'"),
    "no choice": (
        ["--model.cell", "rnn"],
        "invalid choice 'rnn' for argument '--model.cell'. Expected one of ('lstm', 'gru')",
    ),
    "no score": (["--model.score", "dotty"], "--model.score must be one of 'dot', 'scaled_dot', "),
    "no value": (["--out"], "Missing value for argument '--out'. Expected 1 values."),
    "one word too many": (["more"], "unexpected more"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_it(mistake):
    words, message = MISTAKES[mistake]
    default = catalog.load_experiment("date_luong").config()
    with pytest.raises(InputError) as error:
        command_options.parse_with_config(command_options.Train, ["date_luong", *words], lambda _: default)
    assert message in str(error.value) and re.search(
        r"; see launch.py train( date_luong)? --help(-all)?$", str(error.value)
    )
    assert not re.search(r"\n|[│╭╰╮╯─]|  ", str(error.value))


@pytest.mark.parametrize(
    "kind, needed", [("Train", "the name of an experiment"), ("Predict", "a run"), ("Bench", "WHAT")]
)
def test_a_required_argument_is_asked_for_by_name(kind, needed):
    with pytest.raises(InputError, match=f"needs .*{needed}"):
        command_options.parse(getattr(command_options, kind), [])


def test_options_in_any_order_after_name():
    default = catalog.load_experiment("date_luong").config()
    words = [
        "date_luong",
        "--optim.learning-rate",
        "0.1",
        "--resume",
        "--model.hidden_size=3",
        "--out",
        "x",
        "--data.no-reverse-source",
    ]
    args, config = command_options.parse_with_config(command_options.Train, words, lambda args: default)
    assert args == command_options.Train("date_luong", out="x", resume=True)
    assert configs.differences(default, config) == {
        "data.reverse_source": (True, False), "model.hidden_size": (128, 3), "optim.learning_rate": (0.002, 0.1),
    }  # fmt: skip
    args, remaining = command_options.parse_known(
        command_options.Reproduce, ["a", "b", "--data.path", "c", "--seeds", "2"]
    )
    assert (args.names, args.seeds, remaining) == (("a", "b"), 2, ["--data.path", "c"])


def test_only_one_file_knows_the_parser():
    files = [*(ROOT / "attention_jax").rglob("*.py"), *(ROOT / "experiments").glob("*.py"), ROOT / "launch.py"]
    assert [path.name for path in files if re.search(r"\b(import|from) tyro\b", path.read_text())] == [
        "command_options.py"
    ]


def test_misspelled_names_are_suggested():
    assert "date_luong" in error_line("train", "date_loung")
    assert "train" in error_line("trian", "date_luong")
    assert "--model.hidden-size" in error_line("train", "date_luong", "--model.hiden-size", "3")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model.hidden-size", "big"], "--model.hidden-size"),
        (["--model.score", "dotty"], "scaled_dot"),
        (["--model.hidden-size", "0"], "at least 1"),
        (["--optim.learning-rate", "-1"], "--optim.learning-rate must be above 0"),
        (["--data.path", "no/such/file.txt"], "no/such/file.txt"),
        (["--out", "/proc/nowhere"], "writable"),
        (["--resume", "--out", "no/such/run"], "no/such/run"),
        (["--coordinator", "10.0.0.1:9000", "--hosts", "2"], "need --out"),
        (["--out", "no/such/run", "--hosts", "2"], "HOST:PORT of the first host"),
    ],
)
def test_bad_options_get_one_line(arguments, message):
    assert message in error_line("train", "date_luong", *arguments)


def test_a_malformed_line_is_named(tmp_path):
    lines = [f"{'1/2/93':29}_1993-01-02"] * 20
    lines[12] = "no underscore here"
    (tmp_path / "date.txt").write_text("\n".join(lines) + "\n")
    assert "line 13" in error_line("train", "date_luong", "--data.path", tmp_path / "date.txt", "--out", tmp_path / "r")


def test_a_finished_run_answers_and_is_never_overwritten(run):
    result = json.loads((run / "result.json").read_text())
    assert {"config.json", "environment.json", "metrics.jsonl", "result.json", "checkpoints", "figures"} <= {
        p.name for p in run.iterdir()
    }
    metrics = dict(line.split() for line in launch_here("evaluate", run).stdout.splitlines())
    assert float(metrics["test.exact_match"]) == pytest.approx(result["metrics"]["test.exact_match"])
    assert float(metrics["test.loss"]) == pytest.approx(result["metrics"]["test.loss"], rel=1e-4)
    prediction = launch_here("predict", run, "May 1, 1999", "--attention", run / "one.png")
    assert prediction.stdout.startswith("May 1, 1999 -> ") and (run / "one.png").stat().st_size > 5000, (
        prediction.stderr
    )
    assert "characters" in error_line("predict", run, "5월 1일") or "vocabulary" in error_line(
        "predict", run, "5월 1일"
    )
    assert "a text must not be empty, got ''" in error_line("predict", run, "May 1, 1999", "")
    assert "at least one text" in error_line("predict", run)
    assert "leave it or --to" in error_line("export", run, "--to", "stablehlo", "--naming", "timm")
    assert ".png, .svg, .pdf" in error_line("predict", run, "May 1, 1999", "--attention", run / "one.xyz")
    original = (run / "result.json").read_bytes()
    assert "--resume" in error_line("train", "date_luong", *TINY, "--out", run)
    assert (run / "result.json").read_bytes() == original


def test_a_run_has_a_page_of_attention(run, tmp_path):
    assert "look.html" in (run / "page.md").read_text(encoding="utf-8")
    look_page = (run / "figures" / "look.html").read_text(encoding="utf-8")
    assert look_page.startswith("<!DOCTYPE html>") and f"<title>date_luong, run {run.name}</title>" in look_page
    (tmp_path / "own.txt").write_text("May 1, 1999\n\n2/3/04\n")
    result = launch_here("look", run, tmp_path / "own.txt", "3/4/05", "--out", tmp_path / "own.html")
    assert result.stdout == f"{tmp_path / 'own.html'}\n", result.stderr
    html = (tmp_path / "own.html").read_text(encoding="utf-8")
    assert all(f'"title":"{text}"' in html for text in ("May 1, 1999", "2/3/04", "3/4/05"))
    launch_here("look", run, "May 1, 1999")
    assert (run / "figures" / "look.html").read_text(encoding="utf-8") == look_page  # the run's own page stays
    assert "'title'" not in html and (run / "figures" / "look-own.html").exists()
    assert "no file of texts" in error_line("look", run, tmp_path / "none.txt")
    assert "ends in .html; got own.png" in error_line("look", run, "--out", "own.png")
    assert "characters" in error_line("look", run, "May 1, 1999" * 9)
    assert "a text must not be empty, got ' '" in error_line("look", run, " ")
    assert "is not a run" in error_line("look", tmp_path)


def test_a_computation_may_have_a_page_of_attention(tmp_path):
    for name, size in (("nadaraya_watson", 5_000), ("complexity", 0)):
        directory = tmp_path / name
        directory.mkdir()
        config = configs.to_json(catalog.load_experiment(name).config())
        (directory / "config.json").write_text(json.dumps(config))
        if size:
            assert launch_here("look", directory, "1.5", "--out", directory / "look.html").returncode == 0
            assert (directory / "look.html").stat().st_size > size
        else:
            assert "no model with attention" in error_line("look", directory)


@pytest.mark.slow
def test_a_failed_figure_keeps_the_result(tmp_path):
    short = [*TINY, "--train.total-epochs", "1", "--train.max-steps", "2", "--out", tmp_path / "r"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr("attention_jax.tasks.run_figures.learning_curves", mock.Mock(side_effect=OSError("no room")))
        launch_here("train", "date_luong", *short)
    assert (
        run_directory.read_result(tmp_path / "r")["history"]
        and not (tmp_path / "r/figures/learning_curve.png").exists()
    )
    load_run(tmp_path / "r").evaluate(figures=True)
    assert "(figures/learning_curve.png)" in (tmp_path / "r/page.md").read_text(encoding="utf-8")


def test_a_file_is_translated_line_by_line(run, tmp_path):
    (tmp_path / "in.txt").write_text("May 1, 1999\n\n2/3/04\n")
    launch_here("predict", run, tmp_path / "in.txt", "--out", tmp_path / "new" / "out.txt")
    first, empty, last = (tmp_path / "new" / "out.txt").read_text().splitlines()
    assert empty == "" and len(first) == len(last) == 10
    assert launch_here("predict", run, "May 1, 1999").stdout == f"May 1, 1999 -> {first}\n"
    both = launch_here("predict", run, tmp_path / "in.txt").stdout
    assert both == f"May 1, 1999 -> {first}\n\n2/3/04 -> {last}\n"
    assert "no file of texts at" in error_line("predict", run, tmp_path / "none.txt")
    assert "--out" in error_line("predict", run, tmp_path / "in.txt", "--out", "/proc/none/out.txt")
    (tmp_path / "bad.txt").write_bytes(b"ok\n\xff\n")
    assert "line 2: not valid UTF-8" in error_line("predict", run, tmp_path / "bad.txt")


@pytest.mark.slow
def test_custom_experiment_file_is_reproduced_next_to_it(tmp_path):
    experiment = tmp_path / "mine.py"
    experiment.write_text(
        "from attention_jax.config import replace\n"
        "from experiments.date_luong import config as theirs\n"
        "def config():\n"
        "    small = {'data.examples': 600, 'model.hidden_size': 8, 'train.total_epochs': 1}\n"
        "    return replace(theirs(), name='mine', **small)\n"
    )
    threshold = '[[threshold]]\ntext = "it is measured"\nmetric = "test.loss"\nsource = "me"\nat_least = 0.0\n'
    experiment.with_suffix(".toml").write_text(threshold)
    result = launch_here("train", experiment, "--help-all")
    assert result.returncode == 0 and "(default: 600)" in result.stdout, result.stderr
    result = launch_here("reproduce", experiment, "--root", tmp_path / "runs", "--train.max-steps", "2")
    assert result.returncode == 0 and "met" in result.stdout, result.stderr
    (recorded,) = json.loads((tmp_path / "results" / "mine.json").read_text())["runs"]
    assert recorded["command"] == "python launch.py reproduce mine --train.max-steps 2"
    assert "put" in error_line("sweep", experiment, "--dry-run")
    over = "--over", "model.score=cosine(1.0),dot", "--metric", "valid.loss", "--data.validation", "100", "--dry-run"
    by_path, by_name = (launch_here("sweep", name, *over) for name in ("experiments/date_luong.py", "date_luong"))
    assert by_path.returncode == 0 and by_path.stdout == by_name.stdout, by_path.stderr
    assert "no experiment file" in error_line("train", tmp_path / "none.py")


def test_resume_rejects_changed_options(run):
    assert "model.hidden_size = 8" in error_line(
        "train", "date_luong", "--resume", "--out", run, "--model.hidden-size", "16"
    )
    again = ("train", "date_luong", "--resume", "--out", run)
    assert "optim.learning_rate = 0.0" in error_line(*again, "--optim.learning-rate", "1")
    assert "has 2 epochs behind it, got 1" in error_line(*again, "--train.total-epochs", "1")
    facts = (run / "facts.json").read_text(encoding="utf-8")
    try:
        (run / "facts.json").write_text(facts.replace('"train_pairs": 540', '"train_pairs": 541'), encoding="utf-8")
        assert "have changed" in error_line(*again, "--train.total-epochs", "3") and (run / "result.json").exists()
    finally:
        (run / "facts.json").write_text(facts, encoding="utf-8")
    assert '"train_pairs": 540' in facts


def test_invalid_model_leaves_no_directory(tmp_path):
    result = launch_here("train", "vit_digits", "--model.patch-size", "3", "--out", tmp_path / "x" / "r")
    assert result.returncode == 2 and "error: images must be squares of a multiple of the patch size" in result.stderr
    assert not (tmp_path / "x").exists()


def test_non_utf8_argument_is_rejected_before_training(tmp_path):
    place = f"{tmp_path}/caf\udce9"
    assert r"caf\udce9" in error_line("train", "date_luong", *TINY, "--train.max-steps", "1", "--out", place)
    assert not list(tmp_path.iterdir())
    config = configs.replace(catalog.load_experiment("date_luong").smoke(), **{"train.max_steps": 1})
    with pytest.raises(InputError, match="UTF-8"):
        lifecycle.start(config, Path(place))
    assert not list(tmp_path.iterdir())


def test_out_of_memory_is_one_line_without_leftovers(tmp_path):
    config = catalog.load_experiment("date_luong").smoke()
    error = pytest.raises(InputError, match="memory is too small")
    with error:  # NumPy's
        lifecycle.start(configs.replace(config, **{"model.hidden_size": 10**9}), tmp_path / "x" / "r")
    with error:  # JAX's
        lifecycle.start(
            configs.replace(config, **{"model.hidden_size": 8, "model.embed_size": 10**9}), tmp_path / "x" / "r"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["predict RUN 1/2/93 --attention /proc/x/y.png", "export RUN --out /proc/x"])
def test_unwritable_output_is_one_line_error(run, command):
    assert "/proc/x" in error_line(*command.replace("RUN", str(run)).split())


def test_weights_need_a_name_and_one_option(tmp_path):
    assert "empty name" in error_line("import", "date_luong", "", "--out", tmp_path / "r")
    assert "path" in error_line("train", "date_luong", "--data.path", "x" * 300) and not (tmp_path / "r").exists()


def test_all_experiments_at_full_scale_are_refused():
    assert "reproduce needs the NAME of an experiment" in error_line("reproduce")
    assert "reproduce needs the NAME of an experiment" in error_line("reproduce", "--no-record")


def test_every_name_is_read_before_anything_runs(tmp_path):
    place = ("--scale", "smoke", "--root", tmp_path / "runs")
    assert "no experiment 'nosuch'" in error_line("reproduce", "bptt_unbiasedness", "nosuch", *place)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("wrong, message", [("--jobs -1", "at least 0"), ("--jobs 2 --ray auto", "one of")])
def test_a_sweep_that_is_refused_leaves_no_settings(tmp_path, wrong, message):
    over = ("--over", "model.hidden-size=4,8", "--metric", "valid.loss", "--out", tmp_path / "s")
    assert message in error_line("sweep", "date_luong", *over, *wrong.split()) and not (tmp_path / "s").exists()


def test_every_repetition_of_over_counts(tmp_path):
    once = ("--over", "model.hidden-size=4,8", "optim.learning-rate=0.1,0.2,0.3")
    twice = ("--over", "model.hidden-size=4,8", "--over", "optim.learning-rate=0.1,0.2,0.3")
    place = ("--dry-run", "--metric", "valid.loss", "--data.validation", "100", "--out", tmp_path / "s")
    together, apart = (launch_here("sweep", "date_luong", *over, *place) for over in (once, twice))
    assert apart.returncode == 0 and "6 trials" in apart.stdout, apart.stderr
    assert apart.stdout == together.stdout
    again = ("--over", "model.hidden-size=4", "--over", "model.hidden-size=8")
    assert "model.hidden-size twice" in error_line("sweep", "date_luong", *again, *place)


def test_newest_run_has_greatest_number(tmp_path):
    for number in ("002", "999", "1000", "001"):
        (tmp_path / "x" / number).mkdir(parents=True)
        (tmp_path / "x" / number / "config.json").touch()
    (tmp_path / "x" / "1001").mkdir()
    assert run_directory.latest_directory("x", tmp_path).name == "1000"


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    config = catalog.load_experiment("date_luong").smoke()
    with directory_lock(tmp_path), pytest.raises(InputError, match="another process is at work in"):
        (tmp_path / "figures").mkdir()
        lifecycle.start(config, tmp_path, study=lambda config, directory: {"x": 1.0}, resume=True)
    lifecycle.start(config, tmp_path, study=lambda config, directory: {"x": 1.0}, resume=True)


def test_a_directory_without_published_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    for name, place in (("cct_cifar10", "nope"), ("cct_cifar10", "empty"), ("vit_fashion_mnist", "empty")):
        words = ("--data.path", tmp_path / place, "--out", tmp_path / "r")
        assert str(tmp_path / place) in error_line("train", name, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_second_reproduction_is_told_of_the_first(tmp_path):
    directory = tmp_path / "smoke" / "bptt_unbiasedness" / "seed0"
    directory.mkdir(parents=True)
    with directory_lock(directory):
        message = error_line("reproduce", "bptt_unbiasedness", "--scale", "smoke", "--root", tmp_path)
    assert str(directory) in message and "--out" not in message


def test_resume_starts_run_without_saved_config(tmp_path):
    (tmp_path / "figures").mkdir()  # killed before it said what it is
    config = catalog.load_experiment("date_luong").smoke()
    lifecycle.start(config, tmp_path, study=lambda config, directory: {"x": 1.0}, resume=True)
    assert run_directory.read_config(tmp_path) == config
    with pytest.raises(InputError, match="it must be new or empty, and has"):  # of runs, but none
        lifecycle.start(config, tmp_path.parent, study=None, resume=True)


def test_resume_refuses_foreign_checkpoints(tmp_path):
    config = configs.Config("x", configs.Corpus(tsv_file=str(tmp_path / "absent.tsv")), configs.LuongSeq2seqConfig())
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="absent.tsv"):
        lifecycle.start(config, tmp_path / "runs" / "x" / "001")
    assert not list((tmp_path / "runs").iterdir())
    (tmp_path / "runs" / "x" / "001" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="must be new or empty, and has checkpoints"):
        lifecycle.start(config, tmp_path / "runs" / "x" / "001")


def test_a_damaged_checkpoint_is_never_loaded(run, tmp_path):
    shutil.copytree(run, tmp_path / "c")
    for path in (tmp_path / "c" / "checkpoints").rglob("*"):
        if path.is_file() and "ocdbt" in str(path):
            path.write_bytes(path.read_bytes()[:20])
    longer = ("--resume", "--out", tmp_path / "c", "--train.total-epochs", "3")
    assert "checkpoint" in error_line("train", "date_luong", *longer)


def parameters(directory: Path) -> dict:
    """The final parameters by name."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore((directory / "final").absolute())
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


@pytest.mark.slow
@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGKILL", -9)])
def test_interrupted_and_resumed_ends_in_the_same_parameters(tmp_path, run, name, code):
    """The process is stopped somewhere in its second epoch; the run then goes on with --resume."""
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        "train",
        "date_luong",
        *TINY,
        "--train.total-epochs",
        "2",
        "--out",
        str(tmp_path / "b"),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert any(line.startswith("epoch 1") for line in process.stdout)
        process.send_signal(getattr(signal, name))
        _, stderr = process.communicate(timeout=300)
    if process.returncode != 0:  # it may have been faster than the signal
        assert process.returncode == code, stderr
        assert not (tmp_path / "b" / "result.json").exists()
        resumed = launch_here("train", "date_luong", "--resume", "--out", tmp_path / "b")
        assert resumed.returncode == 0, resumed.stderr
    params, expected = parameters(tmp_path / "b"), parameters(run)
    assert params.keys() == expected.keys() and all((params[k] == expected[k]).all() for k in params)


@pytest.mark.parametrize(
    ("decorator", "message"), [("", "@pytree"), ("@pytree\n", "give its arguments in parentheses")]
)
def test_incomplete_custom_score_leaves_no_directory(tmp_path, monkeypatch, decorator, message):
    name = f"lacking{len(decorator)}"
    (tmp_path / f"{name}.py").write_text(
        "from dataclasses import dataclass\n"
        "from attention_jax import pytree\n"
        "from attention_jax.ops.scores import Score\n"
        f"{decorator}@dataclass(frozen=True)\n"
        "class Mine(Score):\n"
        f"    scale: float{'' if decorator else ' = 1.0'}\n"
        "    def __call__(self, query, key):\n"
        "        return query @ key.T * self.scale\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "run"
    result = launch_here("train", "date_luong", *TINY, "--model.score", f"{name}:Mine", "--out", out)
    *_, last = result.stderr.splitlines()  # the data may be prepared before
    assert result.returncode == 2 and last.startswith("error: --model.score ") and message in last
    assert "Traceback" not in result.stderr and not out.exists()

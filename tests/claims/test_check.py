"""`reproduce --check`: what it runs in a given time, what it holds against the record, and what makes it red."""

import dataclasses
import json

import pytest
from toy_experiment import CONFIG, toy as toy_experiment

from attention_jax import catalog, config as configs
from attention_jax.claims import check, record
from attention_jax.cli import command_options, commands
from attention_jax.declarations import Claim, Quantity, Threshold
from attention_jax.errors import Diverged, InputError

ENVIRONMENT = {"machine": "a board, 1 CPU", "processor": "abacus", "devices": ["cpu: cpu"], "jax": "0.1"}
CLAIM = Claim(text="the number", metric="test.number", published=1.0, source="hand")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Makes an experiment whose study finds 10 + its seed, with recorded runs {(variant, seed): (number, seconds)}."""
    monkeypatch.setattr(check, "ROOT", tmp_path / "runs")

    def make(name, numbers, chapter="kernels", command="", **fields):
        for (variant, seed), (number, seconds) in numbers.items():
            run = {"variant": variant, "seed": seed, "metrics": {"test.number": number}, "history": []}
            words = f"python launch.py reproduce {name} {command}".strip()
            run |= {"seconds": seconds, "command": words, "environment": ENVIRONMENT}
            record.record_run(name, run, tmp_path / "results")
        defaults = {
            "name": name, "doc": f"A toy.\n\nChapter: {chapter}\n", "claims": (CLAIM,),
            "variants": lambda: {variant: CONFIG for variant, _ in numbers},
            "study": lambda config, directory: {"test.number": 10.0 + config.train.seed},
        }  # fmt: skip
        return toy_experiment(tmp_path / "results", **defaults | fields)

    return make


def run_check(*experiments, minutes=1.0, override=lambda config, words: config, local_data=""):
    return check.check(experiments, minutes, override, local_data)


def report(tmp_path):
    return json.loads((tmp_path / "runs" / "check" / "001" / "check.json").read_text())


def test_agreement_returns_zero_and_keeps_the_record(toy, tmp_path, capsys):
    experiment = toy("toy", {("", 0): (10.1, 2.0)})
    recorded_bytes = (tmp_path / "results" / "toy.json").read_bytes()
    assert run_check(experiment) == 0
    output = capsys.readouterr().out
    assert "1 of 1: toy seed 0, about 2 s" in output and "1 OK; 0 the same to the last bit; 1 runs in" in output
    assert "recorded on: abacus, a board, 1 CPU, cpu: cpu, jax 0.1 (another machine or version" in output
    assert (tmp_path / "results" / "toy.json").read_bytes() == recorded_bytes
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["toy.json"]
    [entry], [run] = report(tmp_path)["numbers"], report(tmp_path)["runs"]
    assert (entry["recorded"], entry["here"], run["environment"]["recorded"]) == (10.1, 10.0, ENVIRONMENT)


def test_wrong_recorded_number_returns_one_with_what_was_expected(toy, tmp_path, capsys):
    """A metric that no claim reads, recorded half as large again."""
    study = lambda config, directory: {"test.number": 10.0, "test.other": 2.0}
    experiment = toy("toy", {("", 0): (10.0, 2.0)}, study=study)
    [run] = record.load_recorded_runs("toy", experiment.results)
    record.record_run("toy", run | {"metrics": {"test.number": 10.0, "test.other": 3.0}}, experiment.results)
    assert run_check(experiment) == 1
    output = capsys.readouterr().out
    assert "1 OK, 1 differs; 1 the same to the last bit" in output and "2.937-3.063 (+-2 %)" in output
    verdicts = {entry["metric"]: entry["verdict"] for entry in report(tmp_path)["numbers"]}
    assert verdicts == {"test.number": "OK", "test.other": "differs"}


def test_seeds_say_how_much_may_differ(toy, tmp_path):
    numbers = {("a", 0): (10.0, 1.0), ("a", 1): (11.5, 1.0), ("a", 2): (12.5, 1.0), ("b", 0): (9.0, 4.0)}
    assert run_check(toy("several", numbers)) == 1
    entries = {(entry["variant"], entry["seed"]): entry for entry in report(tmp_path)["numbers"]}
    assert [key for key, entry in entries.items() if entry["verdict"] == "differs"] == [("b", 0)]
    assert entries["a", 0]["expected"]["why"] == "3 seeds"


def test_a_time_is_shown_and_not_judged(toy, capsys):
    timed = toy("toy", {("", 0): (500.0, 2.0)}, times=("test.num",))
    assert run_check(timed) == 0 and "1 a time" in capsys.readouterr().out


def test_a_run_that_diverges_differs(toy, capsys):
    def study(config, directory):
        raise Diverged(7, float("nan"))

    assert run_check(toy("toy", {("", 0): (10.0, 2.0)}, study=study)) == 1
    output = capsys.readouterr().out
    assert "1 differs" in output and "diverged: the loss was nan at step 7" in output


def test_claimed_epochs_are_compared_too(toy):
    history = [{"epoch": 1, "test.number": 4.0}, {"epoch": 2, "test.number": 10.0}]
    experiment = toy("toy", {("", 0): (10.0, 2.0)}, claims=(dataclasses.replace(CLAIM, epoch=1),))
    [run] = record.load_recorded_runs("toy", experiment.results)
    names = [quantity.text for quantity in check.quantities_of(experiment, run | {"history": history})]
    assert names == ["test.number", "test.number, epoch 1"]


def test_commands_are_repeated_with_the_recorded_seed_and_the_present_variant(toy, tmp_path):
    """The run of a former name; what a command says of variant and seed gives way to the record."""
    commands, command = [], "--variant 'the old' --seeds 1 --train.seed 7"
    override = lambda config, words: commands.append(words) or configs.replace(config, **{"train.seed": 7})
    names = {"variants": lambda: {"new": CONFIG}, "former_variants": {"the old": "new"}}
    assert run_check(toy("toy", {("the old", 3): (13.0, 2.0)}, command=command, **names), override=override) == 0
    assert report(tmp_path)["runs"][0]["run"] == "toy new seed 3" and report(tmp_path)["numbers"][0]["here"] == 13.0
    assert commands == [["toy", "--seeds", "1", "--train.seed", "7"]]


def test_chapters_come_before_experiments_variants_and_seeds(toy):
    """Of a variant the latest seed comes first, of an experiment what a claim names."""
    every = {"claims": tuple(dataclasses.replace(CLAIM, variant=variant) for variant in ("", "a", "b"))}
    experiments = [
        toy("dear", {("", 0): (10.0, 9.0)}, **every),
        toy("cheap", {("a", 3): (10.0, 4.0), ("b", 0): (10.0, 5.0)}, **every),
        toy("memory", {("", 0): (10.0, 20.0), ("", 1): (10.0, 90.0)}, "memory"),
    ]
    reruns = [rerun for experiment in experiments for rerun in check.find_reruns(experiment, "", {})]
    names = lambda seconds: [rerun.name for rerun in check.plan_runs(reruns, seconds / 60, {})]
    assert names(1000) == ["cheap a seed 3", "memory seed 1", "dear seed 0", "cheap b seed 0", "memory seed 0"]
    assert names(14) == ["cheap a seed 3", "dear seed 0"], "every seed of memory is expected to take 20 s"
    with pytest.raises(InputError, match="--minutes 0.01 is too short .* cheapest here, cheap a seed 3, takes 4 s"):
        names(0.6)
    unclaimed = toy("some", {("", 0): (10.0, 4.0), ("", 100): (110.0, 7.0), ("unclaimed", 200): (210.0, 1.0)})
    assert [rerun.run["seed"] for rerun in check.find_reruns(unclaimed, "", {})] == [100, 0, 200]


def test_no_run_starts_without_time_left(toy, monkeypatch, capsys):
    clock = iter([0.0, 70.0, 70.0])
    monkeypatch.setattr(check.time, "monotonic", lambda: next(clock))
    assert run_check(toy("one", {("", 0): (10.0, 2.0)}), toy("two", {("", 0): (10.0, 3.0)})) == 0
    assert "skipped, no time was left: two seed 0" in capsys.readouterr().out


def test_an_interrupt_keeps_what_has_ended(toy, tmp_path, capsys):
    def study(config, directory):
        raise KeyboardInterrupt

    ended, stopped = toy("ended", {("", 0): (10.0, 1.0)}), toy("stopped", {("", 0): (10.0, 2.0)}, study=study)
    assert run_check(ended, stopped) == 130
    assert "1 the same to the last bit; 1 runs in 0.0 minutes; interrupted" in capsys.readouterr().out
    assert [run["run"] for run in report(tmp_path)["runs"]] == ["ended seed 0"]


def test_data_are_found_by_name_or_skipped(toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "cache"))
    (tmp_path / "data" / "date").mkdir(parents=True)
    (tmp_path / "data" / "date" / "date.txt.gz").touch()
    commands = []
    override = lambda config, words: commands.append(words) or config
    present = toy("there", {("", 0): (10.0, 1.0)}, command="--data.path date.txt.gz")
    absent = toy("absent", {("", 0): (10.0, 1.0)}, command="--data.path other.txt.gz")
    assert run_check(present, absent, override=override, local_data=str(tmp_path / "data")) == 0
    assert commands == [["there", "--data.path", str(tmp_path / "data" / "date" / "date.txt.gz")]]
    assert "skipped, needs other.txt.gz: --local-data DIR, a directory that has it: absent" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"there is none \(absent: needs other.txt.gz: --local-data DIR"):
        run_check(absent)
    with pytest.raises(InputError, match="--local-data must be a directory"):
        run_check(absent, local_data=str(tmp_path / "absent"))
    downloaded = configs.replace(CONFIG, data=configs.FraEng())
    for words, reason in (["--data.path", "fra-eng.zip"], "needs fra-eng.zip"), ([], "needs a download of fra_eng"):
        with pytest.raises(InputError, match=reason):
            check.resolve_data_paths(downloaded, words, "")
    (tmp_path / "cache" / "fra_eng" / "d2l").mkdir(parents=True)
    assert check.resolve_data_paths(downloaded, ["x", "--data.path", "fra-eng.zip"], "") == ["x"]


def test_check_repeats_ones_own_experiment_with_recorded_options(toy, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from attention_jax.config import Config, Dates, LuongSeq2seqConfig\n"
        "config = lambda: Config('mine', Dates(), LuongSeq2seqConfig())\n"
        "study = lambda config, directory: {'test.number': float(config.train.batch_size)}\n"
    )
    toy("mine", {("", 0): (7.0, 1.0)}, command="--train.batch-size 7")
    with pytest.raises(SystemExit) as stop:
        commands.reproduce([str(tmp_path / "mine.py"), "--check", "--minutes", "1"])
    assert stop.value.code == 0 and report(tmp_path)["numbers"][0]["here"] == 7.0
    for words in ("--scale smoke", "--seeds 2", "--variant x", "--root x", "--train.batch-size 8", "--minutes 0"):
        with pytest.raises(InputError, match=f"leave {words.split()[0]}.* out|--minutes must be a positive number"):
            commands.reproduce([str(tmp_path / "mine.py"), "--check", *words.split()])
    with pytest.raises(InputError, match="belong to --check"):
        commands.reproduce(["--minutes", "3"])


@pytest.mark.slow
def test_every_recorded_command_is_understood_today():
    """Commands that differ in their seed alone are parsed once."""
    gone, parsed = set(), set()
    for experiment in map(catalog.load_experiment, catalog.experiment_names()):
        variants = experiment.variants()
        for run in record.present_runs(experiment):
            if run["variant"] not in variants:
                gone.add((experiment.name, run["variant"]))
                continue
            words = check.command_words(run)
            command = (run["variant"], *(word for word in words if not word.isdigit()))
            if command not in parsed:
                assert command_options.parse_known(command_options.Reproduce, words)[0].names == (experiment.name,)
                commands.override_config(variants[run["variant"]], words)
            parsed.add(command)
    assert gone == {("vit_fashion_mnist_small", "resnet"), ("vit_fashion_mnist_small", "vit")}
    assert len(parsed) > 200


def run(value, seed=0, metric="test.bleu", **fields):
    return {"variant": "", "seed": seed, "metrics": {metric: value}, "history": [], "steps": 5} | fields


def test_what_is_expected_says_where_it_comes_from(toy):
    """A computed error is rounding up to a tenth of its threshold, that of a training is not."""
    experiment = toy("toy", {}, thresholds=(Threshold(text="", metric="gap", source="", at_most=1e-3),))
    tolerance = lambda metric, *runs: check.tolerance_interval(
        experiment, Quantity(text=metric, metric=metric, source=""), runs, runs[0]
    )
    assert tolerance("test.bleu", run(20.0))[2] == "+-5 %"
    assert tolerance("test.bleu", run(20.0), run(22.0, 1)) == pytest.approx((18.98, 22.02, "2 seeds, +-5 %"))
    with_bootstrap = run(20.0, metrics={"test.bleu": 20.0, "test.bleu_low": 18.0, "test.bleu_high": 21.5})
    assert tolerance("test.bleu", with_bootstrap) == pytest.approx((17.98, 21.52, "bootstrap"))
    low, high, why = tolerance("test.accuracy", run(0.9, metric="test.accuracy", facts={"test_images": 1000}))
    assert (low, high) == pytest.approx((0.8799 - 0.0009, 0.9171 + 0.0009), abs=1e-4) and why == "1,000 examples"
    trained = run(1e-7, metric="gap")
    computed = {key: value for key, value in trained.items() if key != "steps"}
    assert tolerance("gap", computed)[1] == pytest.approx(1e-4, rel=0.001) and tolerance("gap", trained)[1] < 1.1e-7

"""`reproduce --check`: what it runs in a given time, what it holds against the record, and what makes it red."""

import dataclasses
import json
from pathlib import Path

import pytest

from attention_jax import config as configs
from attention_jax.claims import catalog, check, claim_tables, record
from attention_jax.claims.catalog import Experiment
from attention_jax.claims.claim import Claim, Quantity, Threshold
from attention_jax.claims.record import LocalSettings, resolve_data_paths
from attention_jax.cli import command_options, commands
from attention_jax.errors import Diverged, InputError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = configs.Config("toy", configs.Dates(), configs.LuongSeq2seqConfig())
ENVIRONMENT = {"machine": "a board, 1 CPU", "processor": "abacus", "devices": ["cpu: cpu"], "jax": "0.1"}
CLAIM = Claim(text="the number", metric="test.number", published=1.0, source="hand")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Makes an experiment whose study finds 10 + its seed, with recorded runs {(variant, seed): (number, seconds)}."""
    monkeypatch.setattr(check, "ROOT", tmp_path / "runs")

    def make(name, numbers, chapter="kernels", claims=(CLAIM,), command="", **changes):
        experiment = Experiment(
            name=name, doc=f"A toy.\n\nChapter: {chapter}\n", config=lambda: CONFIG, smoke=lambda: CONFIG,
            variants=lambda: {variant: CONFIG for variant, _ in numbers}, presets=dict, sweep=dict,
            study=lambda config, directory: {"test.number": 10.0 + config.train.seed}, attention_maps=None, figure=None,
            claims=claims, seeds=1, results=tmp_path / "results", facts={},
        )  # fmt: skip
        for (variant, seed), (number, seconds) in numbers.items():
            run = {"variant": variant, "seed": seed, "metrics": {"test.number": number}, "history": []}
            words = f"python launch.py reproduce {name} {command}".strip()
            run |= {"seconds": seconds, "command": words, "environment": ENVIRONMENT}
            record.record_run(name, run, experiment.results)
        return dataclasses.replace(experiment, **changes)

    return make


def run_check(experiments, minutes=1.0, override=lambda config, words: config, **local_settings):
    return check.check(experiments, minutes, override, LocalSettings(**local_settings))


def report(tmp_path):
    return json.loads((tmp_path / "runs" / "check" / "001" / "check.json").read_text())


def test_agreement_returns_zero_and_keeps_the_record(toy, tmp_path, capsys):
    toy = toy("toy", {("", 0): (10.1, 2.0)})
    recorded_bytes = (tmp_path / "results" / "toy.json").read_bytes()
    assert run_check([toy]) == 0
    output = capsys.readouterr().out
    assert "1 of 1: toy seed 0, about 2 s" in output and "1 OK; 0 the same to the last bit; 1 runs in" in output
    assert "recorded on: abacus, a board, 1 CPU, cpu: cpu, jax 0.1 (another machine or version" in output
    assert (tmp_path / "results" / "toy.json").read_bytes() == recorded_bytes
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["toy.json"]
    check_json = report(tmp_path)
    assert check_json["numbers"][0]["recorded"] == 10.1 and check_json["numbers"][0]["here"] == 10.0
    assert check_json["runs"][0]["environment"]["recorded"]["processor"] == "abacus"
    assert "processor" in check_json["runs"][0]["environment"]["here"]


def test_checks_elsewhere_are_counted_and_their_differences_listed(toy, tmp_path):
    run_check([toy("toy", {("", 0): (10.5, 2.0), ("", 1): (11.0, 2.0)})])
    check_json = {**report(tmp_path), "runs": [{"environment": {"here": ENVIRONMENT}}]}
    counts, differences = claim_tables.check_tables([check_json])
    where = "abacus, a board, 1 CPU, cpu: cpu, jax 0.1"
    assert counts.rows == [(where, "1", "2", "1", "1")]
    assert differences.rows == [(where, "toy", "test.number", "0", "10.5", "10")]


def test_wrong_recorded_number_returns_one_every_time(toy, tmp_path, capsys):
    wrong = toy("toy", {("", 0): (10.5, 2.0)})
    assert run_check([wrong]) == 1
    output = capsys.readouterr().out
    assert "1 differs" in output and "10.28-10.72 (+-2 %)" in output, "what was expected, and why"
    assert report(tmp_path)["numbers"][0]["verdict"] == "differs"
    right = toy("toy", {("", 0): (10.0, 2.0)})
    assert run_check([right]) == 0 and (tmp_path / "runs" / "check" / "002" / "toy" / "seed0" / "result.json").exists()


def test_seeds_say_how_much_may_differ(toy, tmp_path):
    numbers = {("a", 0): (10.0, 1.0), ("a", 1): (11.5, 1.0), ("a", 2): (12.5, 1.0), ("b", 0): (9.0, 4.0)}
    assert run_check([toy("several", numbers)]) == 1
    numbers_by_run = {(number["variant"], number["seed"]): number for number in report(tmp_path)["numbers"]}
    assert {key: number["verdict"] for key, number in numbers_by_run.items() if key[0] == "a"} == {
        ("a", 0): "OK", ("a", 1): "OK", ("a", 2): "OK",
    }  # fmt: skip
    assert numbers_by_run["a", 0]["expected"]["why"] == "3 seeds" and numbers_by_run["b", 0]["verdict"] == "differs"


def test_every_recorded_metric_is_compared(toy, tmp_path, capsys):
    """A metric that no claim reads, recorded half as large again: the run differs."""
    study = lambda config, directory: {"test.number": 10.0, "test.other": 2.0}
    experiment = toy("toy", {("", 0): (10.0, 2.0)}, study=study)
    [run] = record.load_recorded_runs("toy", experiment.results)
    record.record_run("toy", run | {"metrics": {"test.number": 10.0, "test.other": 3.0}}, experiment.results)
    assert run_check([experiment]) == 1
    assert {number["metric"]: number["verdict"] for number in report(tmp_path)["numbers"]} == {
        "test.number": "OK", "test.other": "differs",
    }  # fmt: skip
    assert "test.other" in capsys.readouterr().out


def test_claimed_epochs_are_compared_too(toy, tmp_path):
    history = [{"epoch": 1, "test.number": 4.0}, {"epoch": 2, "test.number": 10.0}]
    claim = dataclasses.replace(CLAIM, epoch=1)
    experiment = toy("toy", {("", 0): (10.0, 2.0)}, claims=(claim,))
    [run] = record.load_recorded_runs("toy", experiment.results)
    names = [quantity.text for quantity in check.quantities_of(experiment, run | {"history": history})]
    assert names == ["test.number", "test.number, epoch 1"]


def test_claimed_variants_and_latest_seeds_are_repeated_first(toy, capsys):
    numbers = {("", 0): (10.0, 4.0), ("", 100): (110.0, 7.0), ("unclaimed", 200): (210.0, 1.0)}
    experiment = toy("toy", numbers)
    names = [(run["variant"], run["seed"]) for run in check.order_by_claims(experiment)]
    assert names == [("", 100), ("", 0), ("unclaimed", 200)]


def test_run_of_former_name_is_repeated_with_its_present_configuration(toy, tmp_path):
    experiment = toy("toy", {("old", 3): (13.0, 2.0)}, variants=lambda: {"new": CONFIG}, former_variants={"old": "new"})
    assert run_check([experiment]) == 0 and report(tmp_path)["runs"][0]["run"] == "toy new seed 3"


def test_recorded_seed_overrides_the_command(toy, tmp_path, capsys):
    toy = toy("toy", {("", 3): (13.0, 2.0)}, command="--train.seed 7")
    assert run_check([toy], override=lambda config, words: configs.replace(config, **{"train.seed": 7})) == 0
    assert report(tmp_path)["numbers"][0]["here"] == 13.0


def test_a_time_is_shown_and_not_judged(toy, capsys):
    timed = toy("toy", {("", 0): (500.0, 2.0)}, times=("test.num",))
    assert run_check([timed]) == 0 and "1 a time" in capsys.readouterr().out


def test_a_run_that_diverges_differs(toy, capsys):
    def study(config, directory):
        raise Diverged(7, float("nan"))

    assert run_check([toy("toy", {("", 0): (10.0, 2.0)}, study=study)]) == 1
    output = capsys.readouterr().out
    assert "1 differs" in output and "toy seed 0: the loss was nan at step 7" in output


def test_chapters_come_before_experiments_variants_and_seeds(toy):
    kernels = toy("dear", {("", 0): (10.0, 9.0)}), toy("cheap", {("a", 3): (10.0, 4.0), ("b", 0): (10.0, 5.0)})
    memory = toy("memory", {("", 0): (10.0, 20.0), ("", 1): (10.0, 90.0)}, "memory")
    any_variant = (CLAIM, *(dataclasses.replace(CLAIM, variant=variant) for variant in "ab"))
    kernels = [dataclasses.replace(experiment, claims=any_variant) for experiment in kernels]
    able = [
        again
        for experiment in (*kernels, memory)
        for again in check.find_reruns(experiment, LocalSettings(), check.Outcome(None))
    ]
    names = lambda seconds: [again.name for again in check.choose_runs(able, seconds)]
    assert names(1000) == ["cheap a seed 3", "memory seed 1", "dear seed 0", "cheap b seed 0", "memory seed 0"]
    assert names(14) == ["cheap a seed 3", "dear seed 0"], "every seed of memory is expected to take 20 s"
    assert names(0.5) == []


def test_no_run_starts_without_time_left(toy, monkeypatch, capsys):
    clock = iter([0.0, 0.0, 70.0, 70.0])
    monkeypatch.setattr(check.time, "monotonic", lambda: next(clock))
    assert run_check([toy("one", {("", 0): (10.0, 2.0)}), toy("two", {("", 0): (10.0, 3.0)})]) == 0
    assert "skipped, no time was left: two seed 0" in capsys.readouterr().out


def test_what_cannot_be_run_is_one_line(toy, tmp_path):
    toy_run = toy("one", {("", 0): (10.0, 90.0)})
    with pytest.raises(
        InputError, match="--minutes 1 is too short for any run; the cheapest here, one seed 0, takes 90 s"
    ):
        run_check([toy_run])
    with pytest.raises(InputError, match=r"there is none \(two: needs date.txt.gz: --local-data DIR"):
        run_check([toy("two", {("", 0): (10.0, 1.0)}, command="--data.path date.txt.gz")])
    with pytest.raises(InputError, match="--local-data must be a directory"):
        run_check([toy_run], local_data=str(tmp_path / "absent"))


def test_data_are_found_by_name_or_skipped(toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "cache"))
    (tmp_path / "data" / "date").mkdir(parents=True)
    (tmp_path / "data" / "date" / "date.txt.gz").touch()
    commands = []
    override = lambda config, words: commands.append(words) or config
    present = toy("there", {("", 0): (10.0, 1.0)}, command="--data.path date.txt.gz")
    absent = toy("absent", {("", 0): (10.0, 1.0)}, command="--data.path other.txt.gz")
    assert run_check([present, absent], override=override, local_data=str(tmp_path / "data")) == 0
    assert commands == [["there", "--data.path", str(tmp_path / "data" / "date" / "date.txt.gz")]]
    assert "skipped, needs other.txt.gz: --local-data DIR, a directory that has it: absent" in capsys.readouterr().out
    options = ("--data.path", "mine.txt")
    assert run_check([absent], override=override, options=options) == 0 and commands[-1] == ["absent", *options]
    published = configs.replace(CONFIG, data=configs.FraEng())
    with pytest.raises(InputError, match="needs fra-eng.zip"):
        resolve_data_paths(published, ["x", "--data.path", "fra-eng.zip"], LocalSettings())
    with pytest.raises(InputError, match="needs a download of fra_eng"):
        resolve_data_paths(published, ["x"], LocalSettings())
    (tmp_path / "cache" / "fra_eng" / "d2l").mkdir(parents=True)
    assert resolve_data_paths(published, ["x", "--data.path", "fra-eng.zip"], LocalSettings()) == ["x"]


def test_an_interrupt_keeps_what_has_ended(toy, tmp_path, capsys):
    def study(config, directory):
        raise KeyboardInterrupt

    ended, stopped = toy("ended", {("", 0): (10.0, 1.0)}), toy("stopped", {("", 0): (10.0, 2.0)}, study=study)
    assert run_check([ended, stopped]) == 130
    assert (
        "1 OK; 1 the same to the last bit; 1 runs in 0.0 minutes, expected 0.0; interrupted" in capsys.readouterr().out
    )
    assert [run["run"] for run in report(tmp_path)["runs"]] == ["ended seed 0"]


def test_recorded_command_drops_variant(toy):
    toy, commands = toy("toy", {("two words", 0): (10.1, 2.0)}, command="--variant 'two words' --seeds 1"), []
    claim = dataclasses.replace(CLAIM, variant="two words")
    toy = dataclasses.replace(toy, claims=(claim,))
    run_check([toy], override=lambda config, words: commands.append(words) or config)
    assert commands == [["toy", "--seeds", "1"]]


@pytest.mark.slow
def test_every_recorded_command_is_understood_today():
    """Commands that differ in their seed alone are parsed once."""
    gone, parsed = set(), set()
    for name in catalog.experiment_names():
        experiment = catalog.load_experiment(name)
        variants = experiment.variants()
        for run in record.present_names(experiment, record.load_recorded_runs(name)):
            if run["variant"] not in variants:
                gone.add((name, run["variant"]))
                continue
            config = variants[run["variant"]]
            words = record.command_words(run)
            command = (run["variant"], *(word for word in words if not word.isdigit()))
            if command not in parsed:
                request, options = command_options.parse_known(command_options.Reproduce, words)
                assert request.names == (name,)
                command_options.parse_with_config(command_options.Reproduce, words, lambda _, config=config: config)
            parsed.add(command)
    assert gone == {("vit_fashion_mnist_small", "resnet"), ("vit_fashion_mnist_small", "vit")}
    assert len(parsed) > 200


def test_check_repeats_ones_own_experiment_with_recorded_options(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "ROOT", tmp_path / "runs")
    (tmp_path / "mine.py").write_text(
        "from attention_jax.config import Config, Dates, LuongSeq2seqConfig\n"
        "config = lambda: Config('mine', Dates(), LuongSeq2seqConfig())\n"
        "study = lambda config, directory: {'test.number': float(config.train.batch_size)}\n"
    )
    words = "python launch.py reproduce mine --train.batch-size 7"
    run = {"variant": "", "seed": 0, "metrics": {"test.number": 7.0}, "history": [], "seconds": 1.0, "command": words}
    record.record_run("mine", run | {"environment": ENVIRONMENT}, tmp_path / "results")
    reproduce = commands.reproduce
    with pytest.raises(SystemExit) as stop:
        reproduce([str(tmp_path / "mine.py"), "--check", "--minutes", "1"])
    assert stop.value.code == 0 and report(tmp_path)["numbers"][0]["here"] == 7.0
    with pytest.raises(SystemExit) as stop:
        reproduce([str(tmp_path / "mine.py"), "--check", "--train.batch-size", "8"])
    assert stop.value.code == 1, "an option of the command line takes the place of a recorded one"
    for words in (["--scale", "smoke"], ["--seeds", "2"], ["--variant", "x"], ["--root", "x"], ["--minutes", "0"]):
        with pytest.raises(InputError, match=f"leave {words[0]} out|--minutes must be a positive number"):
            reproduce(["--check", *words])
    with pytest.raises(InputError, match="belong to --check"):
        reproduce(["--minutes", "3"])


def run(value, seed=0, **fields):
    return {"variant": "", "seed": seed, "metrics": {"test.bleu": value}, "history": [], "steps": 5} | fields


def test_what_is_expected_says_where_it_comes_from(toy):
    experiment = toy("toy", {})
    tolerance = lambda metric, *runs: check.tolerance_interval(
        experiment, Quantity(text=metric, metric=metric, source=""), runs, runs[0]
    )
    assert tolerance("test.bleu", run(20.0))[2] == "+-5 %"
    assert tolerance("test.bleu", run(20.0), run(22.0, 1)) == pytest.approx((18.98, 22.02, "2 seeds, +-5 %"))
    with_bootstrap = run(20.0, metrics={"test.bleu": 20.0, "test.bleu_low": 18.0, "test.bleu_high": 21.5})
    assert tolerance("test.bleu", with_bootstrap) == pytest.approx((17.98, 21.52, "bootstrap"))
    counted = run(0.0, metrics={"test.accuracy": 0.9}, facts={"test_images": 1000})
    low, high, why = tolerance("test.accuracy", counted)
    assert (low, high) == pytest.approx((0.8799 - 0.0009, 0.9171 + 0.0009), abs=1e-4) and why == "1,000 examples"


def test_computed_errors_are_rounding_up_to_a_tenth_of_their_bound(toy):
    bound = Threshold(text="", metric="gap", source="", at_most=1e-3)
    experiment, gap = toy("toy", {}, thresholds=(bound,)), Quantity(text="", metric="gap", source="")
    computed = {"variant": "", "seed": 0, "metrics": {"gap": 1e-7}, "history": []}
    assert check.tolerance_interval(experiment, gap, [computed], computed)[1] == pytest.approx(1e-4, rel=0.001)
    trained = computed | {"steps": 5}
    assert check.tolerance_interval(experiment, gap, [trained], trained)[1] < 1.1e-7, "a training does not round"

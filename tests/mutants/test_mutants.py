"""The mutants fit the code, and `run.py` tells a fault that a test sees from one that none sees."""

import json
from collections import Counter

import pytest
from mutants import run
from mutants.mutant import Mutant, apply_mutant, check_tests

EVERY = [mutant for its in run.MUTANTS.values() for mutant in its]
TOY = {
    "clock.py": "def hours(minutes):\n    return minutes // 60\n\n\ndef minutes(hours):\n    return hours * 60\n",
    "test_clock.py": "import clock\n\n\ndef test_hours():\n    assert clock.hours(59) == 0\n",
}
SEEN = Mutant("rounded-up", "clock.py", "minutes // 60", "-(-minutes // 60)", ("test_clock.py",))
UNSEEN = Mutant("decimal-hours", "clock.py", "hours * 60", "hours * 100", ("test_clock.py::test_hours",))


def test_there_are_enough_mutants_of_every_package():
    assert len(EVERY) >= 66 and min(map(len, run.MUTANTS.values())) >= 6
    assert [name for name, count in Counter(mutant.name for mutant in EVERY).items() if count > 1] == []


@pytest.mark.parametrize("package", run.MUTANTS)
def test_every_mutant_fits_the_code_and_has_its_tests(package):
    """Where this fails the code has moved: repair the mutant's text."""
    for mutant in run.MUTANTS[package]:
        apply_mutant(run.ROOT, mutant)
        check_tests(run.ROOT, mutant)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins import JAX
    root = tmp_path / "toy"
    root.mkdir()
    for name, text in TOY.items():
        (root / name).write_text(text)
    return root


def test_a_mutant_is_killed_by_the_test_that_sees_it_and_only_then(toy, tmp_path, capfd):
    """Four processes of pytest without JAX; the second command runs none, because the file has all results."""
    words = ["--out", str(tmp_path / "results.json")]
    assert run.main(words, {"toy": (SEEN, UNSEEN)}, toy) == 1
    problems = json.loads((tmp_path / "results.json").read_text())
    tiers = {name: {tier: result["killed"] for tier, result in tiers.items()} for name, tiers in problems.items()}
    assert tiers == {
        "rounded-up": {"default": "test_clock.py::test_hours"},
        "decimal-hours": {"default": None, "slow": None},
    }
    assert {path.name: path.read_text() for path in toy.glob("*.py")} == TOY  # the checkout stays as it is
    assert "survived: decimal-hours" in capfd.readouterr().out
    assert run.main(words, {"toy": (SEEN, UNSEEN)}, toy) == 1
    assert "killed by" not in capfd.readouterr().out
    assert run.main([*words, "rounded-up"], {"toy": (SEEN, UNSEEN)}, toy) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SEEN._replace(old="minutes // 24"), "the code has moved"),
        (SEEN._replace(old="minutes"), "has 3 times"),
        (SEEN._replace(new="minutes  // 60"), "changes nothing"),
        (SEEN._replace(tests=("test_watch.py",)), "no test file"),
        (SEEN._replace(tests=("test_clock.py::test_days",)), "has no test test_days"),
    ],
)
def test_a_mutant_that_does_not_fit_is_an_error(toy, capfd, wrong, message):
    assert run.main([], {"toy": (wrong,)}, toy) == 2
    assert message in capfd.readouterr().err


def test_a_test_that_fails_without_the_mutant_is_an_error(toy, capfd):
    """Two processes of pytest."""
    (toy / "test_clock.py").write_text(TOY["test_clock.py"].replace("== 0", "== 7"))
    assert run.main(["--tier", "default"], {"toy": (SEEN,)}, toy) == 2
    assert "fails without the mutant, too" in capfd.readouterr().err

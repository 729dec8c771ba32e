"""No bound leaves the record: each one that was ever committed is a claim today, or stands among the withdrawn."""

import subprocess
from pathlib import Path

import pytest
from claim_history import Entry, History, claims_in, entries

from attention_jax import catalogue

ROOT = Path(__file__).resolve().parents[1]


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def history() -> History:
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs the whole history of the repository: this is a shallow clone, or no clone")
    return History(ROOT)


@pytest.fixture(scope="module")
def kept() -> dict[Entry, object]:
    """The entries of all experiments' CLAIMS and WITHDRAWN."""
    found = {}
    for name in catalogue.names():
        experiment = catalogue.load_experiment(name)
        for bound in (*experiment.withdrawn, *experiment.claims):
            found |= {entry: bound for entry in entries(name, lambda field, b=bound: getattr(b, field, None))}
    return found


def test_every_bound_that_was_ever_committed_is_a_claim_or_withdrawn(history, kept):
    lost = sorted(str(entry) for entry in history.first if entry not in kept)
    assert not lost, "these left the record: put them into WITHDRAWN, with the reason"


def test_the_day_of_a_bound_is_that_of_its_first_commit(history, kept):
    wrong = [f"{entry}: since {bound.since}, committed {history.day(entry)}" for entry, bound in kept.items()
             if history.day(entry) not in (None, bound.since)]  # fmt: skip
    assert not wrong


def test_a_bound_that_came_after_a_result_says_so(history, kept):
    silent = [
        str(entry)
        for entry, bound in kept.items()
        if history.after_result(entry) and not getattr(bound, "after", "withdrawn")
    ]
    assert not silent, "a result was there when these were committed: say which in `after`"


def test_a_bound_of_any_age_can_be_read():
    source = (
        "from attention_jax import runs\nfrom attention_jax.config import Claim, Dates, replace\n"
        "def variants(): return {name: replace(Dates(), x=1) for name in 'ab'}\n"
        "CLAIMS = tuple(Claim(n, 'test.loss', None, 'ours', variant=n, at_most=1.0, beaten=0.5) for n in variants())"
    )
    [first, second] = claims_in(source, "old")
    assert list(entries("old", second.fields.get)) == [
        Entry("old", ("test.loss", "b", (), None, None, False, 0, 0), bounds=(None, 1.0)),
        Entry("old", ("test.loss", "b", (), None, None, False, 0, 0), bar=0.5),
    ]

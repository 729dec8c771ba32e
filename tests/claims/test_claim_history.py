"""No bound leaves the record: each one that was ever committed is a claim today, or stands among the withdrawn."""

import subprocess
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from claim_history import Entry, History, claims_in, entries

from attention_jax.claims import catalog, record
from attention_jax.claims.judged import judge_claims
from attention_jax.claims.verdicts import judge
from attention_jax.files import read_json

ROOT = Path(__file__).resolve().parents[2]


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def history() -> History:
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs the whole history of the repository: this is a shallow clone, or no clone")
    return History(ROOT)


def entries_of(name: str, bound) -> list[Entry]:
    return list(entries(name, lambda field: getattr(bound, field, None)))


@pytest.fixture(scope="module")
def bounds_by_entry() -> dict[Entry, object]:
    """The entries of all experiments' CLAIMS and PLANS, and of experiments/withdrawn.json."""
    bounds = {}
    for name in catalog.experiment_names():
        experiment = catalog.load_experiment(name)
        for bound in (*experiment.withdrawn, *experiment.plans, *experiment.claims):
            bounds |= dict.fromkeys(entries_of(name, bound), bound)
    return bounds


@pytest.fixture(scope="module")
def former_entry() -> dict[Entry, Entry]:
    """A bound as it is today, and as it was committed first where its variant had another name then."""
    entries = {}
    for name in catalog.experiment_names():
        for bound in catalog.load_experiment(name).withdrawn:
            entries |= dict(zip(entries_of(name, bound.on_record), entries_of(name, bound), strict=True))
    return entries


def test_every_committed_bound_is_claim_or_withdrawn(history, bounds_by_entry):
    lost = sorted(str(entry) for entry in history.first if entry not in bounds_by_entry)
    assert not lost, "these left the record: put them into experiments/withdrawn.json, with the reason"


def test_bound_is_dated_by_its_first_commit(history, bounds_by_entry, former_entry):
    day = lambda entry: min(
        filter(None, (history.day(entry), history.day(former_entry.get(entry, entry)))), default=None
    )
    wrong = [
        f"{e}: since {bound.since}, not {day(e)}"
        for e, bound in bounds_by_entry.items()
        if day(e) not in (None, bound.since)
    ]
    assert not wrong


def test_bound_set_after_a_result_says_so(history, bounds_by_entry, former_entry):
    late = [entry for entry in bounds_by_entry if history.after_result(former_entry.get(entry, entry))]
    silent = [str(entry) for entry in late if not getattr(bounds_by_entry[entry], "after", "withdrawn")]
    assert not silent, "a result was there when these were committed: say which in `after`"


def test_deciding_spread_set_after_result_says_so(history):
    silent = []
    for name in catalog.experiment_names():
        experiment = catalog.load_experiment(name)
        for row in judge_claims(experiment) if any(claim.spread for claim in experiment.claims) else ():
            claim, without = row.claim, replace(row.claim, spread=None)
            if claim.has_bounds and judge(without, row.runs) != judge(claim, row.runs):
                [entry] = entries_of(name, claim)
                if history.after_result(entry, claim.spread) and not claim.after:
                    silent.append(f"{name}: {claim.text}: {claim.spread}")
    assert not silent, "a result was there when these ranges of the source were committed: say which in `after`"


def test_replaced_published_number_stays_in_the_record(history):
    same = lambda a, b: abs(a - b) <= 0.02 * abs(b)
    lost = []
    for name in catalog.experiment_names():
        experiment = catalog.load_experiment(name)
        number = lambda bound: (bound.metric, bound.variant, bound.minus, bound.epoch, bound.best)
        for claim in experiment.claims:
            withdrawn_numbers = [b.published for b in experiment.withdrawn if number(b) == number(claim)]
            for entry in entries_of(name, claim) if claim.published is not None else ():
                for old in history.published.get(entry, ()):
                    if not same(old, claim.published) and not (claim.after and old in withdrawn_numbers):
                        lost.append(f"{name}: {claim.text}: {old}, now {claim.published}")
    assert not lost, "say in `after` which results were known, and keep the old number in withdrawn.json"


RECLASSIFIED = {  # claims (experiment, metric, variant) whose kind was changed; docs/replication.md says why
    ("table3_parameters", "difference.C: d 256", ""): "same protocol",
    ("table3_parameters", "difference.C: d 1024", ""): "same protocol",
    ("table3_parameters", "difference.big", ""): "same protocol",
    ("multi30k_ende_tiny", "test.bleu", ""): "same protocol",
    ("induction_heads", "valid.loss_less_bigram", "two layers"): "exact",
    ("induction_heads", "valid.loss_less_unigram", "one layer"): "exact",
    ("induction_heads", "valid.loss_less_unigram", "two layers"): "exact",
    ("in_context_regression", "linear.error_over_exact", ""): "exact",
    ("in_context_regression", "linear.matrix_from_identity", ""): "exact",
    ("influence_balancing", "loss.truncation_1", ""): "exact",
    ("influence_balancing", "loss.truncation_10", ""): "exact",
    ("influence_balancing", "loss.truncation_100", ""): "exact",
    ("influence_balancing", "loss.forward_mode", ""): "exact",
    ("time_machine_gru", "valid.perplexity", "d2l"): "same protocol",
    ("time_machine_transformer", "valid.perplexity", ""): "other protocol",
    ("vit_fashion_mnist", "test.accuracy", ""): "same protocol",
    ("time_machine_lstm", "valid.perplexity", ""): "same protocol",
    ("time_machine_rnn", "valid.perplexity", ""): "same protocol",
    ("time_machine_truncation", "valid.perplexity", "full"): "same protocol",
}  # with the former kind


def test_no_kind_changes_silently(history):
    """The kind limits the verdicts: a claim keeps the one it was committed with, registered or not."""
    changed = []
    for name in catalog.experiment_names():
        for claim in catalog.load_experiment(name).claims:
            former = {kind for entry in entries_of(name, claim) for kind in history.kinds.get(entry, ())}
            declared_kind = RECLASSIFIED.get((name, claim.metric, claim.variant))
            changed += [f"{name}: {claim.text}: {kind}" for kind in former - {claim.kind, declared_kind}]
    assert not changed, "these kinds are not the committed ones: add a claim, or say why in docs/replication.md"


@pytest.mark.parametrize("path", record.REGISTRATIONS, ids=lambda path: path.stem)
def test_registered_claims_are_those_of_the_frozen_commit(history, path):
    """Published number and spread decide a verdict, too; entries have the metric and the bounds."""
    frozen = read_json(path)["commit"]
    for name, variants in groupby(sorted(record.load_registered_seeds(path)), key=lambda row: row[0]):
        then = {e: c.fields for c in history.claims_at(frozen, name) for e in entries(name, c.fields.get)}
        registered = {variant for _, variant in variants}
        for claim in catalog.load_experiment(name).claims:
            if not claim.has_bounds or claim.variant not in registered:
                continue
            [entry] = entries_of(name, claim)
            assert entry in then, "bounds are frozen"
            spread = then[entry].get("spread")
            assert claim.spread == (spread and tuple(spread)) and claim.published == then[entry]["published"]


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


def test_imported_claim_function_is_read_at_its_commit():
    other_source = (
        "from attention_jax.config import Claim\ndef of(bound): return Claim('', 'test.loss', None, '', at_most=bound)"
    )
    source = "from experiments.other import of\nCLAIMS = (of(1.0),)"
    assert claims_in(source, "mine") == []
    [claim] = claims_in(source, "mine", read_source={"other": other_source}.get)
    assert claim.fields["at_most"] == 1.0

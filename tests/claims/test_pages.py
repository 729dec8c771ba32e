"""The record's tables leave nothing out, and the replication is judged where it is complete."""

import dataclasses

import pytest
from toy_experiment import toy

from attention_jax.claims import claim_tables, pages
from attention_jax.claims.experiment_page import experiment_page
from attention_jax.claims.judged import judge_claims
from attention_jax.config import Claim, Grid, Withdrawn

CLAIM = Claim("the error", "test.error", 1.0, "table 1", kind="other protocol", differs="half the data", at_most=2.0)
ORDER = Claim("a - b", "test.error", None, "table 2", kind="order", variant="", minus="b", at_most=0.0)


def run(value, seed=0, variant=""):
    return {
        "variant": variant,
        "seed": seed,
        "metrics": {"test.error": value},
        "history": [],
        "environment": {"commit": "c"},
    }


@pytest.fixture
def experiment(tmp_path):
    return toy(tmp_path, doc="It works.\n\nChapter: kernels", claims=(CLAIM, ORDER))


def test_each_claim_line_has_kind_bound_and_value(experiment):
    [first, second] = claim_tables.claims_table(judge_claims(experiment, [run(1.5)], {}), sources=True).rows
    assert first[:5] == ("toy", "the error", "other protocol", "<= 2", "1")
    assert first[5:9] == ("1.5", "-", "1.5", "worse") and first[9] == "table 1; differs: half the data"
    assert second[3:9] == ("<= 0", "-", "-", "-", "-", "not run")


def test_nth_best_seed_is_shown_next_to_median(experiment):
    counted = dataclasses.replace(CLAIM, seeds_needed=1)
    toy = dataclasses.replace(experiment, claims=(counted,))
    [line] = claim_tables.claims_table(judge_claims(toy, [run(1.5), run(9.0, 1), run(8.0, 2)], {})).rows
    assert line[5] == "8 (1.5-9, 3 seeds)" and line[7] == "1.5 (rank 1 of 3)" and line[8] == "worse"


ROWS = {("toy", ""): frozenset({100, 101}), ("toy", "b"): frozenset({100, 101})}


def test_replication_decides_once_all_registered_seeds_ran(experiment):
    runs = [run(1.5), run(5.0, 100)]
    claim, _ = judge_claims(experiment, runs, ROWS)
    assert not claim.replication_decides and claim.verdict == "worse" and claim.verdicts_agree is None
    claim, _ = judge_claims(experiment, [*runs, run(7.0, 101)], ROWS)
    assert claim.replication_decides and claim.verdict == "missed" and claim.verdicts_agree is False
    [line] = claim_tables.replication_table([claim]).rows
    assert line[4:] == ("1.5", "6 (5-7, 2 seeds)", "worse", "missed", "changed")
    line = claim_tables.survival_line([claim])
    assert "1 of 1 registered" in line and "0 keep" in line and "1 change it: worse to missed (1)." in line
    assert claim_tables.claims_table([claim]).rows[0][5:8] == ("1.5", "6 (5-7, 2 seeds)", "6")


def test_number_equal_for_all_seeds_counts_apart(experiment):
    claim, _ = judge_claims(experiment, [run(1.5), run(1.5, 100), run(1.5, 101)], ROWS)
    line = claim_tables.survival_line([claim])
    assert "1 of 1 registered claims so far. 1 of them" in line and "the other 0, 0 keep" in line
    assert claim_tables.replication_table([claim]).rows == [], "its verdict was kept"


def test_agreeing_fresh_seeds_change_the_verdict(experiment):
    claim, _ = judge_claims(experiment, [run(9.0), run(1.5, 100), run(1.5, 101)], ROWS)
    assert claim.verdicts_agree is False and "1 change it: missed to worse (1)." in claim_tables.survival_line([claim])


def test_unregistered_seed_is_neither_original_nor_replication(experiment):
    runs = [run(1.5), run(1.5, 100), run(1.5, 101), run(9.0, 102)]
    claim, _ = judge_claims(experiment, runs, ROWS)
    assert [run["seed"] for run in claim.original] == [0] and claim.verdicts_agree is True
    sibling = ROWS | {("toy", "c"): frozenset({100, 101, 102})}
    claim, _ = judge_claims(experiment, runs, sibling)
    assert [run["seed"] for run in claim.replication] == [100, 101] and claim.verdict == "worse"


def test_deciding_seed_is_listed_next_to_the_median(experiment):
    counted = dataclasses.replace(experiment, claims=(dataclasses.replace(CLAIM, seeds_needed=1),))
    [claim] = judge_claims(counted, [run(9.0), run(1.5, 100), run(7.0, 101)], ROWS)
    assert claim_tables.replication_table([claim]).rows[0][5] == "4.25 (1.5-7, 2 seeds); judged: 1.5 (rank 1 of 2)"
    assert "4.25 (1.5-7, 2 seeds); judged: 1.5 (rank 1 of 2) | worse" in pages.claims_markdown([claim])


def test_measurement_of_difference_takes_all_fresh_seeds(experiment):
    measured = Claim("a - b", "test.error", None, "s", kind="measurement", variant="c", minus="")
    toy = dataclasses.replace(experiment, claims=(measured, CLAIM))
    runs = [run(1.0, 100), run(3.0, 100, "c"), run(9.0)]
    difference, bounded = judge_claims(toy, runs, ROWS)
    assert difference.verdict == "measured" and claim_tables.claims_table([difference]).rows[0][5:8] == ("-", "2", "2")
    assert not bounded.replication_decides, "one of its two registered seeds is missing"


def test_first_run_neither_keeps_nor_changes_a_verdict(experiment):
    claim, _ = judge_claims(experiment, [run(1.0, 100), run(1.5, 101)], ROWS)
    assert (
        claim.is_replicated
        and claim.verdicts_agree is None
        and claim_tables.replication_table([claim]).rows[0][-1] == "first run"
    )
    assert "1 had no original run" in claim_tables.survival_line([claim])


def test_a_difference_is_replicated_where_both_variants_are(experiment):
    fresh = [run(1.0, 100), run(2.0, 101), run(3.0, 100, "b")]
    _, order = judge_claims(experiment, fresh, ROWS)
    assert not order.replication_decides
    _, order = judge_claims(experiment, [*fresh, run(3.0, 101, "b")], ROWS)
    assert order.replication_decides and order.verdict == "holds"


@pytest.mark.parametrize(
    "seeds, ran, decides",
    [
        (({100}, {100, 101}), {100}, False),  # the second variant has a registered seed that has not been run
        (({100}, {100, 101}), {100, 101}, True),
        (({100, 101}, {100}), {100, 101}, True),
        (({100, 101}, set()), {100, 101}, False),
    ],
)
def test_difference_needs_registered_seeds_of_both_variants(experiment, seeds, ran, decides):
    registered = {("toy", name): frozenset(variant_seeds) for name, variant_seeds in zip(("", "b"), seeds)}
    runs = [
        run(1.0, seed, name)
        for name, variant_seeds in zip(("", "b"), seeds)
        for seed in variant_seeds or ran
        if seed in ran
    ]
    _, order = judge_claims(experiment, runs, registered)
    assert order.replication_decides == decides and order.is_registered == bool(seeds[1])


def test_counts_by_kind_sum_to_all_claims(experiment):
    rows = judge_claims(experiment, [run(1.5), run(9.0, variant="b")], {})
    table = claim_tables.counts_table(rows)
    assert table.columns == ("kind", "worse", "holds")
    assert table.rows == [("other protocol", "1", "0"), ("order", "0", "1"), ("all", "1", "1")]
    late = dataclasses.replace(rows[0], claim=dataclasses.replace(CLAIM, after="the runs"))
    assert claim_tables.caveats_line([late, rows[1]]) == (
        "Of 2 judged claims, 2 are met, 0 undecided and 0 missed. Caveats: bound set after a result (1)."
    )


OLD = Withdrawn(
    "error",
    "test.error",
    1.0,
    "table 1",
    variant="was",
    today="b",
    at_most=2.0,
    bar=0.5,
    since="2026-01-01",
    until="2026-01-02",
    reason="it was wrong",
)


@pytest.mark.parametrize(
    "value, state", [(1.5, "met, bar not met"), (0.4, "met, bar met"), (3.0, "missed, bar not met")]
)
def test_a_withdrawn_bound_is_compared_with_current_results(experiment, value, state):
    old = dataclasses.replace(experiment, withdrawn=(OLD,))
    [(bound, _, current_state)] = claim_tables.judge_withdrawn(old, [run(value, variant="b")], {})
    assert bound is OLD and current_state == state
    assert claim_tables.judge_withdrawn(old, [run(value, variant="was")], {}) == [(OLD, "-", "not run")]
    [line] = claim_tables.withdrawal_table(claim_tables.judge_withdrawn(old, [run(value, variant="b")], {})).rows
    assert line[1] == "<= 2, bar <= 0.5" and line[3] == "2026-01-01 to 2026-01-02" and line[-1] == "it was wrong"


def test_withdrawn_bound_is_compared_with_complete_replication(experiment):
    old = dataclasses.replace(experiment, withdrawn=(OLD,))
    runs = [run(1.0, seed, "b") for seed in (0, 1, 2)] + [run(3.0, 100, "b")]
    assert [states[1:] for states in claim_tables.judge_withdrawn(old, runs, ROWS)] == [("1", "met, bar not met")]
    runs.append(run(5.0, 101, "b"))
    assert [states[1:] for states in claim_tables.judge_withdrawn(old, runs, ROWS)] == [("4", "missed, bar not met")]


def test_withdrawn_bar_is_compared_with_deciding_runs(experiment):
    bar = dataclasses.replace(OLD, at_most=None)
    runs = [run(1.0, variant="b"), run(0.25, 100, "b")]
    old = dataclasses.replace(experiment, withdrawn=(bar,))
    assert [states[1:] for states in claim_tables.judge_withdrawn(old, runs, ROWS)] == [("1", "bar not met")]
    runs.append(run(0.25, 101, "b"))
    assert [states[1:] for states in claim_tables.judge_withdrawn(old, runs, ROWS)] == [("0.25", "bar met")]


def test_experiment_page_has_the_verdicts_of_the_record(experiment):
    runs = [run(1.5), run(5.0, 100), run(7.0, 101)]
    page = experiment_page(experiment, judge_claims(experiment, runs, ROWS), {})
    assert "missed: the error; ours 6 (5-7, 2 seeds)" in " ".join(page.split())


def test_page_has_all_claims_withdrawn_bounds_and_grids(experiment):
    old = Withdrawn(
        "old error", "test.error", None, "s", at_most=1.0, since="2026-01-01", until="2026-01-02", reason="why"
    )
    grid = Grid("Errors", {"error": "test.error"}, ("", "b"))
    full = dataclasses.replace(experiment, withdrawn=(old,), grids=(grid,))
    runs = [run(1.5), run(0.25, variant="b")]
    page = pages.page_of(full, judge_claims(full, runs, {}), runs)
    for text in ("# toy", "It works.", "the error", "a - b", "old error", "missed", "why", "| b | 0.25 |"):
        assert text in page


def test_run_without_the_number_completes_no_replication(experiment):
    without = run(None, 101) | {"metrics": {"test.loss": 1.0}}
    claim, _ = judge_claims(experiment, [run(1.5), run(5.0, 100), without], ROWS)
    assert not claim.replication_decides and claim.verdict == "worse"


@pytest.mark.parametrize("ran", [(100,), (101,), ()])
def test_complete_replication_never_falls_back_to_original_runs(experiment, ran):
    fresh = [run(9.0, seed) for seed in ran]
    unfinished, _ = judge_claims(experiment, [run(1.5), *fresh], ROWS)
    assert unfinished.verdict == "worse", "before the registered runs are complete the original ones decide"
    finished, _ = judge_claims(experiment, [run(1.5), *fresh], ROWS, finished_variants={("toy", "")})
    assert finished.verdict == "not run" and not finished.is_replicated
    assert claim_tables.replication_table([finished]).rows == []

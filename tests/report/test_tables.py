"""Verdicts decided by hand, and tables that hide nothing."""

import io
from math import hypot

import numpy as np
import pytest

from attention_jax.config import Claim
from attention_jax.report.intervals import wilson
from attention_jax.report.tables import (
    Table,
    claims_table,
    experiments_list,
    interval,
    judge,
    markdown,
    ours,
    plain,
    show,
    worded,
)


def run(value, variant="", seed=0, metric="test.bleu", history=()):
    return {"variant": variant, "seed": seed, "metrics": {metric: value}, "history": list(history)}


def claim(**options):
    return Claim(
        **{"text": "a claim", "metric": "test.bleu", "published": 39.0, "source": "a paper, table 1"} | options
    )


@pytest.mark.parametrize(
    "bounds, value, verdict",
    [
        ({"at_least": 38.0, "beaten": 39.5}, 39.5, "beaten"),
        ({"at_least": 38.0, "beaten": 39.5}, 38.0, "reproduced"),
        ({"at_least": 38.0, "beaten": 39.5}, 37.99, "missed"),
        ({"at_least": 38.0}, float("nan"), "missed"),
        ({"at_least": 26.0, "at_most": 30.0}, 31.0, "missed"),
        ({"at_least": 26.0, "at_most": 30.0, "beaten": 30.5}, 31.0, "beaten"),
        ({}, 3.0, "reported"),
    ],
)
def test_verdicts_upward(bounds, value, verdict):
    assert judge(claim(**bounds), [run(value)])[1] == verdict


@pytest.mark.parametrize(
    "bounds, value, verdict",
    [
        ({"at_most": 1.55, "beaten": 1.39}, 1.3, "beaten"),
        ({"at_most": 1.55, "beaten": 1.39}, 1.5, "reproduced"),
        ({"at_most": 1.55, "beaten": 1.39}, 1.6, "missed"),
        ({"at_least": 2.4, "at_most": 2.7, "beaten": 2.3}, 2.5, "reproduced"),
        ({"at_least": 2.4, "at_most": 2.7, "beaten": 2.3}, 2.2, "beaten"),
    ],
)
def test_verdicts_downward(bounds, value, verdict):
    assert judge(claim(metric="valid.loss", **bounds), [run(value, metric="valid.loss")])[1] == verdict


@pytest.mark.parametrize("needed, value", [(1, 1.0), (2, 2.0), (3, 9.0)])
def test_the_nth_best_seed_is_judged_where_the_claim_counts_seeds(needed, value):
    runs = [
        {"variant": "", "seed": i, "metrics": {"test.error": x}, "history": []} for i, x in enumerate((2.0, 9.0, 1.0))
    ]
    claim = Claim("", "test.error", None, "", at_most=2.5, seeds_needed=needed)
    assert judge(claim, runs) == (value, "reproduced" if value <= 2.5 else "missed")
    assert judge(claim, runs[: needed - 1])[1] == "not run"


@pytest.mark.parametrize(
    ("errors", "value"), [((3.0, np.nan, 0.5, 0.6), 0.6), ((np.nan, 3.0, 0.5), 3.0), ((np.nan, 0.5, np.nan), np.nan)]
)
def test_a_seed_that_has_no_number_is_the_worst(errors, value):
    runs = [{"variant": "", "seed": i, "metrics": {"test.error": x}, "history": []} for i, x in enumerate(errors)]
    found, verdict = judge(Claim("", "test.error", None, "", at_most=2.5, seeds_needed=2), runs)
    np.testing.assert_equal(found, value)
    assert verdict == ("reproduced" if value <= 2.5 else "missed")


def test_the_median_over_seeds_is_judged():
    runs = [run(10.0, seed=0), run(39.0, seed=1), run(39.2, seed=2)]
    assert judge(claim(at_least=38.0), runs) == (39.0, "reproduced")


def test_only_the_variant_counts():
    runs = [run(10.0), run(39.0, variant="feeding")]
    assert judge(claim(at_least=38.0, variant="feeding"), runs) == (39.0, "reproduced")
    assert judge(claim(at_least=38.0), runs) == (10.0, "missed")
    assert judge(claim(at_least=38.0, variant="none"), runs) == (None, "not run")


def test_an_order_is_judged_by_differences_of_the_same_seed():
    runs = [
        run(10.0, seed=0),
        run(30.0, seed=1),
        run(12.0, "feeding", seed=0),
        run(31.0, "feeding", seed=1),
        run(9.0, "feeding", seed=2),
    ]
    assert judge(claim(variant="feeding", minus="", at_least=0.0), runs) == (1.5, "reproduced")
    assert judge(claim(variant="", minus="feeding", at_least=0.0), runs) == (-1.5, "missed")
    assert judge(claim(variant="feeding", minus="", at_most=0.0), runs) == (1.5, "missed")
    assert judge(claim(variant="feeding", minus="none", at_least=0.0), runs) == (None, "not run")


def test_epoch_and_best_come_from_the_history():
    history = [{"epoch": 1, "valid.loss": 3.0, "test.bleu": 1.0}, {"epoch": 2, "valid.loss": 1.5}]
    history += [{"epoch": 3, "valid.loss": 2.0, "test.bleu": 9.0}]
    runs = [{"variant": "", "seed": 0, "metrics": {"valid.loss": 2.0}, "history": history}]
    assert judge(claim(metric="valid.loss", best=True), runs)[0] == 1.5
    assert (
        judge(claim(metric="valid.loss", best=True, at_least=1.0, at_most=2.0), runs)[0] == 1.5
    )  # a loss, whatever its bounds
    assert judge(claim(metric="test.bleu", best=True), runs)[0] == 9.0
    assert judge(claim(metric="test.bleu", epoch=1), runs)[0] == 1.0
    assert judge(claim(metric="test.bleu", epoch=2), runs) == (None, "not run")
    assert judge(claim(metric="valid.loss"), runs)[0] == 2.0


def test_a_claim_of_several_numbers_is_judged_by_their_mean_within_an_interval_that_is_narrower():
    first = {"valid.bleu": 30.0, "valid.bleu_low": 27.0, "valid.bleu_high": 33.0}
    second = {"test.bleu": 36.0, "test.bleu_low": 32.0, "test.bleu_high": 40.0}
    runs = [run(30.0, metric="valid.bleu") | {"metrics": first | second}]
    both = claim(metric="valid.bleu", also=("test.bleu",), at_least=32.0)
    assert judge(both, runs) == (33.0, "reproduced")
    assert interval(both, runs) == (30.5, 35.5, "bootstrap"), "5 = hypot(3, 4) of the sum"
    assert judge(claim(metric="valid.bleu", also=("test_2017.bleu",)), runs) == (None, "not run")
    assert interval(claim(metric="valid.bleu", also=("valid.bleu_low",)), runs) is None, "one has no interval"


def test_the_claims_table_leaves_nothing_out():
    entries = [("one", [claim(at_least=38.0)], [run(1.0)]), ("two", [claim(text="another")], [])]
    table = claims_table(entries)
    assert table.rows == [
        ("one", "a claim", "1", "39", "missed", "a paper, table 1"),
        ("two", "another", "-", "39", "not run", "a paper, table 1"),
    ]
    for text in (plain(table), markdown(table)):
        assert "missed" in text and "not run" in text
    assert len(plain(table).splitlines()) == 3


def trained(value, seed=0, metric="test.bleu", **metrics):
    found = run(value, seed=seed, metric=metric) | {"steps": 5, "facts": {"test_images": 10_000}}
    return found | {"metrics": found["metrics"] | metrics}


BOOTSTRAP = {"test.bleu_low": 37.5, "test.bleu_high": 40.0}


@pytest.mark.parametrize(
    "bounds, value, words",
    [
        ({"at_least": 39.0}, 38.7, "missed (one seed, within noise)"),
        ({"at_least": 41.0}, 38.7, "missed (one seed)"),
        ({"at_least": 38.0}, 38.7, "reproduced (one seed, within noise)"),
        ({"at_least": 37.0}, 38.7, "reproduced (one seed)"),
        ({"at_least": 37.0, "beaten": 38.0}, 38.7, "beaten (one seed, within noise)"),
        ({"at_least": 37.0, "beaten": 39.0}, 38.7, "reproduced (one seed)"),
        ({}, 38.7, "reported"),
    ],
)
def test_doubts_are_said_and_change_no_verdict(bounds, value, words):
    runs = [trained(value, **BOOTSTRAP)]
    assert worded(claim(**bounds), runs) == words and judge(claim(**bounds), runs)[1] == words.partition(" ")[0]
    assert ours(claim(**bounds), runs) == "38.7 (37.5-40, bootstrap)"


def test_a_computation_has_no_seeds_to_speak_of_and_several_seeds_may_disagree():
    assert worded(claim(at_least=38.0), [run(39.0)]) == "reproduced" and ours(claim(), [run(39.0)]) == "39"
    seeds = [trained(37.0), trained(39.0, 1), trained(40.0, 2)]
    assert worded(claim(at_least=38.0), seeds) == "reproduced (seeds disagree)"
    assert worded(claim(at_least=39.5), seeds) == "missed (seeds disagree)"
    assert worded(claim(at_least=37.0), seeds) == "reproduced" and ours(claim(), seeds) == "39 (37-40, 3 seeds)"
    assert worded(claim(at_least=38.0, seeds_needed=2), seeds) == "reproduced", "how many have to is in the claim"


def test_a_share_of_counted_examples_has_an_interval_and_so_has_a_difference_of_two():
    accuracy = claim(metric="test.accuracy", at_least=0.92)
    runs = [trained(0.9196, metric="test.accuracy")]
    assert ours(accuracy, runs) == "0.9196 (0.9141-0.9248, 10,000 examples)"
    assert worded(accuracy, runs) == "missed (one seed, within noise)"
    runs.append(trained(0.9196, metric="test.accuracy") | {"variant": "other"})
    low, high = wilson(0.9196, 10_000)
    half = hypot(0.9196 - low, high - 0.9196)
    assert interval(claim(metric="test.accuracy", variant="other", minus=""), runs)[:2] == pytest.approx((-half, half))
    loss = trained(0.5, metric="test.loss")
    assert ours(claim(metric="test.loss"), [loss]) == "0.5", "a loss is no share"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_show_is_plain_in_a_pipe_drawn_on_a_terminal_and_markdown_where_asked(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    table = Table("Experiments", ("name", "claim"), [("x", "[bold]a\nb")])
    pipe, terminal, page = io.StringIO(), Terminal(), Terminal()
    show(table, stream=pipe)
    show(table, stream=terminal)
    show(table, as_markdown=True, stream=page)
    assert pipe.getvalue() == f"Experiments\n{plain(table)}\n" and "[bold]a b" in pipe.getvalue()
    assert page.getvalue() == f"## Experiments\n\n{markdown(table)}\n"
    assert "[bold]a" in terminal.getvalue() and "\x1b" in terminal.getvalue()  # text is never taken for markup


def test_plain_table_without_rows():
    assert plain(Table("", ("a", "b"), [])) == "a  b"


def test_the_list_of_experiments_is_grouped_and_every_line_is_short():
    entries = [("late", "two", "b " * 99), ("early", "one", "An\nodd  claim."), ("lost", "", "c")]
    lines = experiments_list(entries, ("one", "two", "three"), width=40).splitlines()
    assert lines[:3] == ["one", "  early  An odd claim.", ""]
    assert [line for line in lines if not line.startswith("  ") and line] == ["one", "two", "others"]
    assert max(map(len, lines)) <= 40 and lines[4].endswith(" ...")

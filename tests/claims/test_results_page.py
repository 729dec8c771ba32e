"""Findings, README's table and the figure of published numbers follow the verdicts."""

import dataclasses

import pytest
from toy_experiment import toy

from attention_jax.claims import findings, published, results_page
from attention_jax.claims.judged import judge_claims
from attention_jax.config import Claim
from attention_jax.errors import InputError

SAME = Claim("accuracy", "test.accuracy", 0.8, "table 1", kind="same protocol", spread=(0.78, 0.82), at_least=0.75)
AGAIN = dataclasses.replace(SAME, text="accuracy, corrected", variant="c")
LOSS = Claim("loss", "test.loss", 2.0, "table 2", kind="other protocol", differs="half the data", at_most=3.0)
ENTRY = {"title": "it misses", "experiment": "toy", "claims": ["accuracy"], "cause": "c", "settles": "s"}
MENDED = ENTRY | {"corrected": ["accuracy, corrected"]}


def run(accuracy, loss=2.0, seed=0, variant=""):
    metrics = {"test.accuracy": accuracy, "test.loss": loss}
    fields = {"history": [], "steps": 9, "environment": {"commit": "c"}}
    return {"variant": variant, "seed": seed, "metrics": metrics} | fields


@pytest.fixture
def experiment(tmp_path):
    return toy(tmp_path, doc="It works.\n\nChapter: kernels", claims=(SAME, AGAIN, LOSS))


@pytest.mark.parametrize(
    "entry, corrected, status",
    [
        (ENTRY, (), "missed"),
        (ENTRY | {"contradicts": True}, (), "contradicts the source"),
        (MENDED, (), "mended, not yet run"),
        (MENDED, (0.81, 0.8, 0.79), "mended and now met"),
        (MENDED, (0.6, 0.61, 0.62), "mended and still missed"),
        (MENDED, (0.6, 0.8, 0.9), "mended, undecided"),
    ],
)
def test_finding_status_follows_the_corrected_runs(experiment, entry, corrected, status):
    runs = [run(0.6)] + [run(value, seed=seed, variant="c") for seed, value in enumerate(corrected)]
    rows = judge_claims(experiment, runs, {})
    [finding] = findings.load_findings(rows, [entry])
    assert finding.status == status and findings.claims_without_finding(rows, [finding]) == []
    assert [row.claim for row in finding.claims] == ([SAME] if "corrected" in entry else [SAME, AGAIN])
    assert finding.representative.claim == (AGAIN if corrected else SAME)


def test_finding_without_former_claims_shows_the_corrected_claim(experiment):
    rows = judge_claims(experiment, [run(0.6)], {})
    [finding] = findings.load_findings(rows, [MENDED | {"claims": []}])
    assert finding.status == "mended, not yet run" and finding.representative.claim == AGAIN
    assert results_page.finding_line(finding)[2].startswith("-; ")


def test_unexplained_claims_are_named_unknown_prefixes_rejected(experiment):
    rows = judge_claims(experiment, [run(0.6)], {})
    assert [row.claim for row in findings.claims_without_finding(rows, [])] == [SAME]
    with pytest.raises(InputError, match="no claim of toy begins with 'precision'"):
        findings.load_findings(rows, [ENTRY | {"claims": ["precision"]}])


def test_readme_lists_reproduced_and_missed_systems(experiment):
    rows = lambda *runs: judge_claims(experiment, runs, {})
    assert results_page.systems(rows(run(0.8)), {"toy": "the toy"}) == ("the toy", "", "")
    assert results_page.systems(rows(run(0.6)), {}) == ("", "", "toy")
    disagreeing = rows(run(0.8), run(0.81, seed=1), run(0.6, seed=2))
    assert results_page.systems(disagreeing, {}) == ("", "toy", "")
    both = rows(run(0.6), run(0.8, variant="c"), run(0.79, seed=1, variant="c"))
    assert results_page.systems(both, {}) == ("", "", "toy (1 of 2 numbers)")
    assert results_page.systems(both, {"toy": ""}) == ("", "", "")


def test_readme_shows_the_first_claim_with_runs(experiment):
    entry = {"system": "toy", "source": "a paper", "experiment": "toy", "claims": ["accuracy, corrected", "accuracy"]}
    entry["former"] = "half the data"
    row_of_runs = lambda *runs: results_page.headline_table(judge_claims(experiment, runs, {}), [entry]).rows[0]
    assert row_of_runs(run(0.6))[2:] == ("0.8 (0.78-0.82)", "0.6", "half the data", "**no**")
    assert row_of_runs(run(0.6), run(0.8, variant="c"))[3:] == ("0.8", "same", "yes")


def test_figure_puts_better_right_with_both_ranges(experiment):
    runs = [run(0.8, loss, seed) for seed, loss in enumerate((2.0, 2.5, 4.0))]
    accuracy, loss = published.comparable_claims(judge_claims(experiment, runs, {}))
    assert published.agreement_row(accuracy)[1:] == (1.0, 1.0, 1.0, (0.78 / 0.8, 0.82 / 0.8), "reproduced")
    assert published.agreement_row(loss)[1:4] == (0.8, 1.0, 0.5), "a loss of 2.5 is worse than 2"


def test_the_figure_is_that_of_the_committed_results():
    from PIL import Image

    from attention_jax.claims.catalog import experiment_names, load_experiment
    from attention_jax.report import style

    panels = published.agreement_panels(
        [row for name in experiment_names() for row in judge_claims(load_experiment(name))]
    )
    stored = Image.open(published.FIGURE).text["Inputs"]
    assert stored == style.fingerprint([row for panel_rows, _ in panels.values() for row in panel_rows]), "make figures"


def test_clauses_are_left_out_at_commas_outside_parentheses():
    text = "theirs: N(0, 1), clip 5, METEOR; ours: none"
    assert results_page.shorten_clauses(text, most=24) == "theirs: N(0, 1), clip 5 ..."
    assert results_page.shorten_clauses("short, and whole") == "short, and whole"

"""The pages, README's table, the figure and the list follow the verdicts and leave nothing out."""

import dataclasses

import pytest
from toy_experiment import toy

from attention_jax.claims import claim_tables, pages
from attention_jax.claims.claim import Claim, Grid, Threshold
from attention_jax.claims.verdicts import judge_claims

ACCURACY = Claim(
    text="accuracy", metric="test.accuracy", source="d2l 9.10, table 1", published=0.8, runs=(0.79, 0.8, 0.81),
    headline="the accuracy", in_readme=True,
)  # fmt: skip
LOSS = Claim(
    text="loss", metric="test.loss", source="table 2", published=2.0, basis="code", differs="half the data; one more",
    cause="too short", headline="the loss",
)  # fmt: skip
ORDER = Claim(text="loss, large - small", metric="test.loss", source="figure 1", variant="large", minus="", sign=-1)
NOT_RUN = dataclasses.replace(ACCURACY, text="never run", variant="huge", registered=True, in_readme=False)
BOUND = Threshold(text="it is low", metric="test.loss", source="our aim", at_most=1.0)


def run(accuracy, loss, seed=0, variant=""):
    metrics = {"test.accuracy": accuracy, "test.loss": loss}
    return {"variant": variant, "seed": seed, "metrics": metrics, "history": [], "steps": 9, "seconds": 60.0}


RUNS = [run(0.8, 3.0, seed) for seed in range(8)] + [run(0.8, 4.0, seed, "large") for seed in range(3)]


@pytest.fixture
def experiment(tmp_path):
    claims, doc = (ACCURACY, LOSS, ORDER, NOT_RUN), "It works.\n\nChapter: kernels\nCommand: python launch.py x"
    return toy(tmp_path, doc=doc, claims=claims, thresholds=(BOUND,))


@pytest.fixture
def rows(experiment):
    return judge_claims(experiment, RUNS)


def test_every_claim_has_a_row_with_both_numbers_and_its_verdict(rows):
    assert claim_tables.claims_table(rows).rows == [
        ("accuracy", "0.8 (0.79-0.81, 3 runs)", "0.8 (equal for 8 runs)", "agree"),
        ("loss", "2", "3 (equal for 8 runs)", "differ"),
        ("loss, large - small", "less", "1 (equal for 3 runs)", "opposite"),
        ("never run", "0.8 (0.79-0.81, 3 runs)", "-", "not run"),
    ]
    recorded = {"toy": RUNS[:1]}
    assert claim_tables.claims_table(rows, recorded).rows[1] == ("loss", "2", "3", "3 (equal for 8 runs)", "differ")


def test_verdicts_are_counted_by_group(rows):
    table = claim_tables.counts_table(rows)
    assert table.columns == ("claims about", "agree", "differ", "opposite", "not run")
    assert table.rows == [
        ("numbers that a source prints", "1", "0", "0", "1"),
        ("our runs of a source's code", "0", "1", "0", "0"),
        ("orders", "0", "0", "1", "0"),
        ("all", "1", "1", "1", "1"),
    ]
    assert claim_tables.tally_line(rows) == (
        "Numbers: 1 agree, 1 differ, 0 undecided. Orders: 0 same sign, 1 opposite, 0 undecided."
    )
    assert claim_tables.status_text(rows) == "1 of 3 hold" and claim_tables.status_text(rows[3:]) == "not run"
    assert claim_tables.status_text([]) == "measured"


def test_page_opens_with_one_table_and_folds_the_rest(experiment, rows):
    grid = Grid("After training", {"loss": "test.loss"}, ("", "large"))
    (experiment.results / "toy.png").touch()
    (experiment.results / "toy-curves.png").touch()
    page = pages.page_of(dataclasses.replace(experiment, grids=(grid,)), rows, RUNS)
    opening, _, folded = page.partition("<details>")
    assert opening.index("results/toy.png") < opening.index("| accuracy |") and opening.count("| --- | ---") == 1
    assert "python launch.py x" in opening and folded.rstrip().endswith("</details>")
    assert "| it is low | <= 1 | 3 (equal for 8 runs) | not met |" in folded and "After training:" in folded
    assert "suspected cause: too short" in folded and "differs: half the data; one more" in folded
    assert "[curves](../../experiments/results/toy-curves.png)" in folded
    plain = pages.page_of(dataclasses.replace(experiment, claims=()), [], RUNS)
    assert plain.startswith("# It works\n")
    assert "| it is low |" in plain.partition("<details>")[0], "without claims the thresholds come first"


def test_page_opens_with_figure_of_the_claimed_number_or_none(experiment, rows):
    for name in ("toy-learning_curve.png", "toy-alignment.png"):
        (experiment.results / name).touch()
    image = "../../experiments/results/toy-alignment.png)"
    assert "![" not in pages.page_of(experiment, rows, RUNS)
    assert f"![toy]({image}" in pages.page_of(dataclasses.replace(experiment, claims=()), [], RUNS)
    (experiment.results / "toy.png").touch()
    page = pages.page_of(experiment, rows, RUNS)
    assert "![toy](../../experiments/results/toy.png)" in page and f"[alignment]({image}" in page


def test_grid_has_columns_of_text_before_its_numbers():
    texts = {"options": {"": "-", "large": "`--model.hidden-size 8`"}}
    table = claim_tables.grid_table(Grid("After training", {"loss": "test.loss"}, ("", "large"), texts=texts), RUNS)
    assert table.columns == ("variant", "options", "loss") and table.right == ("loss",)
    assert [row[:2] for row in table.rows] == [("-", "-"), ("large", "`--model.hidden-size 8`")]


def test_results_page_has_every_group_and_every_miss(experiment, rows):
    page = " ".join(pages.results_page([experiment], rows, {"toy": RUNS}).split())
    assert "[toy](results/toy.md): accuracy | 0.8 (0.79-0.81, 3 runs) | 0.8 (equal for 8 runs) | agree" in page
    assert "| differ | too short |" in page and "never run\\*" in page, "the star of a registered claim"
    assert "[toy](results/toy.md) 1 opposite." in page and "loss, large - small | less |" in page
    assert "Not met: 1 of [toy](results/toy.md)." in page


def test_readme_table_has_the_flagged_claims_alone(rows):
    lines = pages.readme_section(rows).splitlines()
    assert [line for line in lines if line.startswith("| [")] == [
        "| [the accuracy](docs/results/toy.md) | printed | 0.8 (0.79-0.81, 3 runs) | 0.8 (equal for 8 runs) | agree |"
    ]
    text = " ".join(lines)
    assert "numbers that a source prints: 1 of 1; curves that were decoded: 0 of 0; our runs" in text


def test_figure_has_headlines_with_losses_inverted(rows):
    accuracy, loss = pages.headline_rows(rows)
    assert (accuracy.name, accuracy.measured, accuracy.published) == (
        "the accuracy: 0.8, here 0.8",
        1.0,
        (0.9875, 1.0125),
    )
    assert (loss.measured, loss.low, loss.high, loss.verdict) == (0.6667, 0.6667, 0.6667, "differ")


def test_figure_of_the_headlines_is_drawn(rows, tmp_path):
    path = pages.agreement(pages.headline_rows(rows), tmp_path / "published.png")
    assert path.stat().st_size > 5_000


def test_d2l_table_is_sorted_by_section(rows):
    later = dataclasses.replace(rows[0], claim=dataclasses.replace(ACCURACY, source="d2l 10.2, layer"))
    assert [line[0] for line in pages.d2l_table([later, *rows]).rows] == ["9.10", "9.10", "10.2"]


def test_description_has_each_verdict(experiment, rows):
    text = claim_tables.experiment_page(experiment, rows, {"--data.path": "a file"})
    assert "differ: loss; ours 3 (equal for 8 runs); published 2 (table 2)" in text and "--data.path  a file" in text
    assert "no option for a file" in claim_tables.your_data("toy", {})

"""The pages, README's table, the figure and the list follow the verdicts and leave nothing out."""

import dataclasses

import pytest
from toy_experiment import toy

from attention_jax.claims import claim_tables, pages
from attention_jax.claims.verdicts import judge_claims
from attention_jax.config import Grid
from attention_jax.declarations import Claim, Threshold

ACCURACY = Claim(
    text="accuracy", metric="test.accuracy", source="d2l 9.10, table 1", published=0.8, runs=(0.79, 0.8, 0.81),
    headline="the accuracy", in_readme=True,
)  # fmt: skip
LOSS = Claim(
    text="loss", metric="test.loss", source="table 2", published=2.0, basis="code", differs="half the data; one more",
    cause="too short", headline="the loss",
)  # fmt: skip
ORDER = Claim(text="loss, large - small", metric="test.loss", source="figure 1", variant="large", minus="", sign=-1)
NOT_RUN = dataclasses.replace(ACCURACY, text="never run", headline="never run", variant="huge", in_readme=False)
GRID = Grid("After training", {"loss": "test.loss"}, ("", "large"))
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
def rows(experiment, monkeypatch):
    monkeypatch.setattr(pages, "load_experiment", lambda name: dataclasses.replace(experiment, grids=(GRID,)))
    return judge_claims(experiment, RUNS)


def test_every_claim_has_a_row_with_both_numbers_and_its_verdict(rows):
    """t(9) sqrt(0.0002 / 9) sqrt(1/3 + 1/8) is 0.7 points."""
    assert claim_tables.claims_table(rows).rows == [
        ("accuracy", "0.8 +- 0.01 (3)", "0.8 +- 0 (8)", "+0.0 +- 0.7 points", "reproduced"),
        ("loss", "2, run here", "3 +- 0 (8)", "+50.0 +- 0.0 %", "differs"),
        ("loss, large - small", "less", "1 +- 0 (3)", "1 +- 0", "opposite"),
        ("never run", "0.8 +- 0.01 (3)", "-", "-", "not run"),
    ]
    recorded = {"toy": RUNS[:1]}
    [_, row, *_] = claim_tables.claims_table(rows, recorded).rows
    assert row == ("loss", "2, run here", "3", "3 +- 0 (8)", "+50.0 +- 0.0 %", "differs")


def test_verdicts_are_counted_in_a_sentence(rows):
    assert claim_tables.tally_line(rows) == (
        "1 of 2 numbers are consistent with their source, 1 of them at a resolution of 5 % or better; 0 near; 1 "
        "differ; 0 have too few runs to say. Of 1 orders, such as A better than B, 0 have the source's sign, 1 the "
        "opposite one, 0 are open, 0 have one run."
    )
    assert claim_tables.status_text(rows) == "1 of 4 reproduced"
    assert claim_tables.status_text(rows[3:]) == "1 not run" and claim_tables.status_text([]) == "measured"


def test_page_opens_with_one_table_and_folds_the_rest(experiment, rows):
    (experiment.results / "toy.png").touch()
    (experiment.results / "toy-curves.png").touch()
    page = pages.page_of(dataclasses.replace(experiment, grids=(GRID,)), rows, RUNS)
    opening, _, folded = page.partition("<details>")
    assert opening.index("results/toy.png") < opening.index("| accuracy |") and opening.count("| --- | ---") == 1
    assert "python launch.py x" in opening and folded.rstrip().endswith("</details>")
    assert "| it is low | <= 1 | 3 (equal for 8 runs) | not met |" in folded and "After training:" in folded
    assert "suspected cause: too short" in folded and "differs: half the data; one more" in folded
    assert "[curves](../../experiments/results/toy-curves.png)" in folded
    plain = pages.page_of(dataclasses.replace(experiment, claims=()), [], RUNS)
    assert plain.startswith("# It works\n")
    assert "| it is low |" in plain.partition("<details>")[0], "without claims the thresholds come first"


def test_page_opens_with_comparison_or_learning_curve_and_without_claims_a_picture(experiment, rows):
    for name in ("toy-learning_curve.png", "toy-alignment.png"):
        (experiment.results / name).touch()
    first = lambda experiment: pages.figures_of(experiment)[0].name
    assert first(experiment) == "toy-learning_curve.png"
    assert first(dataclasses.replace(experiment, claims=())) == "toy-alignment.png"
    (experiment.results / "toy.png").touch()
    page = pages.page_of(experiment, rows, RUNS)
    assert "![toy](../../experiments/results/toy.png)" in page
    assert "[alignment](../../experiments/results/toy-alignment.png), [learning curve](" in page


def test_page_is_left_out_where_the_row_says_all(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "load_experiment", lambda name: experiment)
    assert pages.has_page(dataclasses.replace(experiment, grids=(GRID,))) and not pages.has_page(experiment)
    assert pages.link("toy") == "[`toy`](../experiments/toy.py)"
    assert pages.link("toy", "docs/") == "[`toy`](experiments/toy.py)"
    (experiment.results / "toy-learning_curve.png").touch()
    assert pages.link("toy") == "[`toy`](results/toy.md)"


def test_grid_has_columns_of_text_before_its_numbers():
    texts = {"options": {"": "-", "large": "`--model.hidden-size 8`"}}
    table = claim_tables.grid_table(Grid("After training", {"loss": "test.loss"}, ("", "large"), texts=texts), RUNS)
    assert table.columns == ("variant", "options", "loss") and table.right == ("loss",)
    assert [row[:2] for row in table.rows] == [("-", "-"), ("large", "`--model.hidden-size 8`")]


def test_results_page_has_every_number_and_every_miss(experiment, rows):
    page = pages.results_page([experiment], rows, {"toy": RUNS})
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[:5]] == [
        "| number", "| ---", "| the accuracy", "| the loss", "| never run",
    ]  # fmt: skip
    assert "| differs | half the data; suspected cause: too short | [`toy`](results/toy.md) |" in page
    assert "[`toy`](results/toy.md) 1 opposite." in page and "loss, large - small | less | 1 +- 0 |" in page
    assert "Not met: 1 of [`toy`](results/toy.md)." in " ".join(page.split())


def test_readme_table_has_the_flagged_claims_alone(rows):
    [line] = [line for line in pages.readme_section(rows).splitlines() if line.startswith("| the")]
    assert line == (
        "| the accuracy | 0.8 +- 0.01 (3) | 0.8 +- 0 (8) | +0.0 +- 0.7 points | reproduced |  "
        "| [`toy`](docs/results/toy.md) |"
    )


def test_figure_has_all_judged_numbers(rows, tmp_path):
    accuracy, loss = pages.forest_rows(rows)
    assert (accuracy.name, accuracy.difference, accuracy.verdict) == ("the accuracy", pytest.approx(0.0), "reproduced")
    assert (loss.difference, loss.resolution, loss.text) == (50.0, 0.0, "+50.0 +- 0.0 %")
    assert pages.forest([accuracy, loss], tmp_path / "published.png").stat().st_size > 5_000


def test_d2l_table_is_sorted_by_section(rows):
    later = dataclasses.replace(rows[0], claim=dataclasses.replace(ACCURACY, source="d2l 10.2, layer"))
    assert [line[0] for line in pages.d2l_table([later, *rows]).rows] == ["9.10", "9.10", "10.2"]


def test_description_has_each_verdict(experiment, rows):
    text = " ".join(claim_tables.experiment_page(experiment, rows, {"--data.path": "a file"}).split())
    assert "differs: loss; source 2, run here; this code 3 +- 0 (8); difference +50.0 +- 0.0 % (table 2)" in text
    assert "--data.path a file" in text
    assert "no option for a file" in claim_tables.experiment_page(experiment, [], {})

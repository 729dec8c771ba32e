"""The figure of all published numbers against ours, experiments/results/published.png, which `make figures` draws."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention_jax.claims.catalog import ROOT, experiment_names, load_experiment
from attention_jax.claims.judged import JudgedClaim, judge_claims
from attention_jax.claims.verdicts import is_training_run, value_interval, values_by_seed
from attention_jax.errors import lower_is_better
from attention_jax.report.agreement import Row, agreement

FIGURE = ROOT / "results" / "published.png"
LIMITS = {False: (0.5, 1.6), True: (-3.0, 4.0)}
"""The limits of the axes: of numbers, and of differences of two variants."""


def comparable_claims(rows: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """The claims of trained models with a published number that have been run; a published 0 has no ratio."""
    kinds = ("same protocol", "other protocol", "order", "measurement")
    ran = [row for row in rows if row.claim.kind in kinds and row.verdict != "not run" and row.claim.published]
    return [row for row in ran if any(map(is_training_run, row.runs))]


def agreement_row(row: JudgedClaim) -> Row:
    """A claim as a row. If less is better, published is divided by ours, so that better is always to the right; a
    difference is divided by the published one."""
    claim = row.claim
    values, around = list(values_by_seed(claim, row.runs).values()), value_interval(claim, row.runs)
    middle = float(np.median(values))
    low, high = (middle, middle) if around is None or math.isnan(around.low) else (around.low, around.high)
    inverted = claim.minus is None and lower_is_better(claim.metric)
    ratio = lambda x: round(claim.published / x if inverted else x / claim.published, 4)
    labels = [f"epoch {claim.epoch}" if claim.epoch else "", f"{claim.variant} - {claim.minus or 'base'}"]
    labels = [claim.metric, *(labels if claim.minus is not None else [labels[0], claim.variant])]
    source_range = claim.spread or (claim.published, claim.published)
    name = ", ".join(filter(None, [row.experiment, *labels]))
    return Row(
        name, ratio(middle), ratio(low), ratio(high), (ratio(source_range[0]), ratio(source_range[1])), row.verdict
    )


def agreement_panels(rows: Sequence[JudgedClaim]) -> dict[str, tuple[list[Row], tuple[float, float]]]:
    """The rows of both panels: numbers, and differences."""
    numbers = "ours / published (losses: published / ours): better to the right"
    both = {numbers: False, "difference of two models: ours / published": True}
    is_difference = lambda row: row.claim.minus is not None
    return {
        title: (
            [agreement_row(row) for row in comparable_claims(rows) if is_difference(row) == show_differences],
            LIMITS[show_differences],
        )
        for title, show_differences in both.items()
    }


def draw_published(path: Path = FIGURE) -> Path:
    """Draw the figure from the recorded results."""
    panel_rows = agreement_panels([row for name in experiment_names() for row in judge_claims(load_experiment(name))])
    return agreement(panel_rows, path, inputs=[row for rows, _ in panel_rows.values() for row in rows])

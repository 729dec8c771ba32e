"""The figure of all published numbers against ours, experiments/results/published.png, which `make figures` draws."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention_jax.claims.catalog import ROOT, load_experiment, names
from attention_jax.claims.judged import Judged, judged
from attention_jax.claims.verdicts import by_seed, interval, trained
from attention_jax.errors import lower_is_better
from attention_jax.report.agreement import Row, agreement

FIGURE = ROOT / "results" / "published.png"
LIMITS = {False: (0.5, 1.6), True: (-3.0, 4.0)}
"""The limits of the axes: of numbers, and of differences of two variants."""


def compared(rows: Sequence[Judged]) -> list[Judged]:
    """The claims of trained models with a published number that have been run; a published 0 has no ratio."""
    kinds = ("same protocol", "other protocol", "order", "measurement")
    ran = [one for one in rows if one.claim.kind in kinds and one.verdict != "not run" and one.claim.published]
    return [one for one in ran if any(map(trained, one.runs))]


def row_of(one: Judged) -> Row:
    """A claim as a row. Where less is better, theirs is divided by ours, so that better is always to the right; a
    difference is divided by the published one."""
    claim = one.claim
    values, around = list(by_seed(claim, one.runs).values()), interval(claim, one.runs)
    middle = float(np.median(values))
    low, high = (middle, middle) if around is None or math.isnan(around.low) else (around.low, around.high)
    inverted = claim.minus is None and lower_is_better(claim.metric)
    ratio = lambda x: round(claim.published / x if inverted else x / claim.published, 4)
    what = [f"epoch {claim.epoch}" if claim.epoch else "", f"{claim.variant} - {claim.minus or 'base'}"]
    what = [claim.metric, *(what if claim.minus is not None else [what[0], claim.variant])]
    theirs = claim.spread or (claim.published, claim.published)
    name = ", ".join(filter(None, [one.experiment, *what]))
    return Row(name, ratio(middle), ratio(low), ratio(high), (ratio(theirs[0]), ratio(theirs[1])), one.verdict)


def panels(rows: Sequence[Judged]) -> dict[str, tuple[list[Row], tuple[float, float]]]:
    """The rows of both panels: numbers, and differences."""
    numbers = "ours / published (losses: published / ours): better to the right"
    both = {numbers: False, "difference of two models: ours / published": True}
    is_difference = lambda one: one.claim.minus is not None
    return {
        title: ([row_of(one) for one in compared(rows) if is_difference(one) == wanted], LIMITS[wanted])
        for title, wanted in both.items()
    }


def draw(path: Path = FIGURE) -> Path:
    """Draw the figure from the recorded results."""
    found = panels([one for name in names() for one in judged(load_experiment(name))])
    return agreement(found, path, inputs=[row for some, _ in found.values() for row in some])

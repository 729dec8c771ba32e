"""Description of one experiment as plain text: `launch.py list NAME`."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence

from attention_jax.claims.verdicts import bounds_text, value_text, verdict_with_caveats
from attention_jax.report.tables import number

WIDTH = 100
"""Columns, of a wider terminal."""


def fill(text: str, **options) -> str:
    """The text in lines that fit into the terminal."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    return textwrap.fill(text, width, break_on_hyphens=False, **options)


def experiment_page(experiment, judged: Sequence, user_data: Mapping[str, str]) -> str:
    """Return a page with claim, source, data, command, cost, variants, plans, status of the claims, and the options for
    user data.

    `experiment` is a catalog.Experiment, `judged` its claims as `judged.JudgedClaim`; `user_data` is {option: help}.
    """
    lines = [f"{experiment.name}: {experiment.claim}"]
    for heading in ("Chapter", "Claim", "Source", "Data", "Command", "Cost"):
        if experiment.about(heading):
            lines.append(f"{heading + ':':9} {experiment.about(heading)}")
    variants = [name for name in experiment.variants() if name]
    if variants:
        separator = "; " if any("," in name for name in variants) else ", "
        lines.append(f"Variants: {separator.join(variants)}")
    if experiment.presets():
        lines.append(f"Presets: {', '.join(experiment.presets())}")
    for plan in experiment.plans:
        lines.append(f"Plan:     {plan.text}; published {number(plan.published)} ({plan.source})")
    page = "\n".join(fill(line, subsequent_indent=" " * 10) for line in lines)
    sections = [page, verdicts(judged), your_data(experiment.name, user_data)]
    return "\n\n".join(section for section in sections if section)


def verdicts(judged: Sequence) -> str:
    """Format the claims with verdict, kind, bound, published and measured number; empty without claims.

    The number comes from the runs that decide the verdict: those of the replication as soon as it is complete.
    """
    lines = ["Recorded:"]
    for row in judged:
        claim, runs = row.claim, row.runs
        published = f"{claim.kind}, bound {bounds_text(claim)}, published {number(claim.published)} ({claim.source})"
        text = f"{verdict_with_caveats(claim, runs)}: {claim.text}; ours {value_text(claim, runs)}; {published}"
        lines.append(fill(text, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines) if judged else ""


def your_data(name: str, user_data: Mapping[str, str]) -> str:
    """Return the section on running the experiment on your own data."""
    if not user_data:
        return "Your own data: it makes or needs its own; there is no option for a file."
    lines = [f"Your own data: python launch.py train {name}, with"]
    for option, text in user_data.items():
        lines.append(fill(f"  {option}  {text}", subsequent_indent="    ").rstrip())
    return "\n".join(lines)

"""Text of docs/results.md and of README's results: which published numbers are reproduced, which are not, and why."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np

from attention_jax.claims import findings
from attention_jax.claims.catalog import CHAPTERS, Experiment
from attention_jax.claims.claim_tables import caveats_line, counts_table, tally_line
from attention_jax.claims.findings import Finding
from attention_jax.claims.judged import JudgedClaim
from attention_jax.claims.verdicts import (
    all_equal,
    bounds_text,
    caveats,
    is_training_run,
    value_interval,
    value_text,
    values_by_seed,
)
from attention_jax.report.tables import Table, markdown, number, span

AGREES = {
    "reproduced": "yes", "near": "near", "beaten": "better", "better": "no, better", "worse": "no, worse",
    "missed": "**no**", "undecided": "undecided", "not run": "not run",
}  # fmt: skip


def wrap_text(text: str) -> str:
    """Prose or an item of a list in lines of at most 120 columns; links are not broken."""
    indent = "  " if text.startswith("* ") else ""
    return fill(text, 120, break_on_hyphens=False, break_long_words=False, subsequent_indent=indent)


def link(name: str) -> str:
    """A link from docs/results.md to the page of an experiment."""
    return f"[{name}](results/{name}.md)"


def source_text(row: JudgedClaim) -> str:
    """The published number with the range of the source's own runs."""
    claim = row.claim
    return f"{number(claim.published)}{f' ({span(*claim.spread)})' if claim.spread else ''}"


def short_value_text(row: JudgedClaim) -> str:
    """The median with its range and the number of seeds, in fewer words than `value_text`."""
    values, around = list(values_by_seed(row.claim, row.runs).values()), value_interval(row.claim, row.runs)
    if diverged := sum(map(math.isnan, values)):
        return f"{diverged} of {len(values)} seeds diverged"
    if around is None or all_equal(values):
        return number(float(np.median(values)))
    return f"{number(float(np.median(values)))} ({span(around.low, around.high)})"


def select_claims(rows: Sequence[JudgedClaim], kind: str, *verdicts: str) -> list[JudgedClaim]:
    return [row for row in rows if row.claim.kind == kind and row.verdict in verdicts]


def claim_link(row: JudgedClaim) -> str:
    """The beginning of a claim, after a link to its experiment."""
    return f"{link(row.experiment)}: {shorten_clauses(row.claim.text, most=35)}"


def reproductions(rows: Sequence[JudgedClaim]) -> str:
    """The claims of the same protocol that are reproduced; counts from a formula in one line."""
    agree = select_claims(rows, "same protocol", "reproduced", "beaten")
    computed = Counter(row.experiment for row in agree if not any(map(is_training_run, row.runs)))
    lines = []
    for row in (row for row in agree if row.experiment not in computed):
        late = "\\*" if "bound set after a result" in caveats(row.claim, row.runs) else ""
        lines.append(
            (
                claim_link(row),
                source_text(row),
                short_value_text(row) + late,
                str(len(values_by_seed(row.claim, row.runs))),
            )
        )
    columns = ("experiment: number", "published (range)", "ours (range)", "seeds")
    table = markdown(Table("", columns, lines, right=columns[1:]))
    formulas = [f"Parameter counts of {link(name)} that agree, by one formula: {n}." for name, n in computed.items()]
    return "\n\n".join([table, *formulas])


def shorten_clauses(text: str, most: int = 60) -> str:
    """The first clauses of a text, at least one, with an ellipsis if any are left out.

    >>> shorten_clauses("theirs: clip 5, L2 1e-5, METEOR; ours: 1, none", most=24)
    'theirs: clip 5, L2 1e-5 ...'
    """
    clauses = re.split(r"(?<=[,;]) (?![^(]*\))", text)
    leading = clauses[:1]
    while len(leading) < len(clauses) and len(" ".join([*leading, clauses[len(leading)]])) <= most:
        leading.append(clauses[len(leading)])
    return text if len(leading) == len(clauses) else f"{' '.join(leading).rstrip(',;:')} ..."


def comparisons(rows: Sequence[JudgedClaim]) -> str:
    """The claims of another protocol that are met, with what differs."""
    lines, previous_difference = [], ""
    for row in select_claims(rows, "other protocol", "near", "better", "worse"):
        differs = "as above" if row.claim.differs == previous_difference else shorten_clauses(row.claim.differs)
        verdict = row.verdict + " (one seed)" * ("one seed" in caveats(row.claim, row.runs))
        lines.append((claim_link(row), source_text(row), short_value_text(row), verdict, differs))
        previous_difference = row.claim.differs
    columns = ("experiment: number", "published (range)", "ours (range)", "verdict", "differs in")
    return markdown(Table("", columns, lines, right=columns[1:3]))


def holding_counts(rows: Sequence[JudgedClaim]) -> str:
    """How many claims hold, by experiment."""
    total, hold = Counter(row.experiment for row in rows), Counter(o.experiment for o in rows if o.verdict == "holds")
    return ", ".join(f"{link(name)} {hold[name]} of {n}" for name, n in total.items())


def orders_with_source(rows: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """The orders with a published number."""
    return [row for row in rows if row.claim.kind == "order" and row.claim.published is not None]


def signs(rows: Sequence[JudgedClaim]) -> str:
    """How many orders have the sign of a published number, by experiment."""
    return holding_counts([row for row in orders_with_source(rows) if row.verdict != "not run"])


def finding_line(finding: Finding) -> tuple[str, ...]:
    """A row of the table of findings."""
    row = finding.representative
    title = f"[{finding.title}](results/{finding.experiment}.md)"
    numbers = f"{'-' if row.verdict == 'not run' else short_value_text(row)}; {bounds_text(row.claim)}"
    return title, finding.status, numbers, finding.cause, finding.settles


def findings_table(listed_findings: Sequence[Finding]) -> str:
    columns = ("finding", "state", "ours (range); bound", "change, or suspected cause", "left, or would settle it")
    return markdown(Table("", columns, list(map(finding_line, listed_findings))))


def lines_of_undecided(listed_findings: Sequence[Finding]) -> str:
    """The findings that are only undecided, one line each."""
    rows = map(finding_line, listed_findings)
    items = (f"* {title}: {numbers}. {cause}; {settles}." for title, _, numbers, cause, settles in rows)
    return "\n".join(map(wrap_text, items))


def theorems(rows: Sequence[JudgedClaim]) -> str:
    """How many of the closed forms hold, by experiment."""
    exact = [row for row in rows if row.claim.kind == "exact"]
    return wrap_text(f"Closed forms, and how many hold: {holding_counts(exact)}.")


def aims(rows: Sequence[JudgedClaim]) -> str:
    """Counts of the aims and of the orders without a published number."""
    signed = orders_with_source(rows)
    unpublished = [row for row in rows if row.claim.kind in ("aim", "order") and row not in signed]
    verdicts = Counter(row.verdict for row in unpublished)
    return (
        f"Aims, and orders without a published number: {verdicts['holds']} hold, "
        f"{verdicts['undecided']} are undecided, {verdicts['missed']} missed, {verdicts['not run']} not run."
    )


def claims_not_run(rows: Sequence[JudgedClaim], experiments: Sequence[Experiment]) -> str:
    """The claims that await a run, and plans."""
    counts = Counter(row.experiment for row in rows if row.verdict == "not run")
    waiting = ", ".join(f"{link(name)} {count}" for name, count in counts.items()) or "none"
    plans = "; ".join(
        f"{link(experiment.name)} {', '.join(number(plan.published) for plan in experiment.plans)}"
        for experiment in experiments
        if experiment.plans
    )
    awaited = wrap_text(f"Claims without a run under their present protocol: {waiting}.")
    return "\n\n".join([awaited, wrap_text(f"Plans with their published numbers, too large for a CPU: {plans}.")])


def index(experiments: Sequence[Experiment]) -> str:
    """Links to the pages of all experiments, by chapter."""
    lines = []
    for chapter in CHAPTERS:
        inside = [link(experiment.name) for experiment in experiments if experiment.about("Chapter") == chapter]
        lines += [wrap_text(f"* {chapter[0].upper()}{chapter[1:]}: {', '.join(inside)}")] if inside else []
    return "\n".join(lines)


INTRODUCTION = """
# Results: which published numbers this code reproduces

`make results` writes this page from `experiments/results/*.json`; [reproduce.md](reproduce.md) defines kinds and
verdicts, [replication.md](replication.md) how fresh seeds were registered. Numbers are medians over seeds with their
range, or one seed's with its 95 % interval over test examples, if known. Each experiment's page has figures, claims,
differences, command, cost and history.
"""
CAPTION = """
*All published numbers of trained models: dots and lines are our medians and ranges, gray bars the source's. Theorems,
parameter counts and published zeros are left out.*
"""
REPRODUCED = """
Same data, preprocessing, metric, budget and selection as the source; within the claim's bounds, and within the range of
the source's own runs or 5 % of its number. A star: bound set after a first result, which fresh seeds have met since.
"""
COMPARED = """
"Near": within the bounds and the same range. Former protocols whose corrected one has run are left out.
"""
MISSED = """
Mended: a deviation from the source was removed, and the claim registered again. A cause is suspected unless the
experiment's page names the runs that show it.
"""
UNDECIDED = """
Seeds disagree about these claims, or the interval of the only seed covers the bound. Ours; bound. Cause; what would
settle it.
"""
TREE = "```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```"


def current_claims(rows: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """All claims, except claims about a former protocol if its corrected protocol has been run."""
    ran = [finding for finding in findings.load_findings(rows) if finding.representative in finding.corrected]
    former = [row for finding in ran for row in finding.claims]
    return [row for row in rows if row not in former]


def results_page(experiments: Sequence[Experiment], rows: Sequence[JudgedClaim]) -> str:
    """Write docs/results.md."""
    open_findings = [finding for finding in findings.load_findings(rows) if finding.status != "met"]
    now = current_claims(rows)
    decided = [finding for finding in open_findings if finding.status != "undecided"]
    loose = ", ".join(
        f"{link(row.experiment)}: {row.claim.text}" for row in findings.claims_without_finding(rows, open_findings)
    )
    sections = {
        "Reproductions": [REPRODUCED, reproductions(now)],
        "Comparisons with known differences": [
            COMPARED,
            comparisons(now),
            wrap_text(f"Orders beside a published number, and how many hold: {signs(rows)}."),
        ],
        "Missed, mended, contradicting": [MISSED, findings_table(decided), loose and f"Not examined yet: {loose}."],
        "Undecided": [UNDECIDED, lines_of_undecided([finding for finding in open_findings if finding not in decided])],
        "Theorems": [theorems(rows)],
        "Aims and orders": [aims(rows)],
        "Not run": [claims_not_run(rows, experiments)],
        "All experiments": [index(experiments), "Re-runs on other machines: [checks](results/checks.md).", TREE],
    }
    texts = [INTRODUCTION, markdown(counts_table(rows)), wrap_text(caveats_line(rows))]
    texts += ["![Published numbers and ours](../experiments/results/published.png)", CAPTION]
    for title, content in sections.items():
        texts += [f"## {title}", *content]
    return "\n\n".join(text.strip() for text in texts if text.strip()) + "\n"


def first_run(rows: Sequence[JudgedClaim], entry: Mapping) -> JudgedClaim:
    """The claim that a row of README shows: the first that has been run."""
    claims = [findings.claims_by_prefix(rows, entry["experiment"], [prefix])[0] for prefix in entry["claims"]]
    return next((row for row in claims if row.verdict != "not run"), claims[0])


def headline_table(rows: Sequence[JudgedClaim], entries: Sequence[Mapping]) -> Table:
    """README's table: a system a row, with theirs, ours, and whether they agree."""
    lines = []
    for entry in entries:
        row = first_run(rows, entry)
        first = row.claim.text.startswith(entry["claims"][0])
        differs = entry.get("differs" if first else "former") or row.claim.differs or "same"
        numbers = source_text(row), value_text(row.claim, row.runs)
        lines.append((entry["system"], entry["source"], *numbers, differs, AGREES[row.verdict]))
    columns = ("system", "source", "theirs (range)", "ours (range)", "same, or differs in", "agrees?")
    return Table("", columns, lines, right=columns[2:4])


def systems(rows: Sequence[JudgedClaim], names: Mapping[str, str]) -> tuple[str, str, str]:
    """What is reproduced under the same protocol, what is undecided, and what is not, as three lists: a system is
    reproduced if more of its numbers are reproduced than missed."""
    yes, undecided, no = [], [], []
    same = [row for row in rows if row.claim.kind == "same protocol" and row.verdict != "not run"]
    for name in dict.fromkeys(row.experiment for row in same if names.get(row.experiment) != ""):
        verdicts = Counter(row.verdict for row in same if row.experiment == name)
        good = verdicts["reproduced"] + verdicts["beaten"]
        share = f" ({good} of {verdicts.total()} numbers)" if verdicts.total() not in (1, good) else ""
        group = yes if good > verdicts["missed"] else no if verdicts["missed"] else undecided
        group.append(f"{names.get(name, name)}{share}")
    return ", ".join(yes), ", ".join(undecided), ", ".join(no)


def readme_section(rows: Sequence[JudgedClaim]) -> str:
    """Write README's results: at most 25 lines."""
    listed = findings.read_findings()
    titles = (
        "**Reproduced**, with the source's data, metric, budget and selection",
        "**Undecided**, as seeds disagree",
        "**Not yet**",
    )
    groups = zip(titles, systems(current_claims(rows), listed["systems"]), strict=True)
    same = select_claims(current_claims(rows), "same protocol", "reproduced", "beaten")
    agree = [row for row in same if any(map(is_training_run, row.runs))]
    early, fresh = sum(not row.claim.after for row in agree), sum(row.is_replicated for row in agree)
    text = (
        f"{' '.join(f'{title}: {names}.' for title, names in groups if names)} Of {len(agree)} reproduced numbers of "
        f"trained models, {early} had their bound before any result, and {fresh} come from registered seeds. "
        f"{tally_line(rows)} Near: something differs from the source. [Results](docs/results.md) has suspected causes "
        "of misses, [reproduce.md](docs/reproduce.md) the rules."
    )
    picture = '<img src="experiments/results/published.png" width="560" alt="Published numbers and ours">'
    command = (
        "`python launch.py reproduce date_luong --no-record` reruns an experiment and judges it;\n"
        "`python launch.py reproduce --check --minutes 30` repeats recorded runs."
    )
    return "\n\n".join([wrap_text(text), markdown(headline_table(rows, listed["headline"])), picture, command])

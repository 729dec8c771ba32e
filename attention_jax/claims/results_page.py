"""Text of docs/results.md and of README's results: which published numbers are reproduced, which are not, and why."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np

from attention_jax.claims import findings
from attention_jax.claims.catalog import CHAPTERS, Experiment
from attention_jax.claims.claim_tables import balance, caveats_line, counts_table
from attention_jax.claims.findings import Finding
from attention_jax.claims.judged import Judged
from attention_jax.claims.verdicts import alike, bounds, by_seed, caveats, interval, ours, trained
from attention_jax.report.tables import Table, markdown, number, span

AGREES = {
    "reproduced": "yes", "near": "near", "beaten": "better", "better": "no, better", "worse": "no, worse",
    "missed": "**no**", "undecided": "undecided", "not run": "not run",
}  # fmt: skip


def wrapped(text: str) -> str:
    """Prose or an item of a list in lines of at most 120 columns; links are not broken."""
    indent = "  " if text.startswith("* ") else ""
    return fill(text, 120, break_on_hyphens=False, break_long_words=False, subsequent_indent=indent)


def link(name: str) -> str:
    """A link from docs/results.md to the page of an experiment."""
    return f"[{name}](results/{name}.md)"


def published(one: Judged) -> str:
    """The published number with the range of the source's own runs."""
    claim = one.claim
    return f"{number(claim.published)}{f' ({span(*claim.spread)})' if claim.spread else ''}"


def found(one: Judged) -> str:
    """The median with its range and the number of seeds, in fewer words than `ours`."""
    values, around = list(by_seed(one.claim, one.runs).values()), interval(one.claim, one.runs)
    if diverged := sum(map(math.isnan, values)):
        return f"{diverged} of {len(values)} seeds diverged"
    if around is None or alike(values):
        return number(float(np.median(values)))
    return f"{number(float(np.median(values)))} ({span(around.low, around.high)})"


def selected(rows: Sequence[Judged], kind: str, *verdicts: str) -> list[Judged]:
    return [one for one in rows if one.claim.kind == kind and one.verdict in verdicts]


def named(one: Judged) -> str:
    """The beginning of a claim, after a link to its experiment."""
    return f"{link(one.experiment)}: {beginning(one.claim.text, most=35)}"


def reproductions(rows: Sequence[Judged]) -> str:
    """The claims of the same protocol that are reproduced; counts from a formula in one line."""
    agree = selected(rows, "same protocol", "reproduced", "beaten")
    computed = Counter(one.experiment for one in agree if not any(map(trained, one.runs)))
    lines = []
    for one in (one for one in agree if one.experiment not in computed):
        late = "\\*" if "bound set after a result" in caveats(one.claim, one.runs) else ""
        lines.append((named(one), published(one), found(one) + late, str(len(by_seed(one.claim, one.runs)))))
    columns = ("experiment: number", "published (range)", "ours (range)", "seeds")
    table = markdown(Table("", columns, lines, right=columns[1:]))
    formulas = [f"Parameter counts of {link(name)} that agree, by one formula: {n}." for name, n in computed.items()]
    return "\n\n".join([table, *formulas])


def beginning(text: str, most: int = 60) -> str:
    """The first clauses of a text, at least one, with an ellipsis where some are left out.

    >>> beginning("theirs: clip 5, L2 1e-5, METEOR; ours: 1, none", most=24)
    'theirs: clip 5, L2 1e-5 ...'
    """
    clauses = re.split(r"(?<=[,;]) (?![^(]*\))", text)
    kept = clauses[:1]
    while len(kept) < len(clauses) and len(" ".join([*kept, clauses[len(kept)]])) <= most:
        kept.append(clauses[len(kept)])
    return text if len(kept) == len(clauses) else f"{' '.join(kept).rstrip(',;:')} ..."


def comparisons(rows: Sequence[Judged]) -> str:
    """The claims of another protocol that are met, with what differs."""
    lines, before = [], ""
    for one in selected(rows, "other protocol", "near", "better", "worse"):
        differs = "as above" if one.claim.differs == before else beginning(one.claim.differs)
        verdict = one.verdict + " (one seed)" * ("one seed" in caveats(one.claim, one.runs))
        lines.append((named(one), published(one), found(one), verdict, differs))
        before = one.claim.differs
    columns = ("experiment: number", "published (range)", "ours (range)", "verdict", "differs in")
    return markdown(Table("", columns, lines, right=columns[1:3]))


def that_hold(rows: Sequence[Judged]) -> str:
    """How many claims hold, by experiment."""
    total, hold = Counter(one.experiment for one in rows), Counter(o.experiment for o in rows if o.verdict == "holds")
    return ", ".join(f"{link(name)} {hold[name]} of {n}" for name, n in total.items())


def compared_signs(rows: Sequence[Judged]) -> list[Judged]:
    """The orders with a published number."""
    return [one for one in rows if one.claim.kind == "order" and one.claim.published is not None]


def signs(rows: Sequence[Judged]) -> str:
    """How many orders have the sign of a published number, by experiment."""
    return that_hold([one for one in compared_signs(rows) if one.verdict != "not run"])


def finding_line(finding: Finding) -> tuple[str, ...]:
    """A row of the table of findings."""
    one = finding.shown
    title = f"[{finding.title}](results/{finding.experiment}.md)"
    numbers = f"{'-' if one.verdict == 'not run' else found(one)}; {bounds(one.claim)}"
    return title, finding.status, numbers, finding.cause, finding.settles


def findings_table(known: Sequence[Finding]) -> str:
    columns = ("finding", "state", "ours (range); bound", "change, or suspected cause", "left, or would settle it")
    return markdown(Table("", columns, list(map(finding_line, known))))


def undecided_lines(known: Sequence[Finding]) -> str:
    """The findings that are only undecided, one line each."""
    rows = map(finding_line, known)
    items = (f"* {title}: {numbers}. {cause}; {settles}." for title, _, numbers, cause, settles in rows)
    return "\n".join(map(wrapped, items))


def theorems(rows: Sequence[Judged]) -> str:
    """How many of the closed forms hold, by experiment."""
    exact = [one for one in rows if one.claim.kind == "exact"]
    return wrapped(f"Closed forms, and how many hold: {that_hold(exact)}.")


def aims(rows: Sequence[Judged]) -> str:
    """Counts of the aims and of the orders without a published number."""
    signed = compared_signs(rows)
    own = [one for one in rows if one.claim.kind in ("aim", "order") and one not in signed]
    verdicts = Counter(one.verdict for one in own)
    return (
        f"Aims, and orders without a published number: {verdicts['holds']} hold, "
        f"{verdicts['undecided']} are undecided, {verdicts['missed']} missed, {verdicts['not run']} not run."
    )


def unrun(rows: Sequence[Judged], experiments: Sequence[Experiment]) -> str:
    """The claims that await a run, and plans."""
    counts = Counter(one.experiment for one in rows if one.verdict == "not run")
    waiting = ", ".join(f"{link(name)} {count}" for name, count in counts.items()) or "none"
    plans = "; ".join(
        f"{link(experiment.name)} {', '.join(number(plan.published) for plan in experiment.plans)}"
        for experiment in experiments
        if experiment.plans
    )
    awaited = wrapped(f"Claims without a run under their present protocol: {waiting}.")
    return "\n\n".join([awaited, wrapped(f"Plans with their published numbers, too large for a CPU: {plans}.")])


def index(experiments: Sequence[Experiment]) -> str:
    """Links to the pages of all experiments, by chapter."""
    lines = []
    for chapter in CHAPTERS:
        inside = [link(experiment.name) for experiment in experiments if experiment.about("Chapter") == chapter]
        lines += [wrapped(f"* {chapter[0].upper()}{chapter[1:]}: {', '.join(inside)}")] if inside else []
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


def present(rows: Sequence[Judged]) -> list[Judged]:
    """The claims without those about a former protocol whose corrected one has been run."""
    ran = [finding for finding in findings.findings(rows) if finding.shown in finding.corrected]
    former = [one for finding in ran for one in finding.claims]
    return [one for one in rows if one not in former]


def results_page(experiments: Sequence[Experiment], rows: Sequence[Judged]) -> str:
    """Write docs/results.md."""
    known = [finding for finding in findings.findings(rows) if finding.status != "met"]
    now = present(rows)
    decided = [finding for finding in known if finding.status != "undecided"]
    loose = ", ".join(f"{link(one.experiment)}: {one.claim.text}" for one in findings.unexplained(rows, known))
    parts = {
        "Reproductions": [REPRODUCED, reproductions(now)],
        "Comparisons with known differences": [
            COMPARED,
            comparisons(now),
            wrapped(f"Orders beside a published number, and how many hold: {signs(rows)}."),
        ],
        "Missed, mended, contradicting": [MISSED, findings_table(decided), loose and f"Not examined yet: {loose}."],
        "Undecided": [UNDECIDED, undecided_lines([finding for finding in known if finding not in decided])],
        "Theorems": [theorems(rows)],
        "Aims and orders": [aims(rows)],
        "Not run": [unrun(rows, experiments)],
        "All experiments": [index(experiments), "Re-runs on other machines: [checks](results/checks.md).", TREE],
    }
    texts = [INTRODUCTION, markdown(counts_table(rows)), wrapped(caveats_line(rows))]
    texts += ["![Published numbers and ours](../experiments/results/published.png)", CAPTION]
    for title, part in parts.items():
        texts += [f"## {title}", *part]
    return "\n\n".join(text.strip() for text in texts if text.strip()) + "\n"


def first_run(rows: Sequence[Judged], entry: Mapping) -> Judged:
    """The claim that a row of README shows: the first that has been run."""
    found = [findings.matching(rows, entry["experiment"], [prefix])[0] for prefix in entry["claims"]]
    return next((one for one in found if one.verdict != "not run"), found[0])


def headline_table(rows: Sequence[Judged], entries: Sequence[Mapping]) -> Table:
    """README's table: a system a row, with theirs, ours, and whether they agree."""
    lines = []
    for entry in entries:
        one = first_run(rows, entry)
        first = one.claim.text.startswith(entry["claims"][0])
        differs = entry.get("differs" if first else "former") or one.claim.differs or "same"
        numbers = published(one), ours(one.claim, one.runs)
        lines.append((entry["system"], entry["source"], *numbers, differs, AGREES[one.verdict]))
    columns = ("system", "source", "theirs (range)", "ours (range)", "same, or differs in", "agrees?")
    return Table("", columns, lines, right=columns[2:4])


def systems(rows: Sequence[Judged], names: Mapping[str, str]) -> tuple[str, str, str]:
    """What is reproduced under the same protocol, what is undecided, and what is not, as three lists: a system is
    reproduced if more of its numbers are reproduced than missed."""
    yes, undecided, no = [], [], []
    same = [one for one in rows if one.claim.kind == "same protocol" and one.verdict != "not run"]
    for name in dict.fromkeys(one.experiment for one in same if names.get(one.experiment) != ""):
        verdicts = Counter(one.verdict for one in same if one.experiment == name)
        good = verdicts["reproduced"] + verdicts["beaten"]
        share = f" ({good} of {verdicts.total()} numbers)" if verdicts.total() not in (1, good) else ""
        chosen = yes if good > verdicts["missed"] else no if verdicts["missed"] else undecided
        chosen.append(f"{names.get(name, name)}{share}")
    return ", ".join(yes), ", ".join(undecided), ", ".join(no)


def readme_section(rows: Sequence[Judged]) -> str:
    """Write README's results: at most 25 lines."""
    listed = findings.read()
    titles = (
        "**Reproduced**, with the source's data, metric, budget and selection",
        "**Undecided**, as seeds disagree",
        "**Not yet**",
    )
    groups = zip(titles, systems(present(rows), listed["systems"]), strict=True)
    same = selected(present(rows), "same protocol", "reproduced", "beaten")
    agree = [one for one in same if any(map(trained, one.runs))]
    before, fresh = sum(not one.claim.after for one in agree), sum(one.replicated for one in agree)
    text = (
        f"{' '.join(f'{title}: {found}.' for title, found in groups if found)} Of {len(agree)} reproduced numbers of "
        f"trained models, {before} had their bound before any result, and {fresh} come from registered seeds. "
        f"{balance(rows)} Near: something differs from the source. [Results](docs/results.md) has suspected causes "
        "of misses, [reproduce.md](docs/reproduce.md) the rules."
    )
    picture = '<img src="experiments/results/published.png" width="560" alt="Published numbers and ours">'
    command = (
        "`python launch.py reproduce date_luong --no-record` reruns an experiment and judges it;\n"
        "`python launch.py reproduce --check --minutes 30` repeats recorded runs."
    )
    return "\n\n".join([wrapped(text), markdown(headline_table(rows, listed["headline"])), picture, command])

"""The README says what was measured: its rows of results are those of the committed results, no miss is left out."""

from pathlib import Path

from attention_jax import catalogue, ledger
from attention_jax.report.tables import claims_table, markdown

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python launch.py reproduce --scale recorded --markdown > experiments/results/README.md"


def test_the_tables_of_results_are_those_of_the_committed_results():
    claims_of = lambda name: catalogue.load_experiment(name).claims
    table = markdown(
        claims_table([(name, claims_of(name), ledger.recorded(name)["runs"]) for name in catalogue.names()])
    )
    written = (ledger.RESULTS / "README.md").read_text(encoding="utf-8")
    assert written.startswith(table + "\n"), f"the results have changed: {COMMAND}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = readme.index(table.splitlines()[0])
    shown = readme[start : readme.index("", start)]
    stale = set(shown) - set(table.splitlines())
    assert not stale, f"README's table shows rows that are none of experiments/results/README.md: {sorted(stale)}"
    missed = {row for row in table.splitlines() if "| missed |" in row}
    assert missed <= set(shown), f"README's table leaves out misses: {sorted(missed - set(shown))}"

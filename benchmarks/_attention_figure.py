"""The figure of `bench attention`: gradient time and memory over length, both axes logarithmic, one column per case."""

from pathlib import Path

from attention_jax.report.style import WIDTH, canvas, figure_style, line_style, log_scale, save

IMPLEMENTATIONS = {
    "fused": "attend, block by block", "plain": "attend, all weights stored", "cudnn": "cuDNN", "jax.nn": "jax.nn",
    "torch_sdpa": "PyTorch SDPA", "torch_flex": "PyTorch FlexAttention",
}  # fmt: skip
"""The implementations in the order of their styles, and their names in the legend."""
CASES = {"scaled_dot": "scaled dot product", "gaussian": "Gaussian score", "window": "causal window"}
MEASURED = {  # what a row of panels shows -> (key of a row, factor)
    "forward + gradient, ms": ("gradient_seconds", 1e3),
    "temporary memory, MiB": ("temporary_bytes", 2**-20),
}


def draw(rows: list[dict], path: Path, platform: str):
    """Plot lines of successful measurements, and a cross at the last length before running out of memory."""
    stored, rows = rows, [row for row in rows if row["blocks"][0] is None]
    lengths_of = lambda case: {row["length"] for row in rows if row["case"] == case and not row["problem"]}
    cases = [case for case in dict.fromkeys(row["case"] for row in rows) if len(lengths_of(case)) > 1]
    if not cases:
        return
    figure = canvas(min(max(WIDTH * len(cases) / 4, 3.0), WIDTH), 4.0)
    with figure_style():
        axes = figure.subplots(2, len(cases), squeeze=False, sharex="col")
        for column, case in enumerate(cases):
            mine = [row for row in rows if row["case"] == case]
            for axis, (label, measured) in zip(axes[:, column], MEASURED.items()):
                _panel(axis, mine, *measured)
                lengths = sorted({row["length"] for row in mine})
                axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
                axis.set_ylabel(label if column == 0 else "")
            axes[0, column].set_title(CASES.get(case, case))
            axes[1, column].set_xlabel("length")
        legend_handles = {}
        for axis in axes.flat:
            legend_handles |= {text: handle for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(legend_handles.values(), legend_handles.keys(), loc="outside lower center", ncols=2)
        first = rows[0]
        size = f"batch {first['batch']}, {first['heads']} heads of {first['width']}, {first['dtype']}"
        figure.suptitle(f"{first['device'].upper()}, {size} (cross: out of memory beyond)")
    save(figure, path, stored)


def _panel(axis, rows: list[dict], key: str, factor: float):
    """Plot one quantity of one case, with a line for each implementation."""
    values = []
    for i, (name, label) in enumerate(IMPLEMENTATIONS.items()):
        mine = [row for row in rows if row["implementation"] == name]
        good = [row for row in mine if not row["problem"] and row[key] > 0]  # torch's memory shows where it grew
        if not good:
            continue
        lengths, scaled = [row["length"] for row in good], [row[key] * factor for row in good]
        style = line_style(i)
        axis.plot(lengths, scaled, label=label, linewidth=1.1, **style)
        if any(row["problem"].startswith(("out of memory", "MemoryError")) for row in mine):
            axis.plot(lengths[-1:], scaled[-1:], "x", color=style["color"], markersize=9, markeredgewidth=1.5)
        values += scaled
    log_scale(axis, "x", [row["length"] for row in rows])
    log_scale(axis, "y", values)
    axis.grid(alpha=0.15, linewidth=0.5)

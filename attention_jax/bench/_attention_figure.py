"""The figure of `bench attention`: gradient time and memory over length, both axes logarithmic, one column per case."""

from pathlib import Path

COLOURS = {
    "fused": "#0072B2",
    "plain": "#D55E00",
    "cudnn": "#009E73",
    "jax.nn": "#E69F00",
    "torch_sdpa": "#CC79A7",
    "torch_flex": "#56B4E9",
}


def draw(rows: list[dict], path: Path, platform: str):
    """Lines for rows without a problem; a cross at the last length of what ran out of memory after it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in rows if row["blocks"][0] is None and row["case"] != "check"]
    cases = list(dict.fromkeys(row["case"] for row in rows if not row["problem"]))
    if not cases:
        return
    figure, axes = plt.subplots(
        2, len(cases), figsize=(3.2 * len(cases) + 1, 5.6), squeeze=False, sharex="col", layout="constrained"
    )
    for column, case in enumerate(cases):
        for name, colour in COLOURS.items():
            mine = [row for row in rows if row["case"] == case and row["implementation"] == name]
            good = [row for row in mine if not row["problem"]]
            if not good:
                continue
            for axis, key, scale in (
                (axes[0, column], "gradient_seconds", 1e3),
                (axes[1, column], "temporary_bytes", 2**-20),
            ):
                measured = [row for row in good if row[key] > 0]  # torch's memory shows only where the process grew
                if not measured:
                    continue
                lengths, values = [row["length"] for row in measured], [row[key] * scale for row in measured]
                axis.loglog(lengths, values, "o-", color=colour, label=name, markersize=4)
                if any(row["problem"].startswith(("out of memory", "MemoryError")) for row in mine):
                    axis.loglog(lengths[-1:], values[-1:], "x", color=colour, markersize=11, markeredgewidth=2)
        axes[0, column].set_title(case)
        axes[1, column].set_xlabel("length")
        for axis in axes[:, column]:
            axis.grid(True, which="major", alpha=0.3)
            lengths = sorted({row["length"] for row in rows if row["case"] == case})
            axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
            axis.minorticks_off()
    axes[0, 0].set_ylabel("forward + gradient, ms")
    axes[1, 0].set_ylabel("temporary memory, MiB")
    handles = {
        text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(
        f"{rows[0]['device']}, batch x heads {rows[0]['batch']} x {rows[0]['heads']}, {rows[0]['dtype']} "
        "(cross: out of memory beyond)"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)

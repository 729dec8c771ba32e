"""The first lines that a run prints: what is trained on what, parameters, device, attention, directory and time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_jax import provenance
from attention_jax.config import Config, model_name
from attention_jax.printing import as_typed, in_a_line
from attention_jax.runs.accelerators import accelerator_hint

SPLITS = ("train", "valid", "test")
TROUBLES = ("left_out", "dropped", "damaged", "skipped", "bad_", "several")
"""Parts of the names of facts about data that a user has to know of if they are not zero."""
IMBALANCED = 5
"""The ratio of the sizes of the largest and the rarest class from which a run warns."""
IMPLEMENTATIONS = {
    "plain": "XLA, all weights at once",
    "fused": "XLA, block by block",
    "linear": "XLA, sums of features",
    "kernel": "a generated kernel",
    "cudnn": "cuDNN",
    "flash": "JAX's flash attention kernel",
}
"""What a user calls the implementations of `attend`."""


def header(
    config: Config, directory: Path, facts: Mapping, parameters: int, expected: str, calls: Sequence[Mapping] = ()
) -> str:
    """Return the lines about a run of `config` in `directory`; `facts` are those of `Task.describe`, `calls` those of
    `Task.attention_calls`.

    `parameters` is 0 for an experiment that trains nothing. `expected` is the time it takes, "" if it is unknown.
    """
    lines = {"experiment": config.name}
    if config.model is not None and config.data is not None:
        data = ": ".join(filter(None, [type(config.data).__name__, in_a_line(important_facts(facts))]))
        lines = {"training": f"{config.name}, {model_name(config.model)} on {data}"}
    if parameters:
        lines["parameters"] = f"{parameters:,}"
    lines["device"] = devices()
    if calls:
        lines["attention"] = f"\n{'':12}".join(attention_lines(calls, platform()))
    lines["directory"] = str(directory)
    lines["time"] = expected or as_typed(f"unknown; launch.py list {directory} estimates it while it trains")
    substitute = config.data.without_file if config.data is not None else ""
    first = filter(None, [accelerator_hint(), substitute])
    warnings = filter(None, [imbalance_warning(facts)])
    return "\n".join([*first, *(f"{name + ':':11} {text}" for name, text in lines.items()), *warnings])


def imbalance_warning(facts: Mapping) -> str:
    """Return a line about classes of very different sizes, or "".

    >>> imbalance_warning({"class_imbalance": 4.0}), imbalance_warning({"train_pairs": 3})
    ('', '')
    """
    if facts.get("class_imbalance", 1) < IMBALANCED:
        return ""
    return (
        f"warning:    classes are imbalanced, {facts['rarest_class']} is the rarest, {facts['largest_class']} the "
        "largest: read the recall of each class in result.json, not the accuracy alone"
    )


def attention_lines(calls: Sequence[Mapping], platform: str) -> list[str]:
    """Return a line for each way in which calls of `attend` are computed on a platform, with the reason why it is not
    the platform's kernel.

    >>> attention_lines([{"tpu": ("flash", "")}, {"tpu": ("flash", "")}, {"tpu": ("plain", "flash needs ...")}], "tpu")
    ["2 x JAX's flash attention kernel", 'XLA, all weights at once: flash needs ...']
    """
    lines = []
    for (implementation, reason), count in Counter(tuple(call[platform]) for call in calls).items():
        line = f"{count} x " * (count > 1) + IMPLEMENTATIONS.get(implementation, implementation)
        lines.append(f"{line}: {reason}" if reason else line)
    return lines


def important_facts(facts: Mapping) -> dict:
    """The sizes of the splits, and what is wrong with the data.

    >>> important_facts({"source_vocabulary": 87, "train_pairs": 1600, "pairs_left_out": 0, "bad_lines": 2})
    {'train_pairs': 1600, 'bad_lines': 2}
    """
    of_splits = [name for name in facts if name.startswith(SPLITS) and name.count("_") == 1][:3]
    wrong = [name for name, value in facts.items() if any(word in name for word in TROUBLES) and value]
    return {name: facts[name] for name in dict.fromkeys([*of_splits, *wrong])}


def devices() -> str:
    """The devices of JAX, such as "cpu, 2 cores" or "4 x gpu: NVIDIA H100"."""
    import jax

    kinds = Counter(d.platform if d.platform == "cpu" else f"{d.platform}: {d.device_kind}" for d in jax.devices())
    kinds_text = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
    return f"{kinds_text}, {provenance.cores()} cores" if kinds_text == "cpu" else kinds_text


def platform() -> str:
    """The platform that programs are lowered for, as in `ops.dispatch.PLATFORMS`."""
    import jax

    device = jax.devices()[0]
    if device.platform == "gpu":
        return "cuda" if "cuda" in device.client.platform_version.lower() else "default"
    return device.platform if device.platform in ("cpu", "tpu") else "default"

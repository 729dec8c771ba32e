"""The docstrings of public names: a summary of one line, and an example."""

import inspect

import pytest

import attention_jax

WITHOUT_EXAMPLE = {
    f"interpret.{name}" for name in ("ActivationStore", "activations", "decoding_edits", "open_activations")
}
"""Names that need a pretrained model; the pages of interpretability and decoding run them."""


def public() -> dict[str, object]:
    """Every public function and class by its path, each once."""
    objects = {}
    for name in attention_jax.__all__:
        value = getattr(attention_jax, name)
        if inspect.ismodule(value) and name != "config":
            objects |= {f"{name}.{inner}": getattr(value, inner) for inner in value.__all__}
        elif name != "config":
            objects[name] = value
    return objects


@pytest.mark.parametrize("name", public())
def test_public_names_have_summary_and_example(name):
    text = inspect.getdoc(public()[name])
    summary = text.partition("\n\n")[0]
    assert "\n" not in summary and len(summary) <= 116 and summary.endswith("."), summary
    assert ">>> " in text or name in WITHOUT_EXAMPLE, f"{name} has no example"

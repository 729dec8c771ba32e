"""The docstrings of public names: a summary of one line, and an example."""

import inspect

import pytest

import attention_jax

NEED_A_MODEL = ("generate", "Pretrained", "load_pretrained")
"""Names whose examples need the files of a model: docs/pretrained.md has them, docs/interpretability.md those of
`interpret`."""


def public() -> dict[str, object]:
    """Every public function and class by its path, each once."""
    found = {}
    for name in attention_jax.__all__:
        thing = getattr(attention_jax, name)
        if inspect.ismodule(thing) and name != "config":
            found |= {f"{name}.{inner}": getattr(thing, inner) for inner in thing.__all__}
        elif name != "config":
            found[name] = thing
    return found


@pytest.mark.parametrize("name", public())
def test_a_public_name_has_a_summary_of_one_line_and_an_example(name):
    text = inspect.getdoc(public()[name])
    summary = text.partition("\n\n")[0]
    assert "\n" not in summary and len(summary) <= 116 and summary.endswith("."), summary
    assert ">>> " in text or name.startswith("interpret.") or name in NEED_A_MODEL, f"{name} has no example"

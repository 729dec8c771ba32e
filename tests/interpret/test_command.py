"""`launch.py intervene` on a small model, and on a real one where its package is installed."""

import types

import pytest
from site_models import family

import attention_jax
from attention_jax import InputError
from attention_jax.cli import commands


@pytest.fixture
def small(monkeypatch):
    model, params, _, _ = family("scanned")
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
    encode = lambda text: [words.index(word) for word in text.split()]
    decode = lambda ids: " ".join(words[i] for i in ids)
    loaded = types.SimpleNamespace(
        model=model, params=params, tokenizer=types.SimpleNamespace(encode=encode, decode=decode)
    )
    monkeypatch.setattr(attention_jax, "load_run", lambda path, trust_code: loaded)
    return loaded


def test_an_ablated_head_changes_what_the_model_says(small, capsys):
    commands.main(["intervene", "m", "a b c a", "--ablate", "decoder.1.head.0"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["next", "token", "after", "the", "intervention"] and len(lines) == 7
    assert lines[6].startswith("loss ") and lines[6][:28].strip() != lines[6][30:]


@pytest.mark.slow
def test_patch_and_lens_output_before_and_after(small, capsys):
    """A patch of the whole residual stream is the other text; a lens ends with what the model says."""
    options = ["--patch", "decoder.1.residual_out", "--patch-from", "b a c d", "--lens", "logit"]
    commands.main(["intervene", "m", "a b c a", *options])
    lines = capsys.readouterr().out.splitlines()
    commands.main(["intervene", "m", "b a c d"])
    other_lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["next", "token", "after", "the", "intervention"] and len(lines) == 12
    assert [line[30:] for line in lines[1:6]] == other_lines[1:6]
    assert lines[6][:28] != lines[6][30:58] and lines[6].startswith("loss ")
    assert lines[-1].startswith("decoder.1.residual_out") and lines[-1].split("  ")[-3] == lines[1][:28].strip()


@pytest.mark.slow
def test_ablation_and_scores_of_heads(small, capsys):
    commands.main(["intervene", "m", "a b c a", "--ablate", "decoder.1.head.0", "decoder.*.mlp_output", "--heads"])
    output = capsys.readouterr().out
    assert "after the intervention" in output and "induction         decoder." in output and "first token" in output


MISUSES = {
    "patch alone": (["a b", "--patch", "decoder.0.query"], "both --patch SITE"),
    "positions alone": (["a b", "--positions", "1"], "applies to --ablate and --patch"),
    "lengths": (["a b", "--patch", "logits", "--patch-from", "a b c"], "as many tokens as the other, 2; it has 3"),
    "one token": (["a"], "at least two tokens"),
    "no site": (["a b", "--ablate", "decoder.9.query"], "layers of the decoder are 0 to 1"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_of_the_command_is_one_line(name, small):
    arguments, message = MISUSES[name]
    with pytest.raises(InputError, match=message):
        commands.main(["intervene", "m", *arguments])


def test_another_model_is_named(small):
    small.model, small.params, _, _ = family("text")
    with pytest.raises(InputError, match="needs a LanguageModel, m has a TextClassifier"):
        commands.main(["intervene", "m", "a b"])

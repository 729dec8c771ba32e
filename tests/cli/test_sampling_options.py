"""--temperature, --top-k, --top-p and --length of `predict`."""

from pathlib import Path

import pytest

from attention_jax.cli import command_options, commands
from attention_jax.config import Config, Decode, Generation, Sampling
from attention_jax.errors import InputError
from attention_jax.runs.api import LoadedRun


def run_of(decode) -> LoadedRun:
    return LoadedRun(Path("run"), Config("x", None, None, decode=decode), None)


def parse_words(*words: str) -> command_options.Predict:
    return command_options.parse(command_options.Predict, ["run", "text", *words])


def test_a_run_takes_what_is_given_and_keeps_the_others():
    run = run_of(Sampling(temperature=0.5, top_k=7, seed=3))
    changed, sampling = commands._with_sampling(run, None, parse_words("--temperature", "0", "--length", "5"))
    assert changed.config.decode == Sampling(temperature=0.0, length=5, top_k=7, seed=3) and sampling is None
    assert commands._with_sampling(run, None, parse_words())[0] is run


def test_a_pretrained_model_takes_them_over_those_of_its_files():
    model, args = object(), parse_words("--top-p", "0.9", "--top-k", "4")
    assert commands._with_sampling(model, {"top_k": 50, "seed": 1}, args) == (
        model,
        {"top_k": 4, "seed": 1, "top_p": 0.9},
    )


@pytest.mark.parametrize(
    ("model", "sampling", "words", "message"),
    [
        (run_of(Decode()), None, ["--length", "5"], "are for language models: leave them out"),
        (object(), None, ["--top-k", "5"], "are for language models: leave them out"),
        (run_of(Sampling()), None, ["--top-p", "2"], "--decode.top-p must be at most 1"),
        (object(), vars(Generation()), ["--temperature", "-1"], "--decode.temperature must be at least 0"),
    ],
)
def test_what_samples_nothing_refuses_them(model, sampling, words, message):
    with pytest.raises(InputError, match=message):
        commands._with_sampling(model, sampling, parse_words(*words))

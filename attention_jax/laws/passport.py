"""The passport of an attention function: which laws hold for it, as a table of law, verdict, number and bound."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

from attention_jax.claims.catalog import load_experiment
from attention_jax.claims.verdicts import bounds_text
from attention_jax.config.options import import_object
from attention_jax.errors import InputError
from attention_jax.laws import LAWS
from attention_jax.laws.law import Attention
from attention_jax.report.tables import Table, number


class Line(NamedTuple):
    """One law, measured."""

    law: str
    verdict: str
    """holds, fails, or the error that the attention function raised."""
    value: float | None
    bound: str
    seconds: float

    @property
    def has_number(self) -> bool:
        """Whether there is a number."""
        return self.value is not None


def attention_of(path: str) -> Attention:
    """The attention function with the import path "package.file:name", or an instance of the class of that name, whose
    output is checked to be [Q, V]. InputError if it is neither."""
    attention = import_object(path)
    attention = attention() if isinstance(attention, type) else attention
    if not callable(attention):
        raise InputError(f"{path} must be a function (query, key, value) -> output, got {type(attention).__name__}")

    def attend_checked(query, key, value):
        output = attention(query, key, value)
        if jnp.shape(output) != (len(query), value.shape[1]):
            raise InputError(
                f"{path} must return [Q, V] = {[len(query), value.shape[1]]} for query {list(query.shape)}, key "
                f"{list(key.shape)} and value {list(value.shape)}; got {list(jnp.shape(output))}"
            )
        return output

    return attend_checked


def lines(attention: Attention | None = None) -> Iterator[Line]:
    """Measure the general laws of an attention function, or without one all laws, which are named by their metrics."""
    thresholds = {threshold.metric: threshold for threshold in load_experiment("laws").thresholds}
    for metric, law in LAWS.items():
        if attention is None:
            yield measure_line(law.measure, law.subject, thresholds[metric], metric)
        elif law.general:
            yield measure_line(law.measure, attention, thresholds[metric], law.general)


def measure_line(measure, subject, threshold, text: str) -> Line:
    """One line, with seed 0; an error of the subject itself is its verdict."""
    started = time.perf_counter()
    try:
        value = measure(subject, 0)
        verdict = "holds" if threshold.is_met(value) else "fails"
    except InputError:
        raise
    except Exception as error:  # of a user's function, whatever it is
        value, verdict = None, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:60]
    return Line(text, verdict, value, bounds_text(threshold), time.perf_counter() - started)


def passport_table(law_lines: list[Line], title: str) -> Table:
    """The lines as a table; InputError if the subject raised an error in every law."""
    if not any(line.has_number for line in law_lines):
        raise InputError(f"{title} cannot be measured: each law ended with {law_lines[0].verdict}")
    rows = [(line.law, line.verdict, number(line.value), line.bound) for line in law_lines]
    return Table(title, ("law", "verdict", "number", "bound"), rows, right=("number", "bound"))

"""What a law is: the number that it measures, of which subject."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(query [Q, D], key [K, D], value [K, V]) -> [Q, V]"""


@dataclass(frozen=True)
class Law:
    """A number of a subject, `measure(subject, seed)`; the claim of the same metric has its bound."""

    measure: Callable[[Any, int], float]
    subject: Any
    """What the law is about, such as an attention function."""
    general: str = ""
    """The law as a statement about any attention function, if any may be the subject."""

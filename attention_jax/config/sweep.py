"""Options of a sweep."""

from typing import Literal

Method = Literal["auto", "grid", "random", "tpe", "halving", "hyperband"]
"""Search methods, of which the last two stop bad trials early (attention_jax/sweep/search.py)."""

"""Options of a sweep."""

from typing import Literal

Method = Literal["auto", "grid", "random", "tpe", "halving", "hyperband"]
"""How the points to try are chosen, and whether bad ones are stopped early (attention_jax/sweep/search.py)."""

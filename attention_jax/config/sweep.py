"""What a sweep may be asked for."""

from typing import Literal

Method = Literal["auto", "grid", "random", "qmc", "tpe", "halving", "hyperband"]
"""How the points to try are chosen (attention_jax/sweep/search.py)."""

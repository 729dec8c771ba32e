"""Pure attention mathematics: arrays in, arrays out; jax only. Written for one example, vmapped by the caller.

A **score** compares queries and keys, a **bias** adds a term that depends on positions, a **mask** selects the keys
that a query may attend to, and `attend` (attention_jax/ops/attention.py) normalizes the scores and pools the values.
All three are callable pytrees: their parameters are their leaves.
"""

"""Pure attention mathematics: arrays in, arrays out; jax only. Written for one example, vmapped by the caller.

A **score** compares queries and keys, a **bias** adds what depends on positions, a **mask** forbids,
and `attend` (attention_jax/ops/attention.py) normalises and pools. All three are callable pytrees:
their parameters are their leaves.
"""

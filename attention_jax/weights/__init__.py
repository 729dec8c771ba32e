"""Weights in and out: files of arrays, other libraries' names for them, and programs that run without this package.

The tables in `vit_names` and `marian_names` can be read beside the published code. `exchange` reads and writes, `adopt`
fits what was read to another model, and `stablehlo` exports what a model computes.
"""

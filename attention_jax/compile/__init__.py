"""Ahead-of-time compilation for accelerators that are not installed: the memory of each program and whether it fits.

`targets` describes the accelerators, `report` reads the compiler's analysis of one program, `programs` builds the
programs of an experiment, `compared` compares normalizers in one of them, and `command` is `launch.py compile`.
`stablehlo` exports the forward computation of a run.
"""

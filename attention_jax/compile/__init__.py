"""Compiles programs for accelerators that are not installed: how much memory each needs, and whether it fits.

`targets` describes the accelerators, `report` reads what a compiler says of one program, `programs` makes the programs
of an experiment, `compared` compares normalisers in one of them, `command` is `launch.py compile`.
"""

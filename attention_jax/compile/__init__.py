"""Programs compiled for chips that are absent: how much memory each needs, and whether that fits.

`targets` describes the chips, `report` reads what a compiler says of one program, `programs` makes the programs of an
experiment, `command` is `launch.py compile`.
"""

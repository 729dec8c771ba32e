#!/usr/bin/env python3
"""The command line in a checkout: `python launch.py COMMAND ...`; an installed package has it as `attention-jax`."""

from attention_jax.cli.commands import run

if __name__ == "__main__":
    run()

"""`python -m attention_jax COMMAND ...`: the command line of an installed package."""

from attention_jax.cli.commands import run

if __name__ == "__main__":
    run()

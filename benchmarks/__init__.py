"""Side-by-side measurements against peers, run from a checkout: `python launch.py bench NAME`."""

"""Side-by-side measurements against PyTorch: `python launch.py bench NAME`."""

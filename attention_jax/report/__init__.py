"""Figures, BLEU and tables of runs, from files and arrays, without JAX."""

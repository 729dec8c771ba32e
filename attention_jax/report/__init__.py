"""What a run looks like: figures, BLEU, tables. Reads files and arrays; computes no model and never imports jax."""

"""Datasets as TFDS builders, vocabularies and batches: NumPy in memory, no JAX and no TensorFlow.

Each dataset module has one `load(config) -> PairData` (see pairs.py); datasets are cached where TFDS caches them
(the environment variable `TFDS_DATA_DIR`, by default ~/tensorflow_datasets).
"""

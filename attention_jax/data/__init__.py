"""Data: rows of files (text_tables.py), what a task trains on (pairs.py, labeled_texts.py, text_windows.py, images.py),
in memory or read while it trains (stream.py), and its batches (batches.py); NumPy, no JAX and no TensorFlow.

The options of a dataset name the function that loads it. What is downloaded (public_texts.py, builders.py) or
made of files (cache.py) is kept where TFDS keeps datasets: in `TFDS_DATA_DIR`, by default ~/tensorflow_datasets.
"""

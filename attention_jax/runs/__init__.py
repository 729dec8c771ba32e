"""Runs on disk: their directories, their life from start to finish, loading, packing, and the Python API."""

"""Training: state, optimizer, one pure step, data parallelism, checkpoints, log, and the one loop (`loop.fit`)."""

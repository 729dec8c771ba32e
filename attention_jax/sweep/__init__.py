"""Sweeps: search spaces, proposals, populations in one compiled program, executors, and the answer at the end.

A sweep is a directory of ordinary run directories (trials/0007/seed0) and an Optuna study. It is a deterministic
function of its settings and of what its runs found: the same command asks for the same points and trains what is not
trained yet, so a sweep may be killed at any moment. To read it, in this order:

  space       the points that `--over` describes
  search      the Optuna study: which points to try next, which trials to stop early
  plan        the settings of a sweep, and how its trials stand
  partition   which runs can train in one compiled program
  driver      ask, train, tell, until no point is left
  executors   where groups of runs are trained: here, in worker processes, on a Ray cluster
  worker      trains one group
  population  the compiled program of a group, which `train.loop` trains
  answer      the table, the figures and the best command
"""

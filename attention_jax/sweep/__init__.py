"""Sweeps: search spaces, proposals, populations in one compiled program, executors, and the answer at the end.

A sweep is a directory. Everything that decides what happens next is written there before it happens (settings.json,
rounds/, groups/), everything that has happened is in ordinary run directories (trials/0007/seed0), and `driver.sweep`
only ever compares the two: so it may be killed at any moment, and the same command goes on. To read it, in this order:

  space       what `--over` says: the points there are
  search      which of them to try next, which to give up
  plan        what the directory says: settings, rounds, how the trials stand
  partition   which runs can train in one compiled program
  driver      propose, write down, run, compare, until nothing is left
  executors   where groups of runs are done: here, in worker processes, on a Ray cluster
  worker      one group, done by one process
  population  its compiled program, which `train.loop` trains
  journal     what optuna's tools read
  answer      the table, the figures and the best command
"""

"""Sweeps: search spaces, samplers, populations in one compiled program, executors, and the summary.

A sweep is a directory of ordinary run directories (trials/0007/seed0) and an Optuna study. It is a deterministic
function of its settings and of the results of its runs: the same command proposes the same points and trains those
that have no result yet, so a sweep may be killed at any moment. The modules, in reading order:

  space       the search space of `--over`
  search      the Optuna study: which points to try next
  plan        the settings of a sweep, and the state of its trials
  partition   which runs can train in one compiled program
  driver      the loop of proposing, training and reporting points to the study
  executors   training of groups in this process, in worker processes, or on a Ray cluster
  worker      trains one group
  batch       the compiled program of a group, which `train.loop` trains
  summary     the table, the figures and the best command
"""

"""Sweeps: search spaces, proposals, populations in one compiled program, executors, and the answer at the end.

A sweep is a directory. Everything that decides what happens next is written there before it happens (settings.json, rounds/,
groups/), everything that has happened is in ordinary run directories (trials/0007/seed0), and `driver.sweep` only ever compares
the two: so it may be killed at any moment, and the same command goes on.
"""

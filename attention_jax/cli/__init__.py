"""The command line: commands, their options, signals, and the cache of compiled programs."""

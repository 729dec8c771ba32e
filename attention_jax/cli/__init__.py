"""The command line: commands, their options, and the cache of compiled programs."""

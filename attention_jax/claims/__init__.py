"""Claims about recorded runs: bounds, verdicts, recording, checks, and the pages of results."""

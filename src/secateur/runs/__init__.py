"""Runs: from a table to a pruned model in a folder, and from there to predictions and exports."""

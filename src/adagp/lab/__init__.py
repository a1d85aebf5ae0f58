"""Experiments: runs side by side, and their pictures."""

"""Tasks: batches to learn from, a loss, and metrics."""

"""What is to be learned: batches, a loss, and how good a model is at it."""

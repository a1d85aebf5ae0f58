"""Products in block floating point: how tensors are converted, and how a model's layers come to compute with them."""

"""The layers of a model whose weight gradient can be predicted (sites), and what is known of their tensors."""

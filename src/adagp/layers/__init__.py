"""The layers of a model whose weight gradient can be predicted (sites), and the layout of their tensors."""

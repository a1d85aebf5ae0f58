"""The library for your own training loop: it trains your model with your optimizer, each batch under its plan."""

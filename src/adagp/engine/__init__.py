"""The library to embed in a training loop: it trains your model with your optimizer, each batch under its plan."""

"""adagp inside other people's training loops: Lightning, transformers, accelerate. Import the one that you use."""

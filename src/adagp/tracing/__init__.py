"""Turns a torch model, an ONNX file or an exported program into a workload, whose cost `adagp.hw` models."""

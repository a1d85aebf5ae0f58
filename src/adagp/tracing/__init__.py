"""From a torch model, an ONNX file or an exported program to the workload that `adagp.hw` costs."""

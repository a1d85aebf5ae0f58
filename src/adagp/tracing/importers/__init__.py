"""Models that come as files: ONNX and torch.export. Their shapes are read; nothing that a file holds is ever run as code."""

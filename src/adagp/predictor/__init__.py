"""From a layer's output to its predicted weight gradient: reorganisation, the shared predictor, the re-mapping variant."""

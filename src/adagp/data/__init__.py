"""Data sets: image sets by name, in memory as numpy arrays. Importing this does not import torch.

`adagp.data.batches` and `adagp.data.loaders` turn them into batches of tensors and need torch.
"""

from adagp.data.images import ImageSet, read_npz
from adagp.data.registry import DATASETS, DEFAULT_DATA_DIR, DatasetInfo, describe_datasets, load_images

__all__ = ["DATASETS", "DEFAULT_DATA_DIR", "DatasetInfo", "ImageSet", "describe_datasets", "load_images", "read_npz"]

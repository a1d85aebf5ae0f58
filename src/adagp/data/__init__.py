"""What to train on: image sets by name, in memory as numpy arrays. Importing this imports no torch.

`adagp.data.batches` and `adagp.data.loaders` turn them into batches of tensors and need torch.
"""

from adagp.data.images import ImageSet, read_npz
from adagp.data.load import DEFAULT_DATA_DIR, describe_datasets, load_images
from adagp.data.registry import DATASETS, DatasetInfo

__all__ = ["DATASETS", "DEFAULT_DATA_DIR", "DatasetInfo", "ImageSet", "describe_datasets", "load_images", "read_npz"]

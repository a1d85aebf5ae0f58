"""Reading a checkpoint of torch.distributed.checkpoint that may be foreign: its table of contents is a pickle.

Only the classes that such a table consists of are admitted, only files that are there, only tensors, and none that claims
more than the files can hold.
"""

import io
import math
import pickle
from collections.abc import Collection
from typing import Any

import torch
import torch.distributed.checkpoint.metadata as tables
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

CONTENTS = ".metadata"
"""The file that says which tensor is where."""
_TABLES = (
    "Metadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)
_ADMITTED = {(tables.__name__, name) for name in _TABLES} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in _ADMITTED
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a table of contents")


class CarefulReader(FileSystemReader):
    """Reads the checkpoint in the folder `path`, which consists of `files` of `size` bytes in all."""

    def __init__(self, path: Any, files: Collection[str], size: int) -> None:
        super().__init__(path)
        self._files, self._size = files, size

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Return the table of contents; raise `UnpicklingError` where it is none."""
        with open(self._get_metadata_path(), "rb") as file:
            found = _Unpickler(io.BytesIO(file.read())).load()
        self._check(found)
        found.storage_meta = tables.StorageMeta(load_id=self.load_id)
        return found  # type: ignore[no-any-return]  # `_check` has seen to it

    def tensors(self) -> dict[str, TensorStorageMetadata]:
        """Return what there is, by name."""
        found = self.read_metadata().state_dict_metadata
        return {name: one for name, one in found.items() if isinstance(one, TensorStorageMetadata)}

    def _check(self, found: Any) -> None:
        if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
            raise pickle.UnpicklingError("it is no table of contents")
        for place in found.storage_data.values():
            if place.relative_path not in self._files or place.transform_descriptors:
                raise pickle.UnpicklingError(f"it names a file that is no part of it: {place.relative_path}")
        for name, one in found.state_dict_metadata.items():
            if not isinstance(one, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"'{name}' is no tensor")
            if math.prod(one.size) * one.properties.dtype.itemsize > self._size:
                raise pickle.UnpicklingError("it claims more than the files can hold")

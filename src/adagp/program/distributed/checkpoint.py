"""Checkpoints of runs in several processes, by torch.distributed.checkpoint: each process writes its part, while it trains.

`checkpoints/7/` is a complete checkpoint: files of tensors from each process, their metadata, and `digests.json`, the digests
of all these files. It is written as `checkpoints/7.tmp/` and renamed when it is complete, after which the previous one is
deleted. So whenever a process dies, the newest complete one is there. On resume incomplete ones are deleted at once, and older
ones after the newest has been read and verified. Nothing is written or deleted through a link.

State that is equal in all processes (`common`) is written once, each process writing a part; sharded tensors (DTensors) are
written by their holders. What a process has of its own is written under its rank. So a run can be continued by another number
of processes: `load` returns the common state, sharded as requested, and what each process had.

A nested state is saved as named tensors, by the path to each; the rest (plain values, small tensors, and where each named
tensor belongs) as one more tensor, of bytes. So a checkpoint holds tensors only, and is read without running foreign code.
"""

import hashlib
import io
import json
import math
import os
import pickle
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.metadata as tables
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from adagp.core.files import TEMPORARY, delete_entries, folder_names, sync_folder, write_atomically
from adagp.core.pickle_screen import check_pickle, check_torch_archive
from adagp.errors import RunError
from adagp.program.distributed.processes import World
from adagp.program.run.documents import TEXT, TableOf, read_document

DIGESTS = "digests.json"
MOST_DIGESTS = 64 * 2**20
COMMON, OWN = "common", "process"


@dataclass(frozen=True)
class Loaded:
    """A checkpoint: the common state, and what each process had of its own, in the order of ranks."""

    common: dict[str, Any]
    own: list[dict[str, Any]]


class Checkpoints:
    """The checkpoints of a run below the folder `path`. All processes of `world` must call each method together."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self._world = world
        # Background collectives must not interleave with those of training: they have a group of their own.
        with world.forming_groups():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=world.timeout))
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None
        self._last = world.first_does(lambda: _newest(path))
        self._next = world.first_does(lambda: _unused_number(path))

    def save(self, common: dict[str, Any], own: dict[str, Any]) -> None:
        """Copy the state, and write it in the background, after the previous checkpoint is complete.

        A process whose `common` is empty holds no copy of the common state.
        """
        self.settle()
        self._last, self._next = self._next, self._next + 1
        folder = self.path / f"{self._last}{TEMPORARY}"
        state = take_apart(own, f"{OWN}/{self._world.rank}")
        if common:
            shared = take_apart(common, COMMON)
            if self._world.rank > 0:
                del shared[COMMON]  # plain values: the first process writes them
            state |= shared
        planner = DefaultSavePlanner(flatten_state_dict=False)
        written = async_save(state, storage_writer=_Writer(folder), planner=planner, process_group=self._group)
        assert isinstance(written, Future)
        self._running = self._background.submit(self._publish, written, folder)

    @property
    def busy(self) -> bool:
        """Whether the last checkpoint is still being written."""
        return self._running is not None and not self._running.done()

    def settle(self) -> None:
        """Wait until the last checkpoint is complete; raise its error if it failed."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _publish(self, written: "Future[Metadata]", folder: Path) -> None:
        """Rename a checkpoint that all processes have written."""
        try:
            written.result()
        except CheckpointException as error:
            raise _reason(error) from None
        names = [name.name for name in folder.glob(f"__{self._world.rank}_*")]
        names += [CONTENTS] if self._world.rank == 0 else []
        digests = {name: _digest(folder / name) for name in names}
        all_digests: list[dict[str, str]] = [{}] * self._world.size
        dist.all_gather_object(all_digests, digests, group=self._group)
        problem: list[BaseException | None] = [None]
        if self._world.rank == 0:
            try:
                _finish(folder, {name: digest for table in all_digests for name, digest in table.items()})
            except (OSError, RunError) as error:
                problem = [error]
        dist.broadcast_object_list(problem, group=self._group)
        if problem[0] is not None:
            raise problem[0]

    def load(self, shards: Mapping[str, Tensor] | None = None) -> Loaded | None:
        """Return the newest checkpoint, if there is one. Tensors with names in `shards` are sharded like those."""
        if not self._last:
            return None
        folder = self.path / str(self._last)
        try:
            reader = self._checked_reader(folder)
            loaded = self._read(reader, shards or {})
            self._world.first_does(lambda: _delete_others(self.path, self._last))
            return loaded
        except RunError:
            raise
        except (CheckpointException, Exception) as error:  # a foreign file can make the reader fail in any way
            cause = _reason(error) if isinstance(error, CheckpointException) else error
            words = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
            raise RunError(
                f"cannot read the checkpoint '{folder}': it is damaged or not a checkpoint ({words})."
            ) from None

    def _checked_reader(self, folder: Path) -> "CarefulReader":
        """Check the digests of all files, each process some of them; return a reader of the checkpoint."""
        digests = read_document(folder / DIGESTS, TableOf(TEXT), MOST_DIGESTS)
        names = sorted(digests)
        if any(os.sep in name for name in names) or CONTENTS not in names:
            raise RunError(f"'{folder / DIGESTS}' does not belong to a checkpoint.")
        checked = names[self._world.rank :: self._world.size]
        damaged = [name for name in checked if not (folder / name).is_file() or _digest(folder / name) != digests[name]]
        for name in chain.from_iterable(self._world.gather(damaged)):
            raise RunError(f"the checkpoint '{folder}' is damaged: its file '{name}' is not what was written.")
        return CarefulReader(folder, names, sum((folder / name).stat().st_size for name in names))

    def _read(self, reader: "CarefulReader", shards: Mapping[str, Tensor]) -> Loaded:
        contents = reader.tensors()
        count = sum(name.count("/") == 1 and name.startswith(f"{OWN}/") for name in contents)
        roots = [COMMON, *(f"{OWN}/{rank}" for rank in range(count))]
        texts = {name: torch.empty(contents[name].size, dtype=torch.uint8) for name in roots}
        self._fill(texts, reader)
        rests = {name: read_rest(text) for name, text in texts.items()}
        named = _empty_tensors(contents, rests, shards)
        self._fill(named, reader)
        common, *own = (put_together(rest, named) for rest in rests.values())
        return Loaded(common, own)

    def _fill(self, state: dict[str, Tensor], reader: "CarefulReader") -> None:
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        load_tensors(state, storage_reader=reader, planner=planner, process_group=self._group)


def _empty_tensors(
    contents: Mapping[str, TensorStorageMetadata], rests: Mapping[str, Any], shards: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return tensors to read the stored ones into: like the shards here, or else in the memory order that `rests` note."""
    orders = {name: order for rest in rests.values() for name, order in memory_orders(rest).items()}
    tensors: dict[str, Tensor] = {}
    for name, entry in contents.items():
        if name in shards:
            tensors[name] = torch.empty_like(shards[name])
        elif name not in rests:
            order = orders.get(name)
            like = torch.empty(entry.size, dtype=entry.properties.dtype)
            tensors[name] = like if order is None else like.new_empty_strided(entry.size, order)
    return tensors


class _Writer(FileSystemWriter):
    """Writes no absolute paths, as a run folder may be moved, and copies the tensors itself.

    torch copies a DTensor by `deepcopy`, which sometimes fails ("invalid python storage", torch 2.13).
    """

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a copy in memory, so that training can go on."""
        self.per_thread_copy_ahead = 0  # as torch does if everything is in memory already
        return {name: in_memory(tensor) for name, tensor in state_dict.items()}

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and name == str(int(name))


def _is_incomplete(name: str) -> bool:
    return name.endswith(TEMPORARY) and _is_number(name.removesuffix(TEMPORARY))


def _newest(path: Path) -> int:
    """Delete incomplete checkpoints; return the number of the newest complete one, 0 if there is none.

    Older ones stay until the newest has been read and verified.
    """
    numbers = [int(name) for name in folder_names(path) if _is_number(name) and (path / name / DIGESTS).is_file()]
    delete_entries(path, _is_incomplete)
    return max(numbers, default=0)


def _unused_number(path: Path) -> int:
    """Return a number above those of all folders and links in `path`, complete checkpoints or not."""
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return max((int(name) for name in names if _is_number(name)), default=0) + 1


def _delete_others(path: Path, number: int) -> None:
    """Delete all checkpoints but the one of this number, which has been verified."""
    delete_entries(path, lambda name: _is_incomplete(name) or (_is_number(name) and int(name) != number))


def _finish(folder: Path, digests: dict[str, str]) -> None:
    write_atomically(folder / DIGESTS, json.dumps(digests, indent=1).encode())
    sync_folder(folder)
    complete = folder.with_suffix("")
    folder.rename(complete)
    sync_folder(folder.parent)
    _delete_others(folder.parent, int(complete.name))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: CheckpointException) -> Exception:
    """Return the first error of a process that can be shown as it is, or all of them as text."""
    for fault, _ in error.failures.values():
        if isinstance(fault, OSError | RuntimeError | RunError):
            return fault
    return RunError(" ".join(str(fault) for fault, _ in error.failures.values()))


# Nested states as named tensors.


SMALL = 64
"""Tensors of up to this many numbers are stored with the plain values."""
_NAMED = "adagp tensor"


def take_apart(state: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors of `state` by names that begin with `name`, and under `name` itself the rest, as bytes."""
    named: dict[str, Tensor] = {}
    rest = io.BytesIO()
    torch.save(_without_tensors(state, name, named), rest)
    return {name: torch.frombuffer(bytearray(rest.getvalue()), dtype=torch.uint8), **named}


def read_rest(saved: Tensor) -> Any:
    """Return what `take_apart` wrote as bytes: the state, with the name of each named tensor in its stead."""
    file = io.BytesIO(saved.numpy().tobytes())
    check_torch_archive(file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def put_together(rest: Any, named: dict[str, Tensor]) -> Any:
    """Undo `take_apart`: return the state, given the result of `read_rest` and the tensors by name."""
    if isinstance(rest, dict):
        if _NAMED in rest:
            return named[rest[_NAMED]]
        return {key: put_together(value, named) for key, value in rest.items()}
    if isinstance(rest, list | tuple):
        return type(rest)(put_together(value, named) for value in rest)
    return rest


def in_memory(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, or of this process's shard of a DTensor, in CPU memory."""
    detached = tensor.detach()
    if detached.device.type != "cpu":
        return detached.cpu()
    return detached.clone() if isinstance(detached, DTensor) else detached.clone(memory_format=torch.contiguous_format)


def memory_orders(rest: Any) -> dict[str, list[int]]:
    """Return the strides of each named tensor that was not a DTensor, to restore its memory order."""
    if isinstance(rest, dict):
        if _NAMED in rest:
            return {rest[_NAMED]: rest["stride"]} if rest["stride"] else {}
        values: Any = rest.values()
    else:
        values = rest if isinstance(rest, list | tuple) else ()
    return {name: stride for value in values for name, stride in memory_orders(value).items()}


def _without_tensors(value: Any, name: str, named: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor) and (isinstance(value, DTensor) or value.numel() > SMALL):
        named[name] = value.detach()
        return {_NAMED: name, "stride": None if isinstance(value, DTensor) else list(value.stride())}
    if isinstance(value, dict):
        return {key: _without_tensors(inner, f"{name}/{key}", named) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_tensors(inner, f"{name}/{index}", named) for index, inner in enumerate(value))
    return value


# Reading the metadata of a checkpoint that may come from elsewhere: it is a pickle. Only the classes of such metadata are
# allowed, only files that are there, only tensors, and none larger than the files.


CONTENTS = ".metadata"
"""The metadata: which tensor is in which file."""
_TABLES = (
    "Metadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)
_ALLOWED = {(tables.__name__, name) for name in _TABLES} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in _ALLOWED
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a checkpoint's metadata")


class CarefulReader(FileSystemReader):
    """Reads the checkpoint in the folder `path`, which consists of `files` of `size` bytes in all."""

    def __init__(self, path: Any, files: Collection[str], size: int) -> None:
        super().__init__(path)
        self._files, self._size = files, size

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Return the metadata; raise `UnpicklingError` if it is not valid."""
        with open(self._get_metadata_path(), "rb") as file:
            content = file.read()
        check_pickle(content)
        metadata = _Unpickler(io.BytesIO(content)).load()
        self._check(metadata)
        metadata.storage_meta = tables.StorageMeta(load_id=self.load_id)
        return metadata  # type: ignore[no-any-return]  # `_check` checks the type

    def tensors(self) -> dict[str, TensorStorageMetadata]:
        """Return the metadata of each tensor, by name."""
        entries = self.read_metadata().state_dict_metadata
        return {name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}

    def _check(self, metadata: Any) -> None:
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError("its metadata has an unexpected form")
        for stored in metadata.storage_data.values():
            if stored.relative_path not in self._files or stored.transform_descriptors:
                raise pickle.UnpicklingError(f"it names a file that is not part of it: {stored.relative_path}")
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"'{name}' is not a tensor")
            if math.prod(entry.size) * entry.properties.dtype.itemsize > self._size:
                raise pickle.UnpicklingError("it claims more data than the files have")

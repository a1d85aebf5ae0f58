"""Checkpoints: written whole or not at all, read without running foreign code."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adagp.errors import RunError
from adagp.run.folder import write_atomically

FORMAT = 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` by `state`: tensors and plain values only."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state that `save_checkpoint` wrote. A damaged or foreign file is refused."""
    try:
        _check_sums(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint at '{path}' yet: nothing to resume.") from None
    except (
        RuntimeError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        EOFError,
        OSError,
        LookupError,
        ValueError,
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"cannot read the checkpoint '{path}': it is damaged or not a checkpoint ({reason}).") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunError(f"'{path}' is not an adagp checkpoint of format {FORMAT}.")
    return state


def _check_sums(path: Path) -> None:
    """Refuse a file whose checksums are wrong: `torch.load` does not look at them and would continue with other numbers."""
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the model's plain state_dict: it loads with `torch.load`, without adagp."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    write_atomically(path, buffer.getvalue())

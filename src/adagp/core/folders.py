"""Folders inside a folder that may come from elsewhere: opened by descriptor, and never through a link.

A link in a foreign run folder must not lead what is written or deleted to another place. Links that stay inside are harmless;
some libraries make them.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adagp.core.files import reason
from adagp.errors import RunError

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def opened_folder(path: Path, *, create: bool = False) -> Iterator[int | None]:
    """Open the folder `path` inside its parent and yield its descriptor, None if there is none; raise if it is a link."""
    descriptor = None
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(path.parent, _FOLDER)
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(path.name, dir_fd=parent)
            descriptor = os.open(path.name, _FOLDER | _NO_LINK, dir_fd=parent)
        finally:
            os.close(parent)
    except FileNotFoundError:
        pass
    except OSError as fault:
        why = "it is a link, which is not followed" if path.is_symlink() else reason(fault)
        raise RunError(f"cannot use the folder '{path}': {why}.") from None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def check_folder(path: Path, *, create: bool = False, deep: bool = True) -> Path:
    """Return the folder `path`, which may be missing; raise if it is a link, or holds one that leads out of it.

    Without `deep` only links directly in the folder count.
    """
    with opened_folder(path, create=create) as descriptor:
        if descriptor is None:
            return path
        root = path.resolve()
        for folder, subfolders, files, inside in os.fwalk(".", dir_fd=descriptor):
            for name in (*subfolders, *files):
                entry = path / folder / name
                if _is_link(name, inside) and not entry.resolve().is_relative_to(root):
                    raise RunError(f"cannot use the folder '{path}': '{entry}' is a link that leads out of it.")
            if not deep:
                break
    return path


def _is_link(name: str, folder: int) -> bool:
    with suppress(OSError):  # it was deleted in between
        os.readlink(name, dir_fd=folder)
        return True
    return False


def delete_folder(path: Path) -> None:
    """Delete the folder `path` with all it holds; of a link, the link alone."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def folder_names(path: Path) -> list[str]:
    """Return the names of the folders in the folder `path`, links left out; raise if it is a link itself."""
    with opened_folder(path) as descriptor:
        if descriptor is None:
            return []
        with os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def delete_entries(path: Path, unwanted: Callable[[str], bool]) -> None:
    """Delete folders and links in the folder `path` whose names are `unwanted`; raise if `path` is a link itself."""
    with opened_folder(path) as descriptor:
        if descriptor is None:
            return
        with os.scandir(descriptor) as entries:
            names = [(entry.name, entry.is_symlink()) for entry in entries if unwanted(entry.name)]
        for name, is_link in names:
            if is_link:
                os.unlink(name, dir_fd=descriptor)
            else:
                shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)

"""Files that users name: read within limits, written whole or not at all, and checked to be writable before any work.

Folders inside a folder that may come from elsewhere are opened by descriptor, and never through a link: a link in a foreign run
folder must not redirect what is written or deleted to another place. Links that stay inside are harmless; some libraries make
them.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adagp.errors import AdagpError, OptionError, RunError

LARGEST_TEXT = 64 * 2**20
"""The most bytes of a text file. No program, workload or configuration that adagp can use is larger."""
TEMPORARY = ".tmp"
"""The ending of a file that is being written."""
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def read_text(path: Path, what: str, error: type[AdagpError] = OptionError) -> str:
    """Return the text in the file `path`; raise `error` if there is none, it is too large, or not UTF-8."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe or a device may never end
            raise OSError(errno.EINVAL, "it is not a file")
        if (size := path.stat().st_size) > LARGEST_TEXT and path.is_file():
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {LARGEST_TEXT:,} are allowed")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise error(f"cannot read {what} '{path}': it is not text.") from None
    except (OSError, ValueError) as fault:  # ValueError: a null character in the name
        raise error(f"cannot read {what} '{path}': {reason(fault)}.") from None


def reason(fault: Exception) -> str:
    """Return why a file operation failed, without the file's name."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault)


def check_output_file(path: Path, doing: str = "write") -> None:
    """Raise if a file cannot be written. `doing` is the verb in the error. Nothing is left behind."""
    try:
        if path.is_dir():
            raise OptionError(f"cannot {doing} '{path}': it is a folder.")
        if not path.parent.is_dir():
            raise OptionError(f"cannot {doing} '{path}': there is no folder '{path.parent}'.")
        if path.is_file():
            path.open("ab").close()
        if path.is_file() or not path.exists():  # opening a pipe might block forever
            temporary = _temporary(path.resolve())
            temporary.unlink(missing_ok=True)
            temporary.open("xb").close()
            temporary.unlink()
    except (OSError, ValueError) as fault:
        if isinstance(fault, OptionError):
            raise
        raise OptionError(f"cannot {doing} '{path}': {reason(fault)}.") from None


def check_output_folder(path: Path) -> None:
    """Raise if a folder can neither be created nor written into. Nothing is left behind."""
    try:
        there = path
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise OptionError(f"cannot write to the folder '{path}': '{there}' is not a folder.")
        tempfile.TemporaryFile(dir=there).close()
    except (OSError, ValueError) as fault:
        if isinstance(fault, OptionError):
            raise
        raise OptionError(f"cannot write to the folder '{path}': {reason(fault)}.") from None


def publish(path: Path, content: bytes) -> None:
    """Write a file that a user has named: whole or not at all.

    A link is followed and the file's permissions are kept, as with a plain write; a device or a pipe is written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    write_atomically(target, content, mode)


def write_atomically(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write `content` so that `path` has either all of it or its previous content, even if the machine stops.

    A file or link that already has the temporary name is removed first: a link in a foreign folder is never written through.
    `mode` sets the permissions; None: those of any new file.
    """
    temporary = _temporary(path)
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            if mode is not None:
                os.chmod(temporary, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # half a file is useless, and the disk may be full
            temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write '{path}': {reason(error)}.") from None
    sync_folder(path.parent)


def append_to(path: Path, content: bytes, size: int) -> bool:
    """Append `content` to a file of `size` bytes; return False, with nothing written, if `path` is not such a file.

    If the disk is full, the file gets its old size back. A crash may leave a part of `content`, so readers must ignore a last
    line without a newline.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | _NO_WAIT | _NO_LINK)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise RunError(f"cannot write '{path}': {reason(error)}.") from None
    finally:
        os.close(descriptor)
    return True


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{TEMPORARY}")


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk, if the system supports that."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


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
    """Return the folder `path`, which may be missing; raise if it is a link, or contains a link that leads out of it.

    Without `deep` only its direct entries are checked. With `create` a missing folder is created.
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
    """Delete the folder `path` and its contents; if it is a link, only the link."""
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

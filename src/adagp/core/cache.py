"""A cache of expensive results in the user's cache folder: a model's size, its traced layers, the report's plotting library.

The folder may vanish, be damaged, full, foreign or read-only at any time: then results are computed again, without a message.
An entry is used only if its digest is right and the same program wrote it: the same source of adagp, the same Python, the same
versions of the libraries that provide models. Entries are data; nothing in them is executed.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path

from adagp._version import __version__, source_digest
from adagp.core.files import read_text
from adagp.errors import AdagpError

T = TypeVar("T")

VARIABLE = "ADAGP_CACHE"
"""The environment variable that replaces the user's cache folder by another one."""
LIBRARIES = ("torch", "torchvision", "timm")
"""Libraries whose versions affect a model, besides adagp."""
MOST_ENTRIES = 500
"""The most files that the cache keeps in the folder; the oldest are deleted."""
UNFINISHED_PREFIX = ".adagp-"
"""The beginning of the name of an entry that is being written."""
OURS = re.compile(rf"[a-z_]+-[0-9a-f]{{24}}\.txt|{re.escape(UNFINISHED_PREFIX)}.+")
"""The names of the cache's own files."""


def cache_root() -> Path | None:
    """Return adagp's cache folder, which may be missing; None for a user without a home."""
    chosen = os.environ.get(VARIABLE)
    path = Path(chosen) if chosen else user_cache_path("adagp", appauthor=False)
    return path if chosen or path.is_absolute() else None


def models_folder() -> Path | None:
    """Return the folder of cached results about models; None if there is no cache folder."""
    root = cache_root()
    return None if root is None else root / "models"


def cached(
    kind: str, key: Mapping[str, Any], find: Callable[[], T], *, write: Callable[[T], str], read: Callable[[str], T]
) -> T:
    """Return the result of `find()`: from the cache, if it was stored before for this `kind` and `key`.

    `key` has plain values. `write` turns the result into text, and `read` turns it back; if `read` raises, the result is
    computed again.
    """
    folder = models_folder()
    if folder is None:
        return find()
    heading = json.dumps({"kind": kind, "key": key, **program()}, sort_keys=True)
    name = hashlib.sha256(json.dumps([kind, key], sort_keys=True).encode()).hexdigest()[:24]
    path = folder / f"{kind}-{name}.txt"
    with suppress(AdagpError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return read(_content(path, heading))
    result = find()
    with suppress(OSError, ValueError):
        text = f"{heading}\n{write(result)}"
        _store(path, f"{_digest(text)}\n{text}")
    return result


def verified_text(digest: str, make: Callable[[], str]) -> str:
    """Return the result of `make()`: from the cache, if the entry has the SHA-256 `digest` that the caller expects.

    So an entry that somebody else wrote is never used, even if it has the heading of this program.
    """
    folder = models_folder()
    if folder is None:
        return make()
    path = folder / f"text-{digest[:24]}.txt"
    with suppress(AdagpError):
        text = read_text(path, "the cache entry")
        if _digest(text) == digest:
            return text
    text = make()
    if _digest(text) == digest:
        with suppress(OSError):
            _store(path, text)
    return text


@cache
def program() -> dict[str, str]:
    """Return the versions on which results depend besides their keys: of adagp, Python and the libraries with models."""
    versions = {"adagp": __version__, "source": source_digest(), "python": sys.version}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return versions


def _content(path: Path, heading: str) -> str:
    """Return the text of an entry; raise ValueError if it is damaged or another program wrote it."""
    digest, _, rest = read_text(path, "the cache entry").partition("\n")
    first_line, _, content = rest.partition("\n")
    if digest != _digest(rest) or first_line != heading:
        raise ValueError("not an entry of this program")
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _store(path: Path, text: str) -> None:
    """Write an entry to a temporary file and rename it, so that processes that store the same entry do not interfere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path.parent)
    descriptor, temporary = tempfile.mkstemp(prefix=UNFINISHED_PREFIX, dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _make_room(folder: Path) -> None:
    """Delete the oldest entries if there are too many, among them unfinished ones of processes that died."""
    cached = (entry for entry in os.scandir(folder) if OURS.fullmatch(entry.name) and entry.is_file())
    entries = sorted((entry.stat().st_mtime, entry.path) for entry in cached)
    for _, path in entries[: max(0, len(entries) - MOST_ENTRIES + 1)]:
        with suppress(OSError):
            os.unlink(path)

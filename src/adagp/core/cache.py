"""A cache of expensive results in the user's cache folder: a model's size, its traced layers, the report's plotting library.

The folder may vanish, be damaged, full, foreign or read-only at any time: then results are computed again, without a message.
An entry is used only if its digest is right, and if the same program wrote it: the same source of adagp, the same Python, the
same versions of the libraries that models come from. Entries are data; nothing in them is run.
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
"""The environment variable that names another folder than the user's cache."""
LIBRARIES = ("torch", "torchvision", "timm")
"""Libraries whose versions affect a model, besides our own."""
MOST_ENTRIES = 500
"""Files of ours in the folder at most; the oldest give way."""
BEGUN = ".adagp-"
"""What the name of an entry that is being written begins with."""
OURS = re.compile(rf"[a-z_]+-[0-9a-f]{{24}}\.txt|{re.escape(BEGUN)}.+")


def cache_root() -> Path | None:
    """Return adagp's cache folder, which need not exist; None for a user without a home."""
    chosen = os.environ.get(VARIABLE)
    path = Path(chosen) if chosen else user_cache_path("adagp", appauthor=False)
    return path if chosen or path.is_absolute() else None


def models_folder() -> Path | None:
    """Return where answers about models are kept, if anywhere."""
    root = cache_root()
    return None if root is None else root / "models"


def cached(
    kind: str, key: Mapping[str, Any], find: Callable[[], T], *, write: Callable[[T], str], read: Callable[[str], T]
) -> T:
    """Return what `find()` returns: of the cache, where it has been found before for this `kind` and `key`.

    `key` has plain values. `write` and `read` turn the answer into text and back; `read` may raise on a text that is none.
    """
    folder = models_folder()
    if folder is None:
        return find()
    heading = json.dumps({"kind": kind, "key": key, **program()}, sort_keys=True)
    name = hashlib.sha256(json.dumps([kind, key], sort_keys=True).encode()).hexdigest()[:24]
    path = folder / f"{kind}-{name}.txt"
    with suppress(AdagpError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return read(_content(path, heading))
    answer = find()
    with suppress(OSError, ValueError):
        text = f"{heading}\n{write(answer)}"
        _keep(path, f"{_digest(text)}\n{text}")
    return answer


def verified_text(digest: str, make: Callable[[], str]) -> str:
    """Return the text that `make()` returns: from the cache, if what is there has the SHA-256 `digest`, which the caller knows.

    So an entry that somebody else wrote is never used, not even one with a heading of this program.
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
            _keep(path, text)
    return text


@cache
def program() -> dict[str, str]:
    """Return what decides the answers besides their keys: this program and the libraries it takes models from."""
    versions = {"adagp": __version__, "source": source_digest(), "python": sys.version}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return versions


def _content(path: Path, heading: str) -> str:
    """Return the text of an entry; raise ValueError if it is damaged, or another program's."""
    digest, _, rest = read_text(path, "the cache entry").partition("\n")
    first_line, _, content = rest.partition("\n")
    if digest != _digest(rest) or first_line != heading:
        raise ValueError("not an entry of this program")
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _keep(path: Path, text: str) -> None:
    """Write an entry under a name of its own first, so that several processes never meet in one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path.parent)
    number, temporary = tempfile.mkstemp(prefix=BEGUN, dir=path.parent)
    try:
        with open(number, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _make_room(folder: Path) -> None:
    """Delete the oldest entries where there are too many; what a process that died has left half done is among them."""
    cached = (entry for entry in os.scandir(folder) if OURS.fullmatch(entry.name) and entry.is_file())
    entries = sorted((entry.stat().st_mtime, entry.path) for entry in cached)
    for _, path in entries[: max(0, len(entries) - MOST_ENTRIES + 1)]:
        with suppress(OSError):
            os.unlink(path)

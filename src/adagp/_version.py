"""Which program this is: the version, read by the build and by run folders, and a digest of the source."""

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.2.0"


@cache
def source_digest() -> str:
    """Return a digest of the program's own source, all of adagp's Python files."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]

"""How much memory is free, and whether something fits into it, asked before it is allocated."""

from pathlib import Path

from adagp.errors import AdagpError


def free_memory() -> int | None:
    """Return the bytes that new processes can have, None if the system does not say."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return None
    lines = (line.split() for line in table.read_text("utf-8").splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), None)


def check_memory(needed: int, what: str, error: type[AdagpError]) -> None:
    """Raise `error` if `what` needs more bytes than are free; where the system does not say, all is taken to fit."""
    free = free_memory()
    if free is not None and needed > free:
        raise error(f"{what} needs {needed / 1e9:,.1f} GB of memory; {free / 1e9:,.1f} GB are free.")

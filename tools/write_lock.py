"""Writes requirements.lock: the pins of constraints.txt with the sha256 of every file that the index has of them.

python -m tools.write_lock INDEX, where INDEX is the address of a package index with the simple API (PEP 503).
"""

import re
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
NOT_LOCKED = ("torch", "torchvision")
"""Their wheels differ by machine (CPU, CUDA) and come from indices of their own: constraints.txt pins their versions."""
HEAD = """# Written by tools/write_lock.py from constraints.txt; `make` installs it with --require-hashes.
# torch and torchvision are not here: their wheels differ by machine. constraints.txt pins them.
"""


def pins(text: str) -> dict[str, str]:
    """Return the versions that a file of constraints pins, by normalised name."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def hashes(index: str, name: str, version: str) -> list[str]:
    """Return the sha256 of all files of a version; yanked ones are left out."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/") as answer:
        page = answer.read().decode("utf-8")
    mark = re.compile(rf"-{re.escape(version)}(-[^/]*\.whl|\.tar\.gz|\.zip)$")
    links = re.findall(r"<a\s([^>]*)>", page)
    files = [re.search(r"/([^/#\"]+)#sha256=([0-9a-f]{64})", link) for link in links if "data-yanked" not in link]
    return sorted({one[2] for one in files if one and mark.search(unquote(one[1]))})


def main(index: str) -> None:
    """Write the lock."""
    lines = [HEAD]
    for name, version in sorted(pins((ROOT / "constraints.txt").read_text("utf-8")).items()):
        if name in NOT_LOCKED:
            continue
        found = hashes(index, name, version)
        if not found:
            raise SystemExit(f"the index has no files of {name} {version}.")
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in found)]) + "\n")
    (ROOT / "requirements.lock").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

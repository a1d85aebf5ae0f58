"""Writes the locks: pins with the sha256 of every file that the index has of them.

python -m tools.write_lock INDEX, where INDEX is the address of a package index with the simple API (PEP 503).

requirements.lock        all pins of constraints.txt
requirements-build.lock  those of them that install adagp from its source: pip itself, and what builds the package
tools/sbom.lock          the pins of tools/sbom.txt: the tool that writes the list of components of a release
"""

import re
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
NOT_LOCKED = ("torch", "torchvision")
"""Their wheels differ by machine (CPU, CUDA) and come from indices of their own: constraints.txt pins their versions."""
BUILD = ("editables", "hatchling", "packaging", "pathspec", "pip", "pluggy", "tomlkit", "trove-classifiers")
"""What installs the source: `make` installs it first, and builds without downloading anything else."""
HEAD = """# Written by tools/write_lock.py; `make` installs it with --require-hashes.
# torch and torchvision are not locked: their wheels differ by machine. constraints.txt pins them.
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
    return sorted({file[2] for file in files if file and mark.search(unquote(file[1]))})


def entry(index: str, name: str, version: str) -> str:
    """Return the lines of a lock for one package."""
    digests = hashes(index, name, version)
    if not digests:
        raise SystemExit(f"the index has no files of {name} {version}.")
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in digests)]) + "\n"


def main(index: str) -> None:
    """Write the locks."""
    versions = pins((ROOT / "constraints.txt").read_text("utf-8"))
    entries = {name: entry(index, name, versions[name]) for name in sorted(versions) if name not in NOT_LOCKED}
    (ROOT / "requirements.lock").write_text(HEAD + "".join(entries.values()), "utf-8")
    (ROOT / "requirements-build.lock").write_text(HEAD + "".join(entries[name] for name in BUILD), "utf-8")
    others = pins((ROOT / "tools" / "sbom.txt").read_text("utf-8"))
    text = "".join(entry(index, name, others[name]) for name in sorted(others))
    (ROOT / "tools" / "sbom.lock").write_text(HEAD.splitlines(keepends=True)[0] + text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

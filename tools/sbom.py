"""Completes the list of components that CycloneDX's tool has written: adagp's own version, and licences that it cannot read.

python -m tools.sbom FILE. The licences are those of docs/licences.md; a component without any is an error.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from adagp._version import __version__

ROOT = Path(__file__).parents[1]


def listed_licences() -> dict[str, str]:
    """Return the licences of docs/licences.md by normalised package name."""
    text = (ROOT / "docs" / "licences.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| [\w.+-]+ \| (.+) \|$", text, re.MULTILINE)
    return {normalised(name): licence for name, licence in rows}


def normalised(name: str) -> str:
    """Return a package's normalised name, as package indices compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def complete(document: dict[str, Any], version: str, licences: dict[str, str]) -> dict[str, Any]:
    """Return the document with adagp's version and a licence for each component."""
    own = document["metadata"]["component"]
    own |= {"version": version, "purl": f"pkg:pypi/{own['name']}@{version}"}
    missing = []
    for component in document["components"]:
        if component.get("licenses"):
            continue
        licence = licences.get(normalised(component["name"]))
        if licence is None:
            missing.append(component["name"])
        else:
            component["licenses"] = [{"license": {"acknowledgement": "declared", "name": licence}}]
    if missing:
        raise SystemExit(f"docs/licences.md lists no licence of {', '.join(missing)}.")
    return document


if __name__ == "__main__":
    path = Path(sys.argv[1])
    document = complete(json.loads(path.read_text("utf-8")), __version__, listed_licences())
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")

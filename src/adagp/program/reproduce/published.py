"""The published figures: every number that ours are compared with, its source in the paper, and the tolerance.

A paper's package holds them in `published.toml` and declares it with `provide("published", __name__)`. The table `[papers]`
has the titles of papers by short name, mostly one. Each other table is a section, named like its experiment. In a section:

paper      which of [papers] it is from; the first of them if left out
source     table or figure, section, page where the text has pages
unit       of the numbers
tolerance  how far ours may be off before it counts as outside
read_off   true where the number was not printed but read off a picture's axis; never compared more finely
claims     what the paper states in words, in ours; `slack` is by how much one may be missed
not_tested why no experiment tests the numbers and claims of the section
set_up     settings of the paper's or our experiments, which are not results; true where the whole section is

`source`, `unit`, `tolerance`, `read_off` and `not_tested` hold for all numbers below them, unless given again further in.
A number or claim has a path, such as adagp-table1/cifar10/vgg13/bp, by which verdicts refer to it.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from adagp.core.registry import providers
from adagp.errors import unknown_name

KIND, FILE = "published", "published.toml"
INHERITED = ("source", "unit", "tolerance", "read_off", "not_tested")
NO_RESULTS = (*INHERITED, "paper", "slack", "set_up")
"""Keys of a section whose values are not published results."""


@dataclass(frozen=True)
class Number:
    """A published number. `tolerance` None: no comparison within it is meant. `read_off`: read off a picture's axis."""

    value: float
    unit: str
    source: str
    tolerance: float | None = None
    read_off: bool = False
    path: str = ""
    not_tested: str = ""


@dataclass(frozen=True)
class Claim:
    """Something that a paper states in words."""

    text: str
    source: str
    path: str = ""
    not_tested: str = ""


@dataclass(frozen=True)
class Section:
    """What was published in one table, figure or study."""

    name: str
    paper: str
    content: dict[str, Any]

    def number(self, *path: str) -> Number:
        """Return the number at `path`; what holds for all numbers around it holds for it."""
        here: Any = self.content
        known = {name: here[name] for name in INHERITED if name in here}
        for step in path:
            here = here[int(step) if isinstance(here, list) else step]
            if isinstance(here, dict):
                known |= {name: here[name] for name in INHERITED if name in here}
        return Number(
            float(here),
            unit=known.get("unit", ""),
            source=known["source"],
            tolerance=known.get("tolerance"),
            read_off=known.get("read_off", False),
            path="/".join((self.name, *path)),
            not_tested=known.get("not_tested", ""),
        )

    def numbers(self, *path: str) -> dict[str, float]:
        """Return the plain numbers of the table at `path` by name."""
        here: Any = self.content
        for step in path:
            here = here[step]
        return {name: float(value) for name, value in here.items() if name not in INHERITED}

    def claim(self, name: str) -> Claim:
        """Return a claim in words; its source may be elsewhere in the paper than that of the numbers."""
        claims = self.content["claims"]
        reason = claims.get("not_tested", self.content.get("not_tested", ""))
        return Claim(
            str(claims[name]), str(claims.get("source", self.content["source"])), f"{self.name}/claims/{name}", reason
        )

    def items(self) -> list[Number | Claim]:
        """Return every number and claim of the section, in the order of the file."""
        if self.content.get("set_up") is True:
            return []
        return [self.claim(path[1]) if path[0] == "claims" else self.number(*path) for path in _paths(self.content, ())]

    def set_up(self, name: str) -> float:
        """Return a setting of our experiment on the section."""
        return float(self.content["set_up"][name])

    @property
    def slack(self) -> float:
        """By how much a claim of being similar may be missed, as the paper's own figures miss it."""
        return float(self.content["claims"]["slack"])


def _paths(content: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(content, dict):
        for name, value in content.items():
            if name not in NO_RESULTS:
                yield from _paths(value, (*path, name))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _paths(value, (*path, str(index)))
    else:
        yield path


def read_sections(file: Path | Traversable) -> dict[str, Section]:
    """Return the sections of a file of published figures by name, in their order."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    first = next(iter(content.pop("papers")))
    return {name: Section(name, section.get("paper", first), section) for name, section in content.items()}


def published(name: str) -> Section:
    """Return the section called `name`."""
    sections = published_sections()
    if name not in sections:
        raise unknown_name("published section", name, sections)
    return sections[name]


def published_sections() -> dict[str, Section]:
    """Return the sections of all papers and plug-ins by name, in the order in which these were loaded."""
    sections: dict[str, Section] = {}
    for package in providers(KIND):
        sections |= _of_package(package)
    return sections


def paper_titles() -> dict[str, str]:
    """Return the titles of all papers by short name."""
    titles: dict[str, str] = {}
    for package in providers(KIND):
        titles |= tomllib.loads((files(package) / FILE).read_text(encoding="utf-8"))["papers"]
    return titles


@cache
def _of_package(package: str) -> dict[str, Section]:
    return read_sections(files(package) / FILE)

"""The published figures: every number that ours are compared with, from `published.toml`, with its source and tolerance."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from adagp.errors import unknown_name

INHERITED = ("place", "unit", "tolerance", "read_off")


@dataclass(frozen=True)
class Number:
    """A published number. `tolerance` None: no comparison within it is meant. `read_off`: read off a picture's axis."""

    value: float
    unit: str
    source: str
    tolerance: float | None = None
    read_off: bool = False


@dataclass(frozen=True)
class Claim:
    """Something that a paper says in words."""

    text: str
    source: str


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
            here = here[step]
            if isinstance(here, dict):
                known |= {name: here[name] for name in INHERITED if name in here}
        return Number(
            float(here),
            unit=known.get("unit", ""),
            source=known["place"],
            tolerance=known.get("tolerance"),
            read_off=known.get("read_off", False),
        )

    def numbers(self, *path: str) -> dict[str, float]:
        """Return the plain numbers of the table at `path` by name."""
        here: Any = self.content
        for step in path:
            here = here[step]
        return {name: float(value) for name, value in here.items() if name not in INHERITED}

    def claim(self, name: str) -> Claim:
        """Return what the paper says in words; claims may stand elsewhere in the paper than the numbers."""
        claims = self.content["claims"]
        return Claim(str(claims[name]), str(claims.get("place", self.content["place"])))

    @property
    def slack(self) -> float:
        """By how much a claim of being similar may be missed, as the paper's own figures miss it."""
        return float(self.content["claims"]["slack"])


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads((files("adagp.program.reproduce") / "published.toml").read_text(encoding="utf-8"))


def published(name: str) -> Section:
    """Return the section called `name`."""
    if name not in section_names():
        raise unknown_name("published section", name, section_names())
    content = _content()[name]
    return Section(name, content["paper"], content)


def papers() -> dict[str, str]:
    """Return the papers' titles by their short names."""
    return dict(_content()["papers"])


def section_names() -> list[str]:
    """Return the names of the sections, in their order."""
    return [name for name in _content() if name != "papers"]

"""Fixtures that the tests of papers share with those of sources and experiments."""

from tests.program.reproduce.conftest import pretend
from tests.sources.conftest import bound, sites, watch

__all__ = ["bound", "pretend", "sites", "watch"]

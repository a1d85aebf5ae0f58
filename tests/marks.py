"""Marks for parameters of which `make test` runs a sample."""

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Return a set of parameters that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)

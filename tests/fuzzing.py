"""How many examples fuzzers try: a fixed set, more of them in `make test-slow`, or with `pytest --fuzz N` as many others."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

VARIABLE = "ADAGP_FUZZ"
"""Passes the option on to the modules of tests, which are imported later, and to other processes."""
SLOW = "ADAGP_FUZZ_SLOW"
"""Set in `make test-slow`."""
_repeated: list[settings] = []


def fuzzed(examples: int, slow: int | None = None) -> settings:
    """Return the settings of a fuzzer that tries `examples` by default, and `slow` of them in `make test-slow`."""
    chosen = int(os.environ.get(VARIABLE, "0"))
    made = settings(
        max_examples=chosen or (slow if slow and os.environ.get(SLOW) else examples),
        derandomize=not chosen,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    if slow:
        _repeated.append(made)
    return made


def is_repeated(function: Any) -> bool:
    """Return whether `make test-slow` runs a fuzzer of `make test` again, with more examples."""
    return any(getattr(function, "_hypothesis_internal_use_settings", None) is made for made in _repeated)

"""How many examples fuzzers try: a fixed set, or with `pytest --fuzz N` as many others."""

import os

from hypothesis import HealthCheck, settings

VARIABLE = "ADAGP_FUZZ"
"""Passes the option on to the modules of tests, which are imported later, and to other processes."""


def fuzzed(examples: int) -> settings:
    """Return the settings of a fuzzer that tries `examples` by default."""
    chosen = int(os.environ.get(VARIABLE, "0"))
    return settings(
        max_examples=chosen or examples,
        derandomize=not chosen,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )

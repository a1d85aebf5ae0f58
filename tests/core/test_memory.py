"""Free memory, and what does not fit into it."""

import pytest

from adagp.core import memory
from adagp.errors import DataError


def test_free_memory_is_read_from_the_system() -> None:
    free = memory.free_memory()
    assert free is None or free > 2**20


def test_what_does_not_fit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * 10**9)
    memory.check_memory(2 * 10**9, "it", DataError)
    with pytest.raises(DataError, match=r"^it needs 20\.0 GB of memory; 2\.0 GB are free\.$"):
        memory.check_memory(20 * 10**9, "it", DataError)
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    memory.check_memory(10**15, "it", DataError)

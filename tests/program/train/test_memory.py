import pytest
import torch

from adagp.program.train.memory import peak_memory


@pytest.mark.medium
def test_the_peak_rises_with_what_is_allocated_and_stays() -> None:
    before = peak_memory(torch.device("cpu"))
    assert before > 2**20
    block = torch.ones(max(before, 2**28) // 4)  # more than was ever free inside the process
    held = peak_memory(torch.device("cpu"))
    assert held >= block.numel() * 4
    assert held > before
    del block
    assert peak_memory(torch.device("cpu")) >= held - 2**24  # the system counts in strides

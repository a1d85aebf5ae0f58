"""Checkpoints: nothing that was damaged on the way passes as other numbers."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.test_pickle_screen import nested_key, with_pickle

from adagp.errors import OptionError, RunError
from adagp.program.train.checkpoint import digest_of, load_checkpoint, read_weights, save_checkpoint

STATE: dict[str, Any] = {
    "model": {"weight": torch.arange(12.0).reshape(3, 4), "empty": torch.zeros(0), "count": torch.tensor(3)},
    "optimizer": {"state": {0: {"step": 2.5}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "name": None}]},
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, STATE)
    assert digest_of(load_checkpoint(path)) == digest_of(STATE)


def test_every_change_changes_the_digest() -> None:
    """Values, kinds, shapes, names and order: all of them are in it."""
    weight = torch.arange(12.0)
    variants = [
        weight,
        weight.reshape(3, 4),
        weight.double(),
        weight.flip(0),
        weight.tolist(),
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"a": 1.0, "b": 2},
        {"a": True, "b": 2},
        {"a": "1", "b": 2},
        [1, [2]],
        [[1], 2],
        [1, 2],
        None,
        "None",
        0.0,
        -0.0,
    ]
    assert len({digest_of(one) for one in variants}) == len(variants)


def test_the_memory_format_does_not_matter() -> None:
    weight = torch.randn(2, 3, 4, 4)
    assert digest_of(weight) == digest_of(weight.to(memory_format=torch.channels_last))


def test_a_part_that_is_not_what_was_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, STATE)
    content = torch.load(path, weights_only=True)
    content["model"]["weight"][1, 2] += 1
    torch.save(content, path)
    with pytest.raises(RunError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == f"the checkpoint '{path}' is damaged: its part 'model' is not what was written."
    del content["model"]
    torch.save(content, path)
    with pytest.raises(RunError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == f"the checkpoint '{path}' is damaged: its parts are not those that were written."


def test_checkpoints_of_before_there_were_digests_are_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": 1, **STATE}, path)
    assert digest_of(load_checkpoint(path)) == digest_of(STATE)


def archive(path: Path, compression: int) -> None:
    """Write the same archive again, compressed or not."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as before, zipfile.ZipFile(path, "w", compression) as after:
        for name in before.namelist():
            after.writestr(name, before.read(name))


def nested(depth: int) -> list[Any]:
    """Return ten lists in ten lists ..., all of them the same: short to write, endless to read."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value] * 10
    return value


def test_a_file_that_claims_more_than_it_holds_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, STATE)
    archive(path, zipfile.ZIP_STORED)
    load_checkpoint(path)
    archive(path, zipfile.ZIP_DEFLATED)
    with pytest.raises(RunError, match=r"is compressed\)\.$"):
        load_checkpoint(path)
    for value in (torch.zeros(1).expand(10**12), nested(12)):
        torch.save({"format": 1, "model": value}, path)
        with pytest.raises(RunError, match=r"\(it claims more than the file can hold\)\.$"):
            load_checkpoint(path)


@pytest.mark.medium
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4), st.booleans()
)
def test_no_damage_passes_as_other_numbers(tmp_path: Path, changes: list[tuple[float, int]], cut: bool) -> None:
    """Any bytes changed, anywhere in the file: it is rejected, or it is as if nothing had happened."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, STATE)
    content = bytearray(path.read_bytes())
    for place, change in changes:
        content[int(place * len(content))] ^= change
    path.write_bytes(content[: len(content) // 2] if cut else content)
    try:
        read = load_checkpoint(path)
    except RunError:
        return
    assert digest_of(read) == digest_of(STATE)


UNUSUAL: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "on the device meta": lambda: torch.ones(3, device="meta"),
}


@pytest.mark.filterwarnings("ignore")  # torch announces the end of quantised tensors
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_no_plain_numbers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"weight": UNUSUAL[kind]()}, path)
    with pytest.raises(OptionError) as caught:
        read_weights(path)
    assert str(caught.value) == (
        f"cannot read the weights '{path}': 'weight' is {kind}; weights must be plain tensors."
    )
    torch.save({"format": 1, "weight": UNUSUAL[kind]()}, path)
    with pytest.raises(RunError) as failed:
        load_checkpoint(path)
    assert str(failed.value) == (
        f"cannot read the checkpoint '{path}': it is damaged or not a checkpoint (it holds a tensor that is {kind})."
    )


def test_keys_that_would_take_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"weight": torch.ones(3)}, path)
    path.write_bytes(with_pickle(path.read_bytes(), nested_key(60)))
    with pytest.raises(RunError, match="its keys are nested in a way that would take too long to read"):
        load_checkpoint(path)
    with pytest.raises(OptionError, match="its keys are nested in a way that would take too long to read"):
        read_weights(path)

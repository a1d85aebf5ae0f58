"""Checkpoints that several processes write: whole or not at all, while training goes on, read without foreign code."""

import json
import os
import pickle
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from tests.core.test_pickle_screen import nested_key
from tests.damage import damaged
from tests.fuzzing import fuzzed
from tests.marks import slow
from tests.program.distributed.conftest import free_port, introduce, run_forks
from tests.time_limit import time_limit
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import adagp.program.distributed.checkpoint as checkpoint
from adagp.errors import RunError
from adagp.program.distributed.checkpoint import (
    DIGESTS,
    SMALL,
    Checkpoints,
    memory_orders,
    put_together,
    read_rest,
    take_apart,
)
from adagp.program.distributed.processes import World
from adagp.program.train.checkpoint import digest_of

pytestmark = pytest.mark.medium


def state(number: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((40, 30), float(number)).t()},
        "trainer": {"epoch": number, "norm": torch.ones(3)},
    }


@pytest.fixture
def world(one_process: None) -> World:
    return World.join("cpu", 20)


def test_a_saved_checkpoint_is_loaded(world: World, tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, world)
    assert kept.load() is None
    kept.save(state(1), {"random": torch.get_rng_state()})
    kept.save(state(2), {"random": torch.get_rng_state()})
    kept.settle()
    assert [one.name for one in tmp_path.iterdir()] == ["2"]
    found = Checkpoints(tmp_path, world).load()
    assert found is not None
    assert digest_of(found.common) == digest_of(state(2))
    assert found.common["model"]["weight"].stride() == state(2)["model"]["weight"].stride()
    assert torch.equal(found.own[0]["random"], torch.get_rng_state())


def test_training_continues_while_a_checkpoint_is_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, digest = threading.Event(), checkpoint._digest
    monkeypatch.setattr(checkpoint, "_digest", lambda path: may_go_on.wait(20) and digest(path))
    kept, moving = Checkpoints(tmp_path, world), state(1)
    kept.save(moving, {})
    moving["model"]["weight"].fill_(7)
    assert kept.busy
    assert not (tmp_path / "1").exists()
    may_go_on.set()
    kept.settle()
    found = kept.load()
    assert found is not None
    assert digest_of(found.common) == digest_of(state(1))


def test_an_error_while_writing_is_raised(world: World, tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "file", world)
    (tmp_path / "file").touch()
    kept.save(state(1), {})
    with pytest.raises(OSError, match="Not a directory|File exists"):
        kept.settle()


def rejection(folder: Path, world: World) -> str:
    with pytest.raises(RunError) as raised:
        Checkpoints(folder, world).load()
    return str(raised.value)


def test_a_damaged_checkpoint_is_rejected(world: World, tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, world)
    kept.save(state(1), {})
    kept.settle()
    for name in ("__0_0.distcp", ".metadata"):
        path = tmp_path / "1" / name
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert rejection(tmp_path, world) == (
            f"the checkpoint '{tmp_path / '1'}' is damaged: its file '{name}' is not what was written."
        )
        path.write_bytes(content)
    (tmp_path / "1" / "__0_0.distcp").unlink()
    assert "'__0_0.distcp' is not what was written." in rejection(tmp_path, world)


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("owned",)


def forged(folder: Path, contents: Any) -> None:
    """Replace the metadata of a checkpoint, with the right digest."""
    path = folder / "1" / ".metadata"
    path.write_bytes(pickle.dumps(contents))
    digests = json.loads((folder / "1" / DIGESTS).read_text("utf-8"))
    (folder / "1" / DIGESTS).write_text(json.dumps(digests | {".metadata": checkpoint._digest(path)}), "utf-8")


def test_foreign_metadata_run_no_code(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").mkdir()
    kept = Checkpoints(Path("kept"), world)
    kept.save(state(1), {})
    kept.settle()
    own = pickle.loads(Path("kept/1/.metadata").read_bytes())
    forged(Path("kept"), Evil())
    assert rejection(Path("kept"), world) == (
        "cannot read the checkpoint 'kept/1': it is damaged or not a checkpoint "
        "(posix.mkdir is not allowed in a checkpoint's metadata)."
    )
    assert not Path("owned").exists()
    for place in own.storage_data.values():
        place.relative_path = "../../secret"
    forged(Path("kept"), own)
    assert "it names a file that is not part of it: ../../secret" in rejection(Path("kept"), world)


def save_and_watch(folder: Path, copies: Path) -> None:
    """Save twice; before each file operation of the second time, copy the folder."""
    from tests.crash_points import Copies

    introduce(0, 1, free_port())
    kept = Checkpoints(folder, World.join("cpu", 20))
    kept.save(state(1), {})
    kept.settle()
    watched = Copies(folder, copies)
    kept.save(state(2), {})
    kept.settle()
    watched.busy = True


def test_a_kill_before_any_file_operation_leaves_a_complete_checkpoint(tmp_path: Path, one_process: None) -> None:
    folder, copies = tmp_path / "kept", tmp_path / "copies"
    folder.mkdir()
    copies.mkdir()
    assert run_forks(save_and_watch, [(folder, copies)]) == [0]
    world = World.join("cpu", 20)
    points = sorted(copies.iterdir())
    assert len(points) > 5
    seen = set()
    for copy in points:
        found = Checkpoints(copy, world).load()
        assert found is not None
        epoch = found.common["trainer"]["epoch"]
        assert digest_of(found.common) == digest_of(state(epoch)), copy.name
        seen.add(epoch)
        assert len(list(copy.iterdir())) == 1  # what was half written is gone
        shutil.rmtree(copy)
    assert seen == {1, 2}


def hold_shards(rank: int, size: int, port: int, folder: Path, saves: bool) -> None:
    """Save a tensor that is sharded over the processes, or read it, sharded over others."""
    introduce(rank, size, port)
    world = World.join("cpu", 20)
    whole = torch.arange(70.0).view(7, 10)  # no number of processes divides it
    spread = distribute_tensor(whole if saves else torch.zeros(7, 10), init_device_mesh("cpu", (size,)), [Shard(0)])
    kept = Checkpoints(folder, world)
    if saves:
        kept.save({"model": {"weight": spread, "bias": torch.ones(99)}}, {"rank": rank})
        kept.settle()
        return
    found = kept.load({"common/model/weight": spread})
    assert found is not None
    read = found.common["model"]["weight"]
    assert isinstance(read, DTensor)
    assert torch.equal(read.to_local(), whole.chunk(size)[rank] if rank < len(whole.chunk(size)) else whole[:0])
    assert torch.equal(found.common["model"]["bias"], torch.ones(99))
    assert [one["rank"] for one in found.own] == [0, 1]


@pytest.mark.slow
def test_shards_are_read_by_another_number_of_processes(tmp_path: Path) -> None:
    for size, saves in ((2, True), (2, False), (3, False), (1, False)):
        port = free_port()
        assert (
            run_forks(hold_shards, [(rank, size, port, tmp_path / "kept", saves) for rank in range(size)]) == [0] * size
        )
    files = {path.name for path in (tmp_path / "kept" / "1").iterdir()}
    assert files == {"__0_0.distcp", "__1_0.distcp", ".metadata", DIGESTS}  # each has written its part


def test_a_state_is_taken_apart_and_put_together() -> None:
    turned = torch.arange(600.0).view(2, 3, 10, 10).contiguous(memory_format=torch.channels_last)
    state = {
        "model": {"weight": turned, "bias": torch.ones(SMALL)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "momentum": torch.randn(SMALL + 1)}},
            "groups": [{"lr": 0.1}],
        },
        "plain": (None, True, "text", [torch.zeros(0)], float("inf")),
    }
    named = take_apart(state, "common")
    assert set(named) == {"common", "common/model/weight", "common/optimizer/state/0/momentum"}
    rest = read_rest(named.pop("common"))
    assert memory_orders(rest)["common/model/weight"] == list(turned.stride())
    assert digest_of(put_together(rest, named)) == digest_of(state)


def test_a_link_to_checkpoints_is_not_followed(world: World, tmp_path: Path) -> None:
    for name in ("1", "2", "99", "3.tmp"):
        (tmp_path / "target" / name).mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "target")
    with pytest.raises(RunError) as raised:
        Checkpoints(tmp_path / "checkpoints", world)
    link = tmp_path / "checkpoints"
    assert str(raised.value) == f"cannot use the folder '{link}': it is a link, which is not followed."
    assert sorted(entry.name for entry in (tmp_path / "target").iterdir()) == ["1", "2", "3.tmp", "99"]


def test_a_sound_checkpoint_stays_until_its_successor_is_verified(world: World, tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, world)
    first.save(state(1), {})
    first.settle()
    (tmp_path / "99").mkdir()
    (tmp_path / "x.tmp").mkdir()
    resumed = Checkpoints(tmp_path, world)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "99", "x.tmp"]
    loaded = resumed.load()
    assert loaded is not None
    assert digest_of(loaded.common) == digest_of(state(1))
    shutil.copytree(tmp_path / "1", tmp_path / "7")
    (tmp_path / "7" / "__0_0.distcp").write_bytes(b"")
    assert "'__0_0.distcp' is not what was written." in rejection(tmp_path, world)
    assert (tmp_path / "1").is_dir()
    shutil.rmtree(tmp_path / "7")
    resumed.save(state(2), {})
    resumed.settle()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["100", "x.tmp"]


def test_metadata_that_would_take_for_ever(world: World, tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path, world)
    saved.save(state(1), {})
    saved.settle()
    path = tmp_path / "1" / ".metadata"
    path.write_bytes(nested_key(60))
    digests = json.loads((tmp_path / "1" / DIGESTS).read_text("utf-8"))
    (tmp_path / "1" / DIGESTS).write_text(json.dumps(digests | {".metadata": checkpoint._digest(path)}), "utf-8")
    assert "(its keys are nested in a way that would take too long to read)" in rejection(tmp_path, world)


@pytest.mark.parametrize("examples", [15, slow(300)])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_damage_with_the_right_digests_ends_in_a_sentence(
    world: World, tmp_path: Path, name: str, examples: int
) -> None:
    """As somebody would write it who knows the format: other weights may pass, nothing else."""
    saved = Checkpoints(tmp_path, world)
    saved.save(state(1), {})
    saved.settle()
    path = tmp_path / "1" / name
    whole, digests = path.read_bytes(), json.loads((tmp_path / "1" / DIGESTS).read_text("utf-8"))

    @fuzzed(examples)
    @given(damaged(whole))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        (tmp_path / "1" / DIGESTS).write_text(json.dumps(digests | {name: checkpoint._digest(path)}), "utf-8")
        with time_limit(), suppress(RunError):
            saved.load()

    check()

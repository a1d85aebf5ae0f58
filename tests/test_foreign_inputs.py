"""Files that anybody may have written, damaged in many ways: each reader gives what it can use, or says what is wrong.

Never anything but an error of adagp's own, never a hang. Run folders have tests of their own, in `cli/test_foreign_files.py`.
"""

import gzip
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.damage import altered, damaged
from tests.fuzzing import fuzzed
from tests.time_limit import time_limit

from adagp.core.plan import Phase
from adagp.data.detection import letterboxed, read_one, read_voc
from adagp.data.translation import load_multi30k
from adagp.errors import AdagpError
from adagp.hw import Accelerator, Attention, Convolution, Elementwise, Linear, Workload, load_workload, simulate
from adagp.hw.energy import Technology, energy_table
from adagp.hw.runs import scheduled_run
from adagp.pipe import constant_costs, generate, parse_program
from adagp.pipe import simulate as dry_run
from adagp.schedules import parse_schedule
from adagp.tracing.exported_program import load_exported_program
from adagp.tracing.onnx_model import load_onnx

pytestmark = pytest.mark.medium

some = fuzzed(60, slow=600)


@contextmanager
def answers() -> Iterator[None]:
    """Let errors of our own pass; fail what takes too long."""
    with suppress(AdagpError), time_limit():
        yield


WORKLOAD = Workload(
    "all",
    (
        Convolution("stem", 3, 8, (3, 3), (8, 8), (4, 4), (2, 2), input_gradient=False),
        Convolution("depthwise", 8, 8, (3, 3), (4, 4), (4, 4), groups=8),
        Elementwise("norm", "native_batch_norm", 100, 100),
        Attention("attention", 2, 5, 8, 5),
        Linear("head", 1, 64, 10),
    ),
)


def cost(path: Path) -> None:
    """Read a workload and cost a run of it."""
    simulate(load_workload(path), Accelerator(), scheduled_run(parse_schedule("1:1", 2, 1, "predicted"), 2, 1000, 10))


@some
@given(altered(json.loads(WORKLOAD.to_json())))
def test_workloads(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "it.json"
    path.write_text(json.dumps(document))
    with answers():
        cost(path)


@some
@given(damaged(WORKLOAD.to_json().encode()))
def test_workloads_byte_by_byte(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(content)
    with answers():
        cost(path)


@some
@given(damaged(str(generate("dapple", 2, 2, (Phase.GP, Phase.BP))).encode()))
def test_programs_of_pipelines(content: bytes) -> None:
    with answers():
        program = parse_program(content.decode(errors="replace"))
        dry_run(program, constant_costs(len(program.devices)))


@some
@given(damaged((files("adagp.hw") / "energy_table.csv").read_bytes()))
def test_energy_tables(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.csv"
    path.write_bytes(content)
    energy_table.cache_clear()
    with answers():
        table = Accelerator(technology=Technology(table=str(path)))
        simulate(WORKLOAD, table, scheduled_run(parse_schedule("1:1", 2, 1, "predicted"), 2, 1000, 10))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files in a program of torch.export by name."""
    import torch
    from torch import nn

    path = tmp_path_factory.mktemp("exported") / "it.pt2"
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    torch.export.save(torch.export.export(model, (torch.zeros(2, 3, 4, 4),)), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@some
@given(st.data())
def test_exported_programs(tmp_path: Path, exported: dict[str, bytes], data: st.DataObject) -> None:
    path, names = tmp_path / "it.pt2", [name for name in exported if name.endswith("models/model.json")]
    graph = data.draw(altered(json.loads(exported[names[0]])["graph_module"]))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in exported.items():
            archive.writestr(name, json.dumps({"graph_module": graph}) if name in names else content)
    with answers():
        load_exported_program(path)


@pytest.fixture(scope="module")
def onnx_model() -> bytes:
    """Return a file of a convolution, an activation and a product."""
    onnx = pytest.importorskip("onnx")
    import numpy as np

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = {"w": (4, 3, 3, 3), "v": (5, 144)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "v"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, [2, 3, 6, 6])],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.zeros(size, np.float32), name) for name, size in weights.items()],
    )
    found: bytes = helper.make_model(graph, ir_version=10).SerializeToString()
    return found


@some
@given(st.data())
def test_onnx_models(tmp_path: Path, onnx_model: bytes, data: st.DataObject) -> None:
    path = tmp_path / "it.onnx"
    path.write_bytes(data.draw(damaged(onnx_model)))
    with answers():
        load_onnx(path)


@some
@given(damaged("Ein Satz.\nNoch ein Satz mit Wörtern.\n".encode()), st.booleans())
def test_translations(tmp_path: Path, content: bytes, packed: bool) -> None:
    for name in ("train.de", "train.en", "val.de", "val.en"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "val.en.gz").write_bytes(gzip.compress(content)[: -4 if packed else None])
    with answers():
        load_multi30k(tmp_path)


@some
@given(st.data(), st.sampled_from(["ImageSets/Main/train.txt", "Annotations/a.xml", "JPEGImages/a.jpg"]))
def test_pictures_with_boxes(tmp_path: Path, write_devkit: Callable[..., Path], data: st.DataObject, name: str) -> None:
    folder = write_devkit({"a": [("dog", (5, 5, 20, 20), False)]}, {"b": [("cat", (1, 1, 9, 9), True)]})
    path = folder / "VOC2012" / name
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with answers():
        for sample in read_voc(folder)[0]:
            read_one(sample, 32)
            letterboxed(sample, 32)


def test_the_fuzz_check_detects_errors() -> None:
    with pytest.raises(KeyError), answers():
        raise KeyError("a defect")

"""Models from elsewhere are read in a limited process: the same workload, and a sentence where the process dies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adagp.core.limits import Limits
from adagp.errors import DataError
from adagp.tracing.exported_program import load_exported_program
from adagp.tracing.isolated import MEMORY, SECONDS, import_model
from adagp.tracing.onnx_model import load_onnx

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an exported program."""
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    torch.export.save(torch.export.export(model, (torch.zeros(2, 3, 8, 8),)), path)
    return path


@pytest.mark.filterwarnings("ignore")
def test_the_workload_is_that_of_this_process(program: Path) -> None:
    assert import_model(program, (3, 8, 8)) == load_exported_program(program, (3, 8, 8))


def test_an_onnx_model_is_read_in_its_process(tmp_path: Path) -> None:
    """Within its limits: it cannot write a file, not even to find out where temporary files would be."""
    onnx = pytest.importorskip("onnx")
    kind, make, path = onnx.TensorProto.FLOAT, onnx.helper, tmp_path / "net.onnx"
    images = make.make_tensor_value_info("x", kind, [2, 3, 8, 8])
    weight = make.make_tensor("w", kind, [4, 3, 3, 3], [0.0] * 108)
    node = make.make_node("Conv", ["x", "w"], ["y"])
    graph = make.make_graph([node], "net", [images], [make.make_tensor_value_info("y", kind, None)], [weight])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=10), path)
    assert import_model(path, None) == load_onnx(path)


@pytest.mark.parametrize(
    ("file", "shape", "message"),
    [
        ("nowhere.pt2", None, "there is no file nowhere.pt2."),
        ("nowhere.onnx", None, "there is no file nowhere.onnx."),
        ("", (3, 9, 9), "{path} was exported for samples of 3x8x8, not 3x9x9; export it again for others."),
    ],
)
def test_errors_are_those_of_this_process(program: Path, file: str, shape: Any, message: str) -> None:
    path = Path(file) if file else program
    with pytest.raises(DataError) as caught:
        import_model(path, shape)
    assert str(caught.value) == message.format(path=path)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(1, MEMORY, 0), "the process that reads it took too long."),
        (Limits(SECONDS, 1, 0), ""),
    ],
)
def test_a_process_beyond_its_limits_is_named(program: Path, limits: Limits, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        import_model(program, None, limits)
    assert str(caught.value).startswith(f"{program} cannot be read: {reason}") or "damaged" in str(caught.value)

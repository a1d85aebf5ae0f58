"""ONNX models, written here node by node, are read to the layers that the same nets have in torch."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from adagp.errors import DataError
from adagp.hw import Attention, Convolution, Elementwise, Linear
from adagp.tracing.onnx_model import load_onnx
from adagp.tracing.tracer import trace

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from adagp.tracing.onnx_shapes import _constant_results  # noqa: E402


def weight(name: str, *sizes: int) -> Any:
    return numpy_helper.from_array(np.zeros(sizes, dtype=np.float32), name)


def number(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.asarray(values, dtype=np.int64), name)


def write(path: Path, nodes: list[Any], constants: list[Any], shape: list[Any], opset: int = 17) -> Path:
    """Write a model of one input `x` and one output `y`."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [given], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, path)
    return path


def network(path: Path, shape: list[Any]) -> Path:
    """A strided and a grouped convolution, pooling, and a linear layer behind a computed shape."""
    node = helper.make_node
    return write(
        path,
        [
            node("Conv", ["x", "stem.weight", "stem.bias"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "grouped.weight"], ["c"], group=4, dilations=[2, 2]),
            node("GlobalAveragePool", ["c"], ["d"]),
            node("Shape", ["d"], ["sizes"]),
            node("Gather", ["sizes", "zero"], ["batch"]),
            node("Concat", ["batch", "rest"], ["shape"], axis=0),
            node("Reshape", ["d", "shape"], ["e"]),
            node("Gemm", ["e", "head.weight", "head.bias"], ["y"], transB=1),
        ],
        [
            weight("stem.weight", 8, 3, 3, 3),
            weight("stem.bias", 8),
            weight("grouped.weight", 16, 2, 3, 1),
            weight("head.weight", 10, 16),
            weight("head.bias", 10),
            number("zero", 0),
            number("rest", -1),
        ],
        shape,
    )


@pytest.mark.parametrize("batch", ["n", 6, None])
def test_a_convolutional_net_whatever_its_batch(batch: Any, tmp_path: Path) -> None:
    workload = load_onnx(network(tmp_path / "net.onnx", [batch, 3, 16, 16]))
    assert workload.name == "net"
    assert workload.array_layers == (
        Convolution("stem", 3, 8, (3, 3), (16, 16), (8, 8), (2, 2), input_gradient=False),
        Convolution("grouped", 8, 16, (3, 1), (8, 8), (4, 8), (1, 1), (2, 2), groups=4),
        Linear("head", 1, 16, 10),
    )
    elementwise = [layer for layer in workload.layers if isinstance(layer, Elementwise)]
    assert [(layer.operation, layer.input_words, layer.output_words) for layer in elementwise] == [
        ("Relu", 512, 512),
        ("GlobalAveragePool", 512, 16),
    ]


def test_open_sizes_are_set_by_the_input_shape(tmp_path: Path) -> None:
    path = network(tmp_path / "net.onnx", ["n", 3, "height", "width"])
    assert load_onnx(path, (3, 16, 16)).array_layers[0].input_words == 3 * 16 * 16
    with pytest.raises(DataError) as raised:
        load_onnx(path)
    assert str(raised.value) == (
        f"{path}: size height of its input 'x' is dynamic; set the shape of a sample with --input."
    )
    with pytest.raises(DataError, match=r"size 1 of its samples is 3, not the 4 of --input\.$"):
        load_onnx(path, (4, 16, 16))
    with pytest.raises(DataError, match=r"its samples have 3 sizes, --input 3x16 has 2\.$"):
        load_onnx(path, (3, 16))


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_have_the_work_of_torch(kind: str, gates: int, tmp_path: Path) -> None:
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=20, direction="bidirectional")
    constants = [weight("w", 2, gates * 20, 12), weight("r", 2, gates * 20, 20)]
    workload = load_onnx(write(tmp_path / "x.onnx", [node], constants, [2, 2, 12]))
    model = getattr(nn, kind)(12, 20, bidirectional=True, batch_first=True)
    traced = trace(model, (2, 12))
    assert (workload.weights, workload.macs) == (traced.weights, traced.macs)


def test_weights_are_known_in_every_form_and_counted_once(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        node("MatMul", ["x", "wt"], ["a"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("Gather", ["experts", "one"], ["expert"], axis=0),
        node("Squeeze", ["expert", "zero"], ["flat"]),
        node("MatMul", ["b", "flat"], ["c"]),
        node("Einsum", ["c", "experts"], ["d"], equation="btd,edf->btef"),
        node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        node("MatMul", ["x", "xt"], ["scores"]),
        node("ReduceSum", ["scores"], ["y"]),
    ]
    constants = [weight("w", 4, 8), weight("experts", 3, 8, 8), number("one", 1), number("zero", 0)]
    workload = load_onnx(write(tmp_path / "x.onnx", nodes, constants, [2, 5, 8]))
    first, second, expert, mixture, scores = workload.array_layers
    assert first == Linear("w", 5, 8, 4, input_gradient=False)
    assert second == Linear("w", 5, 4, 8, shared_weights=32)
    assert expert.weights == 64
    assert mixture == Linear("experts", 5, 8, 24)
    assert scores == Attention("MatMul_8", 1, 5, 8, 5, input_gradient=False)


def test_what_is_no_model_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    with pytest.raises(DataError, match=r"^there is no file .*x\.onnx\.$"):
        load_onnx(path)
    path.write_bytes(b"\xff\xffnot a model")
    with pytest.raises(DataError, match=r"x\.onnx is not an ONNX model: "):
        load_onnx(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.onnx is not an ONNX model: it has no graph\.$"):
        load_onnx(path)


def test_what_is_not_modelled_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    write(path, [helper.make_node("Magic", ["x"], ["y"], domain="my.domain")], [], [2, 8])
    with pytest.raises(DataError) as raised:
        load_onnx(path)
    assert str(raised.value) == f"{path}: node 'Magic_0' is a my.domain.Magic, which is not modelled."
    write(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 7, 4)], [2, 8])
    with pytest.raises(DataError, match=r"x\.onnx: its shapes do not fit together: "):
        load_onnx(path)


def functions(count: int, *, calls: int = 2, last: str = "Relu") -> Any:
    """Return a model of functions each of which calls the next one `calls` times."""
    domain = "own"
    bodies = []
    for number in range(count):
        name, domain_of = (f"f{number + 1}", domain) if number + 1 < count else (last, domain if last == "f0" else "")
        values = ["x", *(f"v{call}" for call in range(calls - 1)), "y"]
        nodes = [helper.make_node(name, [before], [after], domain=domain_of) for before, after in pairwise(values)]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
        bodies.append(helper.make_function(domain, f"f{number}", ["x"], ["y"], nodes, opsets))
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("in", "out")]
    graph = helper.make_graph([helper.make_node("f0", ["in"], ["out"], domain=domain)], "g", sizes[:1], sizes[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, functions=bodies, opset_imports=opsets)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (functions(60), "its functions would become more than 100,000 nodes."),
        (functions(3, last="f0"), "its function 'f2' calls itself."),
    ],
)
def test_functions_that_never_end(tmp_path: Path, model: Any, message: str) -> None:
    path = tmp_path / "functions.onnx"
    onnx.save(model, path)
    with pytest.raises(DataError) as caught:
        load_onnx(path)
    assert str(caught.value) == f"{path}: {message}"


def test_functions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "functions.onnx"
    onnx.save(functions(3), path)
    assert len(load_onnx(path).layers) == 8


HOSTILE: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "a regular expression": ("RegexFullMatch", {"pattern": "(a+)+$"}, [np.array(["a" * 40 + "b"])]),
    "padding": ("Pad", {}, [np.array([1]), np.array([0, 10**9])]),
    "a window": ("HannWindow", {}, [np.array(10**9)]),
    "powers": ("Pow", {}, [np.array([10**9] * 4), np.array([10**9] * 4)]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_operations_that_take_for_ever_are_not_evaluated(kind: str) -> None:
    operation, attributes, arrays = HOSTILE[kind]
    names = [f"input{number}" for number in range(len(arrays))]
    node = helper.make_node(operation, names, ["result"], **attributes)
    assert _constant_results(node, dict(zip(names, arrays, strict=True)), {}) is None


def test_a_vector_as_long_as_memory_is_no_list_of_sizes(tmp_path: Path) -> None:
    """To propagate its elements one by one, as ONNX's own inference can, took 8 GB."""
    node = helper.make_node
    nodes = [node("Pad", ["v", "p"], ["q"]), node("Add", ["q", "q"], ["r"]), node("Conv", ["x", "w"], ["y"])]
    path = write(
        tmp_path / "it.onnx", nodes, [weight("v", 1), number("p", 0, 10**9), weight("w", 4, 3, 3, 3)], [1, 3, 8, 8]
    )
    assert [layer.name for layer in load_onnx(path).layers if isinstance(layer, Convolution)] == ["w"]


def test_a_part_of_a_shape(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["batch"], start=0, end=1),
        node("Concat", ["batch", "rest"], ["sizes"], axis=0),
        node("Reshape", ["x", "sizes"], ["flat"]),
        node("Gemm", ["flat", "w"], ["y"]),
    ]
    path = write(tmp_path / "it.onnx", nodes, [number("rest", -1), weight("w", 192, 5)], ["n", 3, 8, 8])
    assert [
        (layer.in_features, layer.out_features) for layer in load_onnx(path).layers if isinstance(layer, Linear)
    ] == [(192, 5)]


@pytest.mark.parametrize("groups", [0, -1, 2])
def test_groups_must_divide_the_channels(tmp_path: Path, groups: int) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=groups)
    path = write(tmp_path / "x.onnx", [node], [weight("w", 4, 3, 3, 3)], [2, 3, 8, 8])
    with pytest.raises(DataError):
        load_onnx(path)

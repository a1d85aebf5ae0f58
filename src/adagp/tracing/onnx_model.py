"""An ONNX file as a workload. Needs `pip install '.[onnx]'`.

Shapes come from ONNX's own inference. Products (convolutions, matrix products, recurrent layers) become layers as in
`adagp.tracing.tracer`; everything else reads its inputs and writes its outputs once. Files do not record which weights are
trained, so every constant in a product counts as a trained weight.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagp.errors import AdagpError, DataError, OptionError
from adagp.hw.workload import Convolution, Elementwise, Layer, Workload
from adagp.tracing.tracer import BATCH, Tracer, pair

RESHAPES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
VIEWS = frozenset((*RESHAPES, "Transpose", "Split", "Slice", "Expand"))
"""Operations that move no data: the next one reads the same words in another arrangement."""
NUMBERS = frozenset(("Shape", "Size", "ConstantOfShape", "Range", "NonZero"))
"""Operations on shapes and indices."""
NOT_MODELLED = frozenset(
    (
        *("ConvInteger", "QLinearConv", "MatMulInteger", "QLinearMatMul", "DeformConv", "Attention"),
        *("If", "Loop", "Scan", "SequenceMap"),
    )
)
"""Products that are not modelled, and control flow."""
DOMAINS = ("", "ai.onnx")
LARGEST_FILE = 1 << 31
"""The most bytes of a file, which is what ONNX itself can store in one."""
MOST_NODES = 100_000
"""The most nodes of a graph after its functions were inlined."""
MOST_STEPS = 65_536
"""The most steps of a recurrent layer, over all directions."""
DAMAGE = (
    *(RuntimeError, TypeError, ValueError, IndexError, KeyError),
    *(AttributeError, AssertionError, OverflowError, ZeroDivisionError, MemoryError),
)
"""Errors that a damaged file leads to."""


def load_onnx(path: Path, shape: tuple[int, ...] | None = None) -> Workload:
    """Return the workload of the model in `path`. `shape`, of one sample, sets sizes that the file leaves open.

    The first size of the first input is the batch.
    """
    model = _read(path)
    try:
        _check_operations(model.graph)
        batch = _set_sizes(model, shape)
        from adagp.tracing.onnx_shapes import with_shapes

        return Workload(path.stem, _Reader(*with_shapes(model), batch).layers())
    except AdagpError as error:
        raise type(error)(f"{path}: {error}") from None
    except DAMAGE as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{path} is damaged: {type(error).__name__}: {reason}.") from None


def prepare() -> None:
    """Import the modules that read ONNX files; raise if onnx is not installed."""
    if importlib.util.find_spec("onnx") is None:
        raise OptionError("ONNX files need onnx, which is not installed: pip install '.[onnx]'.")
    importlib.import_module("adagp.tracing.onnx_shapes")


def _read(path: Path) -> Any:
    prepare()
    if not path.is_file():
        raise DataError(f"there is no file {path}.")
    if path.stat().st_size > LARGEST_FILE:
        raise DataError(f"{path} has more than {LARGEST_FILE:,} bytes; keep its weights in a file of their own.")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
        if model.functions:
            _check_functions(model)
            import onnx.inliner

            model = onnx.inliner.inline_local_functions(model)
    except (DecodeError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, AdagpError):
            raise DataError(f"{path}: {error}") from None
        raise DataError(f"{path} is not an ONNX model: {error}.") from None
    if not model.ir_version or not model.graph.node:
        raise DataError(f"{path} is not an ONNX model: it has no graph.")
    return model


def _check_functions(model: Any) -> None:
    """Raise on functions that call themselves, or whose inlining would make too many nodes."""
    sizes = _inlined_sizes({(function.domain, function.name): function.node for function in model.functions})
    total = len(model.graph.node) + sum(sizes.get((node.domain, node.op_type), 0) for node in model.graph.node)
    if total > MOST_NODES:
        raise DataError(f"its functions would become more than {MOST_NODES:,} nodes.")


def _inlined_sizes(bodies: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], int]:
    """Return the number of nodes of each function, with the functions that it calls inlined; at most MOST_NODES + 1."""
    sizes: dict[tuple[str, str], int] = {}
    waiting = list(bodies)
    begun: set[tuple[str, str]] = set()
    while waiting:
        key = waiting[-1]
        called = [(node.domain, node.op_type) for node in bodies[key] if (node.domain, node.op_type) in bodies]
        missing = [name for name in called if name not in sizes]
        if key in sizes or not missing:
            sizes[key] = min(len(bodies[key]) + sum(sizes[name] for name in called), MOST_NODES + 1)
            waiting.pop()
        elif key in begun:
            raise DataError(f"its function '{key[1]}' calls itself.")
        else:
            begun.add(key)
            waiting += missing
    return sizes


def _check_operations(graph: Any) -> None:
    if len(graph.node) > MOST_NODES:
        raise DataError(f"it has {len(graph.node):,} nodes; at most {MOST_NODES:,} are allowed.")
    for number, node in enumerate(graph.node):
        if node.op_type in NOT_MODELLED or node.domain not in DOMAINS:
            operation = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise DataError(f"node '{_name(node, number)}' is a {operation}, which is not modelled.")


def _name(node: Any, number: int) -> str:
    return str(node.name) or f"{node.op_type}_{number}"


def _set_sizes(model: Any, shape: tuple[int, ...] | None) -> int:
    """Give every open size of the inputs a value; return the batch size."""
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if not inputs or not inputs[0].type.tensor_type.shape.dim:
        raise DataError("it has no tensor input.")
    first = inputs[0].type.tensor_type.shape.dim
    if shape is not None:
        _check_shape(first, shape)
    symbols: dict[str, int] = {}
    _fill_open_sizes(inputs[0], (BATCH, *(shape or ())), symbols)
    for value in inputs[1:]:
        _fill_open_sizes(value, (BATCH,), symbols)
    return int(first[0].dim_value)


def _fill_open_sizes(value: Any, defaults: tuple[int, ...], symbols: dict[str, int]) -> None:
    for axis, size in enumerate(value.type.tensor_type.shape.dim):
        if size.dim_value <= 0:
            default = defaults[axis] if axis < len(defaults) else None
            size.dim_value = _open_size(value.name, axis, size, symbols, default)


def _check_shape(sizes: Any, shape: tuple[int, ...]) -> None:
    if len(shape) != len(sizes) - 1:
        raise DataError(f"its samples have {len(sizes) - 1} sizes, --input {_shape(shape)} has {len(shape)}.")
    for axis, (size, expected) in enumerate(zip(sizes[1:], shape, strict=True), start=1):
        if 0 < size.dim_value != expected:
            raise DataError(f"size {axis} of its samples is {size.dim_value}, not the {expected} of --input.")


def _open_size(input_name: str, axis: int, size: Any, symbols: dict[str, int], default: int | None) -> int:
    """Return the value of a size that the file leaves open; sizes of one symbol are equal."""
    value = symbols.get(size.dim_param, default)
    if value is None:
        name = size.dim_param or f"number {axis}"
        raise DataError(f"size {name} of its input '{input_name}' is dynamic; set the shape of a sample with --input.")
    if size.dim_param:
        symbols[size.dim_param] = value
    return value


class _Reader:
    """Walks the graph; a value is a tensor without data, or None for shapes and indices, which cost nothing."""

    def __init__(self, model: Any, numbers: Mapping[str, Any], batch: int) -> None:
        from adagp.tracing.onnx_shapes import is_number

        self.graph = model.graph
        self.numbers = numbers
        self.batch = batch
        self.shapes = {value.name: value.type.tensor_type for value in (*self.graph.value_info, *self.graph.output)}
        constants = {tensor.name: tensor for tensor in self.graph.initializer}
        constants |= {node.output[0]: value for node in self.graph.node if (value := _constant(node)) is not None}
        floats = {name: tensor for name, tensor in constants.items() if not is_number(tensor)}
        weights = [(name, _empty(tuple(tensor.dims)).requires_grad_()) for name, tensor in floats.items()]
        self.tracer = Tracer(weights, batch)
        self.values: dict[str, Tensor | None] = {"": None, **dict.fromkeys(constants), **self.tracer.stand_ins}
        for value in self.graph.input:
            sizes = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
            self.values.setdefault(value.name, _empty(sizes))

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers of all nodes."""
        with torch.enable_grad(), self.tracer:
            for number, node in enumerate(self.graph.node):
                name = _name(node, number)
                self.tracer.calls = [name]
                try:
                    self._read_node(node, name)
                except DAMAGE as error:
                    if isinstance(error, AdagpError):
                        raise
                    reason = str(error).strip().partition("\n")[0]
                    raise DataError(f"node '{name}' ({node.op_type}) cannot be read: {reason}.") from None
        return tuple(self.tracer.layers)

    def _read_node(self, node: Any, name: str) -> None:
        operands = [self.values[operand] for operand in node.input]
        tensors = [operand for operand in operands if operand is not None]
        if node.op_type == "Constant":
            return
        if not tensors or node.op_type in NUMBERS:
            self.values |= dict.fromkeys(node.output)
        elif node.op_type in PRODUCTS:
            PRODUCTS[node.op_type](self, node, name, operands)
        elif all(map(self._is_weight, tensors)):
            self._of_weights(node, tensors)
        else:
            results = self._results(node, tensors)
            if node.op_type not in VIEWS:
                self._count(node, name, tensors, results)

    def _is_weight(self, tensor: Tensor) -> bool:
        return self.tracer.weights.find(tensor) is not None

    def _results(self, node: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
        needed = any(tensor.requires_grad for tensor in tensors)
        results = []
        for output in filter(None, node.output):
            result = _empty(self._shape(output)).requires_grad_(needed)
            self.values[output] = result
            results.append(result)
        return results

    def _shape(self, name: str) -> tuple[int, ...]:
        entry = self.shapes.get(name)
        sizes = [] if entry is None else [size.dim_value for size in entry.shape.dim]
        if entry is None or not entry.HasField("shape") or not all(size > 0 for size in sizes):
            raise DataError(f"the shape of '{name}' is not known without running the model.")
        return tuple(sizes)

    def _of_weights(self, node: Any, tensors: Sequence[Tensor]) -> None:
        """Record the result of an operation on weights only as weights; parts of weights differ by the selecting indices."""
        chosen = [self.numbers[name] for name in node.input if name in self.numbers]
        view = self._view(node, tensors[0], chosen)
        if view is not None:
            self.values[node.output[0]] = view
        elif node.op_type in ("Cast", "DequantizeLinear"):
            self.tracer.weights.derive("clone", [tensors[0]], self._results(node, tensors))
        else:
            operation = f"{node.op_type} {[values.tolist() for values in chosen]} {list(map(str, node.attribute))}"
            self.tracer.weights.derive(operation, tensors, self._results(node, tensors))

    def _view(self, node: Any, source: Tensor, chosen: Sequence[Any]) -> Tensor | None:
        """Return the result of an operation that is a view of weights in torch; None for other operations."""
        if node.op_type == "Transpose":
            return source.permute(_attribute(node, "perm", list(range(source.dim()))[::-1]))
        if node.op_type == "Expand":
            return source.expand(self._shape(node.output[0]))
        if node.op_type in RESHAPES:
            return source.reshape(self._shape(node.output[0]))
        if node.op_type == "Gather" and len(chosen) == 1 and chosen[0].ndim == 0:
            return source.select(_attribute(node, "axis", 0), int(chosen[0]))
        return None

    def _count(self, node: Any, name: str, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        read = sum(tensor.numel() for tensor in tensors if not self._is_weight(tensor)) // self.batch
        written = sum(tensor.numel() for tensor in results) // self.batch
        if read + written:
            self.tracer.layers.append(Elementwise(name, node.op_type, read, written))

    def convolution(self, node: Any, name: str, operands: Sequence[Tensor | None]) -> None:
        """Record a convolution, transposed or not, of one or two dimensions."""
        source, weight = operands[:2]
        assert source is not None
        assert weight is not None
        dimensions = source.dim() - 2
        if dimensions > 2:
            raise DataError(f"node '{name}' is a convolution of {dimensions} dimensions.")
        ones, groups, transposed = [1] * dimensions, _attribute(node, "group", 1), node.op_type == "ConvTranspose"
        if groups < 1 or int(source.shape[1]) % groups or (not transposed and int(weight.shape[0]) % groups):
            raise DataError(f"node '{name}' has {groups} groups; they must divide its channels.")
        (result,) = self._results(node, [source, weight])
        owner, trainable, before = self.tracer.used(self.tracer.weights.find(weight))
        self.tracer.layers.append(
            Convolution(
                owner,
                int(source.shape[1]),
                int(result.shape[1]),
                pair(weight.shape[2:]),
                pair(source.shape[2:]),
                pair(result.shape[2:]),
                pair(_attribute(node, "strides", ones)),
                pair(_attribute(node, "dilations", ones)),
                groups,
                transposed,
                trainable,
                source.requires_grad,
                before,
            )
        )

    def gemm(self, node: Any, name: str, operands: Sequence[Tensor | None]) -> None:
        """Record a product of two matrices, each of which may be transposed."""
        left, right = (operand for operand in operands[:2] if operand is not None)
        left = left.T if _attribute(node, "transA", 0) else left
        self.values[node.output[0]] = left @ (right.T if _attribute(node, "transB", 0) else right)

    def product(self, node: Any, name: str, operands: Sequence[Tensor | None]) -> None:
        """Record a batched product of matrices."""
        left, right = (operand for operand in operands[:2] if operand is not None)
        self.values[node.output[0]] = left @ right

    def einsum(self, node: Any, name: str, operands: Sequence[Tensor | None]) -> None:
        """Record a product in Einstein notation."""
        equation = _attribute(node, "equation", b"").decode()
        self.values[node.output[0]] = torch.einsum(equation, *(operand for operand in operands if operand is not None))

    def recurrent(self, node: Any, name: str, operands: Sequence[Tensor | None]) -> None:
        """Record a recurrent layer: for each direction the inputs of all steps in one product, then the state step by step."""
        source, inward, recurring = (operand for operand in operands[:3] if operand is not None)
        if _attribute(node, "layout", 0):
            source = source.transpose(0, 1)
        steps, samples = source.shape[:2]
        if steps * inward.shape[0] > MOST_STEPS:
            raise DataError(f"node '{name}' has {steps:,} steps; at most {MOST_STEPS:,} are read, one by one.")
        results = self._results(node, [source, inward])
        for direction in range(inward.shape[0]):
            source.reshape(steps * samples, -1) @ inward[direction].T
            state = _empty((samples, recurring.shape[2]))
            for step in range(steps):
                state @ recurring[direction].T
                if step == 0:
                    state = _empty(tuple(state.shape)).requires_grad_()
        self._count(node, name, [], [results[0]])


PRODUCTS: Mapping[str, Callable[[_Reader, Any, str, Sequence[Tensor | None]], None]] = {
    "Conv": _Reader.convolution,
    "ConvTranspose": _Reader.convolution,
    "Gemm": _Reader.gemm,
    "MatMul": _Reader.product,
    "Einsum": _Reader.einsum,
    "LSTM": _Reader.recurrent,
    "GRU": _Reader.recurrent,
    "RNN": _Reader.recurrent,
}


def _constant(node: Any) -> Any:
    """Return the tensor of a Constant node; None for another node."""
    return _attribute(node, "value", None) if node.op_type == "Constant" else None


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx.helper import get_attribute_value

    return next((get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name), default)


def _empty(sizes: tuple[int, ...]) -> Tensor:
    return torch.empty(sizes, device="meta")


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))

"""The shapes of every value of an ONNX model.

ONNX's own inference stops at a shape that nodes of the graph compute. So nodes that need only numbers (shapes and indices) are
evaluated with ONNX's reference implementation, and the inference continues from there.
"""

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from adagp.errors import DataError

FEW = 4096
"""Constants with more values are not shapes; if they are floating-point, their values are dropped."""
MOST = 1 << 22
"""The most values of a computed constant."""
EVALUATED = frozenset(
    (
        *(
            "Abs",
            "Add",
            "And",
            "ArgMax",
            "ArgMin",
            "Cast",
            "Ceil",
            "Clip",
            "Concat",
            "ConstantOfShape",
            "CumSum",
            "Div",
        ),
        *("Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual"),
        *("Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Range"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND"),
        *(
            "Shape",
            "Sign",
            "Size",
            "Slice",
            "Split",
            "Sqrt",
            "Squeeze",
            "Sub",
            "Tile",
            "Transpose",
            "Unsqueeze",
            "Where",
        ),
    )
)
"""Operations by which models compute shapes and indices. No others are evaluated: some take forever, or all memory."""
Numbers = dict[str, "np.ndarray[Any, Any]"]
Arrays = list["np.ndarray[Any, Any]"]


def with_shapes(model: Any) -> tuple[Any, Numbers]:
    """Return the model with all shapes that can be inferred, its nodes that compute numbers replaced, and these numbers."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    _clear_weights(model.graph)
    numbers: Numbers = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if prod(tensor.dims) <= FEW and is_number(tensor) and not tensor.external_data
    }
    while True:
        inferred = _infer(model)
        if not _evaluate(inferred, numbers):
            return inferred, numbers
        model = inferred


def _clear_weights(graph: Any) -> None:
    for constant in graph.initializer:
        if prod(constant.dims) > FEW:
            for field in ("raw_data", "float_data", "double_data"):
                constant.ClearField(field)


def is_number(constant: Any) -> bool:
    """Return whether a constant holds shapes, indices or conditions instead of weights."""
    kinds = onnx.TensorProto
    return constant.data_type in (kinds.INT64, kinds.INT32, kinds.BOOL, kinds.STRING)


def _infer(model: Any) -> Any:
    try:
        # Numbers are not propagated here: ONNX would keep a list entry for each element of a vector, however long.
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=False)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise DataError(f"its shapes do not fit together: {str(error).strip().splitlines()[0]}.") from None


def _evaluate(model: Any, numbers: Numbers) -> bool:
    """Replace nodes that compute numbers by constants; return whether there were any."""
    graph = model.graph
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input, *graph.output)}
    remaining = []
    for node in graph.node:
        results = _constant_results(node, numbers, types)
        if results is None:
            remaining.append(node)
            continue
        for name, array in zip(node.output, results, strict=False):
            numbers[name] = array
            graph.initializer.append(numpy_helper.from_array(array, name))
    replaced = len(remaining) < len(graph.node)
    if replaced:
        del graph.node[:]
        graph.node.extend(remaining)
    return replaced


def _constant_results(node: Any, numbers: Numbers, types: dict[str, Any]) -> Arrays | None:
    """Return the outputs of a node that needs only numbers; None for other nodes."""
    if node.op_type == "Shape" and node.input[0] in types:
        return _known_shape(node, types[node.input[0]])
    if node.op_type == "Constant":
        return _constant_numbers(node)
    inputs = dict.fromkeys(filter(None, node.input))
    if not inputs or not inputs.keys() <= numbers.keys():
        return None
    return _evaluated(node, {name: numbers[name] for name in inputs})


def _constant_numbers(node: Any) -> Arrays | None:
    tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
    return [numpy_helper.to_array(tensor) for tensor in tensors if is_number(tensor)] or None


def _evaluated(node: Any, arrays: Numbers) -> Arrays | None:
    has_subgraph = any(attribute.HasField("g") for attribute in node.attribute)
    if has_subgraph or node.op_type not in EVALUATED or _result_size(node, arrays) > MOST:
        return None
    try:
        results = [np.asarray(result) for result in ReferenceEvaluator(node).run(None, arrays)]
    except Exception:  # a node that the reference cannot evaluate stays in the graph
        return None
    return results if all(result.size <= MOST for result in results) else None


def _known_shape(node: Any, tensor_type: Any) -> Arrays | None:
    sizes = [size.dim_value for size in tensor_type.shape.dim]
    known = tensor_type.HasField("shape") and all(size > 0 for size in sizes)
    part = {attribute.name: int(attribute.i) for attribute in node.attribute}
    wanted = sizes[part.get("start", 0) : part.get("end")]
    return [np.asarray(wanted, dtype=np.int64)] if known else None


def _result_size(node: Any, arrays: Numbers) -> float:
    """Return an upper bound on the values of a node that can make a large tensor from few numbers; 0 for other nodes."""
    if node.op_type == "ConstantOfShape":
        return float(np.prod(next(iter(arrays.values()))))
    if node.op_type in ("Expand", "Range", "Tile"):
        return float(np.prod([np.abs(array).max(initial=1) for array in arrays.values()]))
    return 0

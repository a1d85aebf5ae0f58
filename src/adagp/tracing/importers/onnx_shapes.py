"""The shapes of every value of an ONNX model.

ONNX's own inference stops where a shape is computed by nodes of the graph. Those that compute with numbers alone (shapes and
indices) are therefore evaluated, with ONNX's reference implementation, and the inference continues from there.
"""

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from adagp.errors import DataError

FEW = 4096
"""Values above which a constant is no shape; of floating-point ones only the size is kept."""
MOST = 1 << 22
"""Values that a computed constant may have."""
Numbers = dict[str, "np.ndarray[Any, Any]"]


def with_shapes(model: Any) -> tuple[Any, Numbers]:
    """Return the model with all shapes that can be known, without the nodes that compute numbers, and those numbers."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    for constant in model.graph.initializer:
        if prod(constant.dims) > FEW:
            for field in ("raw_data", "float_data", "double_data"):
                constant.ClearField(field)
    numbers: Numbers = {
        one.name: numpy_helper.to_array(one)
        for one in model.graph.initializer
        if prod(one.dims) <= FEW and is_number(one) and not one.external_data
    }
    while True:
        inferred = _infer(model)
        if not _evaluate(inferred, numbers):
            return inferred, numbers
        model = inferred


def is_number(constant: Any) -> bool:
    """Tell whether a constant holds shapes, indices or conditions instead of weights."""
    kinds = onnx.TensorProto
    return constant.data_type in (kinds.INT64, kinds.INT32, kinds.BOOL, kinds.STRING)


def _infer(model: Any) -> Any:
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise DataError(f"its shapes do not fit together: {str(error).strip().splitlines()[0]}.") from None


def _evaluate(model: Any, numbers: Numbers) -> bool:
    """Replace nodes that compute numbers by what they compute; tell whether there were any."""
    graph = model.graph
    shapes = {one.name: one.type.tensor_type for one in (*graph.value_info, *graph.input, *graph.output)}
    left, found = [], False
    for node in graph.node:
        results = _results(node, numbers, shapes)
        if results is None:
            left.append(node)
            continue
        found = True
        for name, value in zip(node.output, results, strict=False):
            array = np.asarray(value)
            numbers[name] = array
            graph.initializer.append(numpy_helper.from_array(array, name))
    if found:
        del graph.node[:]
        graph.node.extend(left)
    return found


def _results(node: Any, numbers: Numbers, shapes: dict[str, Any]) -> "list[np.ndarray[Any, Any]] | None":
    """Return what a node computes, if it needs numbers only; None if it needs more."""
    if node.op_type == "Shape" and node.input[0] in shapes and not node.attribute:
        sizes = [size.dim_value for size in shapes[node.input[0]].shape.dim]
        known = shapes[node.input[0]].HasField("shape") and all(size > 0 for size in sizes)
        return [np.asarray(sizes, dtype=np.int64)] if known else None
    if node.op_type == "Constant":
        values = [numpy_helper.to_array(one.t) for one in node.attribute if one.name == "value" and is_number(one.t)]
        return values or None
    given = [name for name in node.input if name]
    if not given or not all(name in numbers for name in given):
        return None
    if node.op_type in ("ConstantOfShape", "Expand", "Range", "Tile"):
        size = np.prod([np.abs(numbers[name]).max(initial=1) if numbers[name].size else 1 for name in given])
        if node.op_type == "ConstantOfShape":
            size = np.prod(numbers[given[0]])
        if size > MOST:
            return None
    if any(attribute.HasField("g") for attribute in node.attribute):
        return None
    try:
        results = [
            np.asarray(one) for one in ReferenceEvaluator(node).run(None, {name: numbers[name] for name in given})
        ]
    except Exception:  # whatever the reference cannot do stays a node of the graph
        return None
    return results if all(one.size <= MOST for one in results) else None

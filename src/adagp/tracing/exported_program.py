"""A `torch.export` program (`.pt2`) as a workload.

Only the graph is read, which is JSON. The pickled parts of the file (weights, example inputs) are not read, so a foreign file
cannot run code. The graph's operations, which must be torch's own, run on shapes and are traced like those of any model.
"""

import json
import operator
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagp.errors import AdagpError, DataError
from adagp.hw.workload import Workload
from adagp.tracing.tracer import Tracer

LARGEST_GRAPH = 1 << 26
"""The most bytes of JSON that are read."""
TYPES = dict(
    enumerate(
        (
            *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.half, torch.float, torch.double),
            *(torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.bfloat16),
        ),
        start=1,
    )
)
"""Types by their number in the file."""
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "eq", "ne", "lt", "le", "gt", "ge")
}
"""The arithmetic that programs do on sizes."""
LARGEST_SIZE = 2**40
"""The largest operand of this arithmetic."""
LARGEST_NUMBER = 2**63 - 1
"""The largest argument of an operation: open slices end there."""
LARGEST_POWER = 64
MOST_PIECES = 100_000
"""The most tensors that one tensor may be cut into."""
CUTS = ("unbind", "split", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "hsplit", "vsplit", "dsplit")
DAMAGE = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError),
    *(OverflowError, ZeroDivisionError, AssertionError, RuntimeError),
)
"""Errors that a damaged file leads to; too deep a nesting is a RuntimeError."""
KEYWORD = 2
"""The number that marks a keyword argument in the file."""
NO_WORK = ("_assert", "sym_constrain_range")
ALLOWED = frozenset(
    (
        *(
            "absolute",
            "adaptive_avg_pool1d",
            "adaptive_avg_pool2d",
            "adaptive_max_pool1d",
            "adaptive_max_pool2d",
            "add_",
        ),
        *(
            "addcdiv",
            "addcmul",
            "all",
            "alpha_dropout",
            "avg_pool1d",
            "baddbmm",
            "batch_norm",
            "bernoulli_",
            "bitwise_not",
        ),
        *("broadcast_tensors", "celu", "channel_shuffle", "chunk", "clamp_", "clip", "conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "contiguous", "copy_", "cosine_similarity", "cross_entropy_loss"),
        *(
            "detach",
            "detach_",
            "div_",
            "dropout",
            "dropout_",
            "einsum",
            "embedding",
            "expand_as",
            "feature_dropout",
            "fill",
            "fill_",
        ),
        *("flatten", "floor_divide", "frobenius_norm", "glu", "group_norm", "gru", "hardsigmoid", "hardswish"),
        *(
            "hardswish_",
            "hardtanh_",
            "index_add",
            "index_copy",
            "index_fill",
            "instance_norm",
            "layer_norm",
        ),
        *("leaky_relu_", "lift_fresh_copy", "linear", "linspace", "log_softmax", "lstm", "masked_fill", "masked_fill_"),
        *("matmul", "max_pool1d", "max_pool2d", "max_pool2d_with_indices", "meshgrid", "mish", "movedim", "mse_loss"),
        *(
            "mul_",
            "multiply",
            "narrow",
            "new_empty",
            "new_full",
            "new_ones",
            "new_zeros",
            "nll_loss",
            "nll_loss_nd",
            "norm",
        ),
        *(
            "numpy_T",
            "ones",
            "ones_like",
            "outer",
            "pad",
            "pixel_unshuffle",
            "prelu",
            "rand_like",
            "randn_like",
            "relu6",
        ),
        *("relu_", "repeat_interleave", "reshape", "reshape_as", "rms_norm", "rnn_relu", "rnn_tanh", "roll", "rsub"),
        *("scaled_dot_product_attention", "selu", "selu_", "sigmoid_", "silu", "silu_", "softmax", "softplus", "split"),
        *("square", "squeeze_", "stack", "std", "sub_", "subtract", "swapaxes", "sym_numel", "sym_size", "t", "tanh_"),
        *("tensor_split", "threshold", "tile", "to", "transpose", "tril", "triu", "type_as", "unbind", "unflatten"),
        *("unfold", "unsqueeze_", "unsafe_split", "unsafe_chunk", "upsample_bicubic2d", "upsample_nearest1d"),
        *("upsample_nearest2d", "upsample_bilinear2d", "view_as", "where", "zero_", "zeros", "zeros_like"),
        *("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_unsafe_view", "_weight_norm"),
    )
)
"""Operations that exported programs contain besides torch's own core set; others are not run, not even on shapes."""


def load_exported_program(path: Path, shape: tuple[int, ...] | None = None) -> Workload:
    """Return the workload of the program in `path`; the batch is the one that the program was exported with.

    `shape`, of one sample, must equal that of the program's first input, which the export has fixed.
    """
    document, weights = _read(path)
    try:
        program = _Program(document["graph_module"], weights)
        exported = program.sample_shape
        if shape is not None and shape != exported:
            requested, had = ("x".join(map(str, sizes)) for sizes in (shape, exported))
            raise DataError(f"{path} was exported for samples of {had}, not {requested}; export it again for others.")
        return program.run(path.stem)
    except AdagpError as error:
        raise type(error)(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    except DAMAGE as error:
        raise DataError(
            f"{path} is damaged, or of another version of torch: {type(error).__name__}: {error}."
        ) from None


def _read(path: Path) -> tuple[Any, Mapping[str, str]]:
    """Return the program, and the file in the archive of each parameter."""
    if not path.is_file():
        raise DataError(f"there is no file {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            graph = _find(archive, path, ("models/model.json", "serialized_exported_program.json"))
            if graph is None:
                raise DataError(f"{path} is not a torch.export program: there is no graph in it.")
            table = _find(archive, path, ("model_weights_config.json",))
            document = json.loads(archive.read(graph))
            entries = {} if table is None else json.loads(archive.read(table)).get("config", {})
            return document, {name: str(entry["path_name"]) for name, entry in entries.items()}
    except (*DAMAGE, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        if isinstance(error, AdagpError):
            raise
        raise DataError(f"{path} is not a torch.export program: {error}.") from None


def _find(archive: zipfile.ZipFile, path: Path, endings: tuple[str, ...]) -> str | None:
    name = next((name for name in archive.namelist() if name.endswith(endings)), None)
    if name is not None and archive.getinfo(name).file_size > LARGEST_GRAPH:
        raise DataError(f"{path}: its graph has more than {LARGEST_GRAPH:,} bytes.")
    return name


class _Program:
    """The graph, with tensors of the right shapes on the meta device."""

    def __init__(self, module: Mapping[str, Any], files: Mapping[str, str]) -> None:
        self.graph = module["graph"]
        self.values: dict[str, Any] = {}
        owned, self.inputs = _read_signature(module)
        if not self.inputs:
            raise DataError("the program has no tensor input.")
        first = self.tensor(self.inputs[0])
        self.batch = int(first.shape[0]) if first.dim() else 1
        self.sample_shape = tuple(int(size) for size in first.shape[1:])
        first_of: dict[str, str] = {}  # tied parameters share a file of the archive
        names = {key: first_of.setdefault(files.get(name, name), name) for key, name in owned.items()}
        own = [(name, self.tensor(key)) for key, name in owned.items() if names[key] == name]
        self.tracer = Tracer(own, self.batch)
        self.values |= {key: self.tracer.stand_ins[name] for key, name in names.items()}
        self.values |= {name: self.tensor(name) for name in self.inputs}

    def tensor(self, name: str) -> Tensor:
        """Return an empty tensor as the file describes it; sizes that may vary have the value of the export."""
        entry = self.graph["tensor_values"][name]
        sizes = [size["as_int"] if "as_int" in size else size["as_expr"]["hint"]["as_int"] for size in entry["sizes"]]
        tensor = torch.empty(sizes, dtype=TYPES[entry["dtype"]], device="meta")
        return tensor.requires_grad_(bool(entry["requires_grad"]) and tensor.is_floating_point())

    def run(self, name: str) -> Workload:
        """Run every operation on shapes; return the layers."""
        with torch.enable_grad(), self.tracer.recording([self.values[value] for value in self.inputs]):
            for node in self.graph["nodes"]:
                self.tracer.calls = [_module(node)]
                self._run_node(node)
        return self.tracer.workload(name)

    def _run_node(self, node: Mapping[str, Any]) -> None:
        target = str(node["target"])
        namespace, _, name = target.rpartition("torch.ops.aten.")
        if not namespace and name.startswith(NO_WORK):
            return
        positional, keywords = self._arguments(node)
        function = _function(target)
        if isinstance(function, torch._ops.OpOverload):
            _check_pieces(function, positional)
            _check_whole_numbers(target, [positional, list(keywords.values())])
            if any(argument.name == "device" for argument in function._schema.arguments):
                keywords["device"] = torch.device("meta")  # even if the file leaves it out
        else:
            _check_numbers(target, positional)
        try:
            result = function(*positional, **keywords)
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DataError(f"{target} cannot run on shapes: {reason}") from None
        self._keep(node["outputs"], result)

    def _arguments(self, node: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        positional, keywords = [], {}
        for argument in node["inputs"]:
            value = self._value(argument["arg"])
            if argument.get("kind") == KEYWORD:
                keywords[argument["name"]] = value
            else:
                positional.append(value)
        return positional, keywords

    def _keep(self, outputs: list[Mapping[str, Any]], result: Any) -> None:
        if len(outputs) == 1:
            ((kind, entry),) = outputs[0].items()
            if kind == "as_tensors":
                self.values |= {value["name"]: tensor for value, tensor in zip(entry, result, strict=True)}
                return
            results = [result]
        else:
            results = list(result) if outputs else []
        for output, value in zip(outputs, results, strict=True):
            ((kind, entry),) = output.items()
            if kind != "as_none":
                self.values[entry["name"] if "name" in entry else entry["as_name"]] = value

    def _value(self, argument: Mapping[str, Any]) -> Any:
        ((kind, entry),) = argument.items()
        if kind in ("as_tensors", "as_sym_ints", "as_sym_floats", "as_optional_tensors"):
            inner = {"as_tensors": "as_tensor", "as_sym_ints": "as_sym_int", "as_sym_floats": "as_sym_float"}
            return [self._value({inner[kind]: item} if kind in inner else item) for item in entry]
        if kind == "as_tensor":
            return self.values[entry["name"]]
        if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            ((form, value),) = entry.items()
            return self.values[value] if form == "as_name" else value
        simple: Mapping[str, Callable[[Any], Any]] = {
            "as_none": lambda _: None,
            "as_int": int,
            "as_ints": list,
            "as_float": float,
            "as_floats": lambda values: [float(value) for value in values],
            "as_bool": bool,
            "as_bools": list,
            "as_string": str,
            "as_strings": list,
            "as_scalar_type": TYPES.__getitem__,
            "as_memory_format": MEMORY_FORMATS.__getitem__,
            "as_layout": lambda _: torch.strided,
            "as_device": lambda _: torch.device("meta"),
        }
        if kind not in simple:
            raise DataError(f"an argument of the kind {kind[3:]} is not known here.")
        return simple[kind](entry)


def _read_signature(module: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the names of parameters, buffers and constants by their values in the graph, and the values of the inputs."""
    owned: dict[str, str] = {}
    inputs: list[str] = []
    for spec in module["signature"]["input_specs"]:
        ((kind, entry),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            owned[entry["arg"]["name"]] = entry[f"{kind}_name"]
        elif kind == "user_input" and "as_tensor" in entry["arg"]:
            inputs.append(entry["arg"]["as_tensor"]["name"])
    return owned, inputs


def _function(target: str) -> Callable[..., Any]:
    """Return one of torch's own operations, or arithmetic of sizes; no other name is allowed."""
    if target.startswith("_operator.") and target[10:] in ARITHMETIC:
        return ARITHMETIC[target[10:]]
    name, _, overload = target.removeprefix("torch.ops.aten.").partition(".")
    operator = None
    if target.startswith("torch.ops.aten.") and name.isidentifier() and overload.isidentifier():
        operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    allowed = isinstance(operator, torch._ops.OpOverload) and (name in ALLOWED or torch.Tag.core in operator.tags)
    if not isinstance(operator, torch._ops.OpOverload) or not allowed:
        raise DataError(f"its operation {target} is none of torch's own that run on shapes.")
    return operator


def _check_numbers(target: str, values: Sequence[Any]) -> None:
    """Raise if the operands of arithmetic are not sizes: a file must not make it take forever."""
    are_sizes = all(type(value) in (int, float, bool) and abs(value) <= LARGEST_SIZE for value in values)
    if not are_sizes or (target.endswith(".pow") and abs(values[-1]) > LARGEST_POWER):
        raise DataError(f"{target} gets arguments that are not sizes.")


def _check_whole_numbers(target: str, values: Any) -> None:
    """Raise if a list, number or text among an operation's arguments is too large."""
    if isinstance(values, list):
        if len(values) > MOST_PIECES:
            raise DataError(f"{target} gets a list of {len(values):,}; at most {MOST_PIECES:,} are allowed.")
        for value in values:
            _check_whole_numbers(target, value)
    elif (isinstance(values, int) and abs(values) > LARGEST_NUMBER) or (isinstance(values, str) and len(values) > 64):
        raise DataError(f"{target} gets an argument that is too large.")


def _check_pieces(function: Any, arguments: Sequence[Any]) -> None:
    """Raise if a tensor would be cut into more than `MOST_PIECES` pieces."""
    name = function._schema.name.removeprefix("aten::").partition("_with_")[0]
    longest = max((size for value in arguments if isinstance(value, Tensor) for size in value.shape), default=0)
    if name in CUTS and longest > MOST_PIECES:
        raise DataError(
            f"{function} would cut a tensor with a size of {longest:,}; at most {MOST_PIECES:,} are allowed."
        )


def _module(node: Mapping[str, Any]) -> str:
    """Return the name of the module that an operation belongs to, as the export recorded it."""
    stack = str(node.get("metadata", {}).get("nn_module_stack", "")).split(";")[-1].split(",")
    return stack[1] if len(stack) == 3 else ""

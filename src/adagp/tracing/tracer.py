"""Turns a torch model into a `Workload`, on the meta device: shapes only, no weights, no arithmetic.

The model runs forward once with stand-ins for its parameters, buffers and inputs, in training mode and with autograd on, while
every operation that reaches the dispatcher is recorded. So it works for any module, whatever its forward does, and changes
nothing in the user's model. A weight is recognised by its elements in memory; a layer has the name of the module that owns the
weight. A layer needs an input gradient if its input requires grad.

`adagp.tracing.weight_uses` recognises weights that are views, parts or copies of parameters, or used several times.
`adagp.tracing.autograd_record` records what autograd keeps for the backward pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adagp.errors import ModelError
from adagp.hw.workload import PRODUCT, RMS_NORM, Attention, Convolution, Elementwise, Layer, Linear, Workload
from adagp.layers.eval_mode import training_mode
from adagp.models.example import build_example
from adagp.tracing.autograd_record import AutogradRecord
from adagp.tracing.weight_uses import Elements, WeightUses

aten = torch.ops.aten
BATCH = 2
"""Samples in the traced batch: batch normalisation needs more than one."""

Inputs = Sequence[int] | Sequence[Tensor]


def trace(model: nn.Module, inputs: Inputs, name: str | None = None, batch: int = BATCH) -> Workload:
    """Return the workload of `model`.

    `inputs` is either the shape of one sample, for example `(3, 224, 224)`, or a sequence of tensors, for example
    token indices, whose batch is `batch`. Only their shapes and types matter.
    """
    label = name or type(model).__name__
    tracer = Tracer([*model.named_parameters(), *model.named_buffers()], batch)
    stand_ins = _stand_in_inputs(inputs, batch)
    try:
        with torch.enable_grad(), training_mode(model), tracer.recording(stand_ins), tracer.named_calls(model):
            torch.func.functional_call(model, tracer.stand_ins, stand_ins)
    except ModelError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        raise _trace_error(label, inputs, tracer, error) from error
    return tracer.workload(label)


def trace_model(
    name: str,
    *,
    classes: int,
    image: tuple[int, ...] | None = None,
    width: float = 1.0,
    batch: int = BATCH,
    task: str | None = None,
    length: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Workload:
    """Build a model of any task by its name (see `adagp.models.example`) without allocating weights, and trace it."""
    with torch.device("meta"), _NoValues():  # type: ignore[no-untyped-call]
        example = build_example(
            name, classes=classes, image=image, width=width, batch=batch, task=task, length=length, options=options
        )
    return trace(example.model, example.inputs, name, batch)


class Tracer(TorchDispatchMode):
    """Turns each operation into a layer. `stand_ins` replace the parameters and buffers of a model, by name."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = batch
        self.layers: list[Layer] = []
        self.stand_ins: dict[str, Tensor] = {}
        self.weights = WeightUses()
        self.record = AutogradRecord(self.weights, batch)
        self.operation = "the first operation"
        self.calls: list[str] = []
        self.tables: dict[int, Elements] = {}
        self.parameters = 0
        for name, tensor in tensors:
            self.parameters += tensor.numel() if tensor.requires_grad else 0
            stand_in = _like(tensor).requires_grad_(tensor.requires_grad)
            self.stand_ins[name] = stand_in
            module = (
                name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]
            )
            self.weights.add(stand_in, module or name, tensor.requires_grad)

    @property
    def module(self) -> str:
        """The name of the module that is running."""
        return self.calls[-1] if self.calls else ""

    @contextmanager
    def named_calls(self, model: nn.Module) -> Iterator[None]:
        """Keep the names of the running modules in `calls` inside the context, innermost last."""
        names = {module: name for name, module in model.named_modules()}
        handles = [
            nn.modules.module.register_module_forward_pre_hook(
                lambda module, _: self.calls.append(names.get(module, ""))
            ),
            nn.modules.module.register_module_forward_hook(lambda *_: self._leave()),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self) -> None:
        self.calls.pop()

    @contextmanager
    def recording(self, inputs: Iterable[Tensor]) -> Iterator[None]:
        """Record every operation, and what autograd saves, inside the context, in a call of the model with `inputs`."""
        with self.record.watched(inputs), self:
            yield

    def workload(self, name: str) -> Workload:
        """Return the recorded layers as a workload."""
        for index, table in self.tables.items():  # a table that is also the weight of a product is counted there
            layer = self.layers[index]
            if isinstance(layer, Elementwise) and not self.weights.is_used(table):
                self.layers[index] = replace(layer, parameters=table.count)
        layers, saved = self.record.finish(self.layers)
        return Workload(name, layers, saved, self.parameters)

    def used(self, weight: Elements | None) -> tuple[str, bool, int]:
        """Record a product with `weight`; return its module, whether it is trained, and how many elements had been used."""
        if weight is None:
            return self.module, False, 0
        return weight.owner, weight.trainable, self.weights.use(weight)

    def per_sample(self, size: int, what: str) -> int:
        """Return `size` divided by the batch size; raise if it does not divide. `what` describes it in the error."""
        if size % self.batch:
            raise ModelError(
                f"cannot trace module '{self.module}': {what} of {self.operation} is {size}, which does not divide by the "
                f"batch of {self.batch}, so it cannot be scaled to other batches."
            )
        return size // self.batch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation on shapes and record it."""
        self.operation = str(func)
        name = func.overloadpacket.__name__
        if not func.is_view:
            self.record.begin(name, self.module, len(self.layers))
        known = _known_shapes(func, args)
        result = func(*args, **(kwargs or {})) if known is None else known
        if func.is_view:
            return result
        operands, results = list(_tensors((*args, *(kwargs or {}).values()))), list(_tensors((result,)))
        if operands and all(self.weights.find(tensor) is not None for tensor in operands):
            self.weights.derive(name, operands, results)
        else:
            self.record.end(operands, results)
            rule = RULES.get(func.overloadpacket, _elementwise)
            rule(self, func, args, result)
        return result


Rule = Callable[[Tracer, Any, tuple[Any, ...], Any], None]


def _convolution(tracer: Tracer, func: Any, args: tuple[Any, ...], result: Tensor) -> None:
    source, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    dimensions = source.dim() - 2
    if dimensions > 2:
        raise ModelError(f"cannot trace module '{tracer.module}': a convolution of {dimensions} dimensions.")
    name, trainable, before = tracer.used(tracer.weights.find(weight))
    outputs, inputs = weight.shape[0], weight.shape[1] * groups
    if transposed:
        outputs, inputs = weight.shape[1] * groups, weight.shape[0]
    tracer.layers.append(
        Convolution(
            name,
            inputs,
            outputs,
            pair(weight.shape[2:]),
            pair(source.shape[2:]),
            pair(result.shape[2:]),
            pair(stride),
            pair(dilation),
            groups,
            bool(transposed),
            trainable,
            source.requires_grad,
            before,
        )
    )


def _matrix_product(tracer: Tracer, func: Any, args: tuple[Any, ...], result: Tensor) -> None:
    """Record a product of two matrices, or of a matrix and a vector, which is a matrix of one column."""
    left, right = args[1:3] if func.overloadpacket in (aten.addmm, aten.addmv) else args[:2]
    _products(tracer, (left, right), 1, (left.shape[0], left.shape[1], right.numel() // left.shape[1]))


def _batched_product(tracer: Tracer, func: Any, args: tuple[Any, ...], result: Tensor) -> None:
    left, right = args[1:3] if func.overloadpacket is aten.baddbmm else args[:2]
    _products(tracer, (left, right), left.shape[0], (left.shape[1], left.shape[2], right.shape[2]))


def _products(tracer: Tracer, factors: tuple[Tensor, Tensor], count: int, sizes: tuple[int, int, int]) -> None:
    """Record `count` independent products: as linear layers if a factor has weights, else as attention.

    A matrix of weights that is repeated for several of the products counts once.
    """
    rows, depth, columns = sizes
    source, weight = factors[0], tracer.weights.find(factors[1])
    if weight is None and (weight := tracer.weights.find(factors[0])) is not None:
        rows, columns, source = columns, rows, factors[1]  # weights times columns of activations
    groups = weight.count // (depth * columns) if weight is not None else 0
    if weight is None or groups == 0 or count % groups:
        _activations(tracer, factors, count, sizes)
        return
    rows = tracer.per_sample(rows * (count // groups), "the number of rows")
    name, trainable, before = tracer.used(weight)
    tracer.layers.append(Linear(name, rows, depth, columns, trainable, source.requires_grad, groups, before))


def _activations(tracer: Tracer, factors: tuple[Tensor, Tensor], count: int, sizes: tuple[int, int, int]) -> None:
    """Record products of activations: the batch is in the number of products or, for a single product, in its rows."""
    rows, depth, columns = sizes
    needed = any(factor.requires_grad for factor in factors)
    if factors[0].dim() == 2:
        rows = tracer.per_sample(rows, "the number of rows")
    else:
        count = tracer.per_sample(count, "the number of products")
    tracer.layers.append(Attention(tracer.module, count, rows, depth, columns, needed))


def _attention(tracer: Tracer, func: Any, args: tuple[Any, ...], result: Any) -> None:
    """Record fused attention of (batch, heads, length, width): the scores, then their product with the values."""
    query, key, value = args[:3]
    heads = tracer.per_sample(prod(query.shape[:-2]), "the number of heads")
    length, width, keys = query.shape[-2], query.shape[-1], key.shape[-2]
    needed = query.requires_grad or key.requires_grad or value.requires_grad
    tracer.layers.append(Attention(tracer.module, heads, length, width, keys, needed))
    tracer.layers.append(Attention(tracer.module, heads, length, keys, value.shape[-1], needed))


def _linear(tracer: Tracer, func: Any, args: tuple[Any, ...], result: Tensor) -> None:
    """Record a linear layer that torch did not decompose into a matrix product."""
    source, weight = args[:2]
    rows = tracer.per_sample(source.numel() // source.shape[-1], "the number of rows")
    name, trainable, before = tracer.used(tracer.weights.find(weight))
    needed = source.requires_grad
    tracer.layers.append(Linear(name, rows, weight.shape[1], weight.shape[0], trainable, needed, 1, before))


def _elementwise(tracer: Tracer, func: Any, args: tuple[Any, ...], result: Any) -> None:
    """Record any other operation: it reads its activations and writes its result once. Work on parameters is left out."""
    activations = [tensor for tensor in _tensors(args) if tracer.weights.find(tensor) is None]
    if not activations:
        return
    operation = _operation(func, activations)
    if operation == "embedding":
        _note_table(tracer, args[0])
    read = sum(tensor.numel() for tensor in activations) // tracer.batch
    written = sum(tensor.numel() for tensor in _tensors((result,))) // tracer.batch
    if read + written:
        tracer.layers.append(Elementwise(tracer.module, operation, read, written))
        _join_rms_norm(tracer)


def _operation(func: Any, activations: Sequence[Tensor]) -> str:
    """Return the name of an operation; it is `PRODUCT` for a product of several activations that need gradients."""
    name: str = func.overloadpacket.__name__
    differentiated = sum(tensor.requires_grad for tensor in activations)
    return PRODUCT if name in MULTIPLIES and differentiated > 1 else name


def _note_table(tracer: Tracer, weight: Tensor) -> None:
    """Record a trainable table of embeddings for the next layer."""
    table = tracer.weights.find(weight)
    if table is not None and table.trainable:
        tracer.tables[len(tracer.layers)] = table


MULTIPLIES = frozenset(("div", "div_", "mul", "mul_"))
RMS_STEPS = ("pow", "mean", "add", "rsqrt", PRODUCT)
"""The operations of x * rsqrt(mean(x^2) + epsilon), as models write it in Python: one normalisation on the accelerator."""


def _join_rms_norm(tracer: Tracer) -> None:
    """Replace the last layers by one, if they are the steps of an RMSNorm."""
    steps = tracer.layers[-len(RMS_STEPS) :]
    if not all(isinstance(step, Elementwise) and step.name == steps[0].name for step in steps):
        return
    if tuple(step.operation for step in steps if isinstance(step, Elementwise)) != RMS_STEPS:
        return
    words = steps[0].input_words
    if steps[-1].output_words == words == steps[1].input_words:
        del tracer.layers[-len(RMS_STEPS) :]
        tracer.layers.append(Elementwise(steps[0].name, RMS_NORM, words, words))
        tracer.record.join_layers(len(tracer.layers) - 1)


RULES: Mapping[Any, Rule] = {
    aten.convolution: _convolution,
    aten.mm: _matrix_product,
    aten.addmm: _matrix_product,
    aten.bmm: _batched_product,
    aten.baddbmm: _batched_product,
    aten.mv: _matrix_product,
    aten.addmv: _matrix_product,
    aten.linear: _linear,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention: _attention,
    aten._scaled_dot_product_efficient_attention: _attention,
    aten._scaled_dot_product_fused_attention_overrideable: _attention,
}


VALUES_ONLY = frozenset(
    getattr(aten, name)
    for name in (
        *("add_", "bernoulli_", "clamp_", "div_", "elu_", "erfinv_", "exponential_", "fill_", "hardtanh_"),
        *("leaky_relu_", "mul_", "normal_", "random_", "relu_", "sub_", "uniform_", "zero_"),
    )
)
"""In-place operations that change only values: on the meta device they have no effect."""


def _known_shapes(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the result of operations whose shape is obvious, which torch computes slowly on the meta device; else None."""
    if func.overloadpacket is aten.native_batch_norm:
        channels = args[0].shape[1]
        return _like(args[0]), args[0].new_empty(channels), args[0].new_empty(channels)
    # With a second tensor torch has to check that the shapes fit.
    if func.overloadpacket in VALUES_ONLY and len(list(_tensors(args))) == 1:
        return args[0]
    return None


class _NoValues(TorchDispatchMode):
    """Builds a model on the meta device without drawing its weights."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Skip operations that only set values."""
        known = _known_shapes(func, args) if args and isinstance(args[0], Tensor) and args[0].is_meta else None
        return func(*args, **(kwargs or {})) if known is None else known


def _like(tensor: Tensor) -> Tensor:
    """Return a stand-in of the same shape and type; `empty_like` is slow on the meta device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def pair(sizes: Sequence[int]) -> tuple[int, int]:
    """Return two sizes; a 1-D convolution is one of height 1."""
    return (1, int(sizes[0])) if len(sizes) == 1 else (int(sizes[0]), int(sizes[1]))


def _stand_in_inputs(inputs: Inputs, batch: int) -> tuple[Tensor, ...]:
    if inputs and all(isinstance(value, Tensor) for value in inputs):
        return tuple(_like(value) for value in inputs if isinstance(value, Tensor))
    return (torch.empty(batch, *(int(size) for size in inputs if isinstance(size, int)), device="meta"),)


def _trace_error(label: str, inputs: Inputs, tracer: Tracer, error: Exception) -> ModelError:
    where = f"module '{tracer.module}'" if tracer.module else "the model"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "meta" in reason.lower() or isinstance(error, NotImplementedError):
        return ModelError(
            f"cannot trace {label}: {tracer.operation} in {where} needs the values of a tensor, and tracing has only "
            "shapes."
        )
    shapes = [tuple(value.shape) if isinstance(value, Tensor) else value for value in inputs]
    sizes = "x".join(map(str, shapes))
    return ModelError(f"input {sizes} does not fit {label}: {tracer.operation} in {where} failed: {reason}.")

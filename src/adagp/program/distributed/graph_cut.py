"""Cutting models that are not a chain of modules, by the tracer of torch.distributed.pipelining, where named modules begin.

The tracer returns a graph of stages, in which a value may go from one stage to a much later one (a shortcut, a dense block's
outputs). Here such values are relayed from stage to stage, so that every stage has only its two neighbours, as all pipeline
schedules need it. Parameters, buffers and sites stay those of the model itself. A parameter may be used by several stages (a
tied embedding): `placement.TiedWeights` sums its gradients.
"""

import operator
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from adagp.engine.trial_forward import trial_forward
from adagp.errors import ModelError
from adagp.layers.sites import Survey
from adagp.pipe.partition import partition
from adagp.program.distributed.stages import ModelStage, SentStage, meta_tensor
from adagp.schedules.base import Layer

_CALL = re.compile(r"@\d+")
"""What the tracer appends to the name of a module in its second and later calls."""


def cut_traced(model: nn.Module, survey: Survey, sample: tuple[Tensor, ...], names: Sequence[str]) -> list[ModelStage]:
    """Cut `model` where the modules called `names` begin; `sample` are its inputs for a micro-batch."""
    _check_names(model, names)
    graph = _traced_graph(model, sample, names)
    children = sorted(graph.named_children(), key=lambda child: int(child[0].rpartition("_")[2]))
    modules = [module for _, module in children]
    if len(modules) != len(names) + 1:
        raise ModelError(
            f"cut at {', '.join(names)}, {type(model).__name__} has {len(modules)} stages, not {len(names) + 1}: one of the "
            "modules is not called, is called several times, or has nothing before it."
        )
    _tie(model, modules)
    _check_sites(survey, modules)
    sites = {site.name: site for site in survey.sites}
    stages = []
    for module, (relay, inputs, outputs) in zip(modules, _relays(graph, modules), strict=True):
        named = ((part, sites.get(_CALL.sub("", path))) for path, part in module.named_modules())
        stand_ins = tuple((part, site) for part, site in named if site is not None)
        by_index = {site.index: site for _, site in stand_ins}
        to_memory_order = tuple(by_index[index] for index in sorted(by_index))
        stages.append(ModelStage(SentStage(relay), to_memory_order, inputs, outputs, stand_ins))
    return stages


def _traced_graph(model: nn.Module, sample: tuple[Tensor, ...], names: Sequence[str]) -> fx.GraphModule:
    try:
        with _forwards_kept(model, names), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own code
            return pipeline(model, sample, split_spec=dict.fromkeys(names, SplitPoint.BEGINNING)).split_gm
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ModelError(
            f"{type(model).__name__} cannot be cut at {', '.join(names)}: torch's tracer fails on it ({reason})."
        ) from error


def split_names(model: nn.Module, survey: Survey, sample: Any, parts: int) -> list[str]:
    """Return the modules at which to cut `model` into `parts` stages of about equal work, made of whole blocks."""
    layers = [layer for layer in trial_forward(model, survey, sample).layout.layers if layer.is_site]
    blocks = list(_blocks(model, ""))
    work = _work_by_block(layers, blocks)
    while len(work) < parts:
        inner = [deeper for path in blocks for deeper in _children(model, path)]
        if inner == blocks:
            break
        blocks, work = inner, _work_by_block(layers, inner)
    if len(work) < parts:
        raise ModelError(
            f"the model can be cut into {len(work)} stages at most, one for each block that has a layer with predicted "
            f"gradients; the pipeline has {parts}."
        )
    names = list(work)
    return [names[group[0]] for group in partition(list(work.values()), parts)[1:]]


def _work_by_block(layers: Iterable[Layer], blocks: Sequence[str]) -> dict[str, int]:
    work: dict[str, int] = {}
    for layer in layers:
        block = next((path for path in blocks if f"{layer.name}.".startswith(f"{path}.")), layer.name)
        work[block] = work.get(block, 0) + layer.macs
    return work


def _blocks(module: nn.Module, path: str) -> Iterator[str]:
    """Yield the paths of the modules that a model is made of; containers are unpacked."""
    for name, child in module.named_children():
        inner = f"{path}{name}"
        if isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            yield from _blocks(child, f"{inner}.")
        else:
            yield inner


def _children(model: nn.Module, path: str) -> list[str]:
    return list(_blocks(model.get_submodule(path), f"{path}.")) or [path]


def _check_names(model: nn.Module, names: Sequence[str]) -> None:
    known = dict(model.named_modules())
    for name in names:
        if not name or name not in known:
            top = ", ".join(name for name, _ in model.named_children())
            raise ModelError(f"there is no module '{name}' in {type(model).__name__} to cut at; it has {top}, ...")


@contextmanager
def _forwards_kept(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Remove the forwards that the tracer leaves in the modules to mark the split points."""
    try:
        yield
    finally:
        for name in names:
            for attribute in ("forward", "_orig_forward"):
                vars(model.get_submodule(name)).pop(attribute, None)


def _tie(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Put the model's own parameters and buffers into the traced stages."""
    parameters, buffers = dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers())
    for module in modules:
        for path, part in module.named_modules():
            for name in list(part._parameters):
                full = _CALL.sub("", f"{path}.{name}" if path else name)
                part._parameters[name] = parameters[full]
            for name in list(part._buffers):
                full = _CALL.sub("", f"{path}.{name}" if path else name)
                part._buffers[name] = buffers.get(full, part._buffers[name])


def _check_sites(survey: Survey, modules: Sequence[nn.Module]) -> None:
    """Raise ModelError if several stages call a layer with predicted gradients: each would see a part of its calls."""
    for site in survey.sites:
        users = [
            stage
            for stage, module in enumerate(modules)
            if any(parameter is site.weight for parameter in module.parameters())
        ]
        if len(users) > 1:
            raise ModelError(
                f"layer '{site.name}' is called in the stages {' and '.join(map(str, users))}: each would see only "
                "part of its calls, and predict a different gradient. Cut elsewhere (--split), or use --parallel data."
            )


class _Relay(nn.Module):
    """A stage that passes on what later stages need.

    `takes` are the indices of its inputs that the module takes. `gives` are its outputs: an output of the module by its index
    (True), or an input (False).
    """

    def __init__(self, module: nn.Module, takes: Sequence[int], gives: Sequence[tuple[bool, int]]) -> None:
        super().__init__()
        self.module = module
        self.takes, self.gives = tuple(takes), tuple(gives)

    def forward(self, *values: Tensor) -> Any:
        results = self.module(*(values[index] for index in self.takes))
        results = results if isinstance(results, tuple | list) else (results,)
        outputs = tuple(results[index] if is_made else values[index] for is_made, index in self.gives)
        return outputs if len(outputs) > 1 else outputs[0]


MetaTensors = tuple[Tensor, ...]


def _relays(
    graph: fx.GraphModule, modules: Sequence[nn.Module]
) -> Iterator[tuple[nn.Module, MetaTensors, MetaTensors]]:
    """Yield each stage as one that has only its neighbours, with its inputs and outputs."""
    nodes = [node for node in graph.graph.nodes if node.op == "call_module"]
    values, results = _Values(graph.graph, nodes), _results(graph.graph)
    for value in results:
        values.last_use[value] = len(nodes)
    shapes = values.meta_tensors(modules, results)
    live = [values.live(stage) for stage in range(len(nodes))] + [results]
    for stage, (node, module) in enumerate(zip(nodes, modules, strict=True)):
        takes = [live[stage].index(value) for value in node.args]
        gives = [values.origin(value, stage, live[stage]) for value in live[stage + 1]]
        inputs, outputs = (tuple(shapes[value] for value in side) for side in (live[stage], live[stage + 1]))
        yield _Relay(module, takes, gives), inputs, outputs


def _results(graph: fx.Graph) -> list[fx.Node]:
    """Return the values that the model returns: a tensor, or several in a tuple or list."""
    returned = _returned(graph)
    while isinstance(returned, tuple | list) and len(returned) == 1:
        returned = returned[0]
    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not all(isinstance(value, fx.Node) for value in results):
        raise ModelError("a pipeline needs a model that returns a tensor, or several in a tuple or list.")
    return results


class _Values:
    """The tensors of a graph of stages: the stage that makes each (-1: it is an input), as which output, and its last user."""

    def __init__(self, graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
        stages = {node: stage for stage, node in enumerate(nodes)}
        self.maker: dict[fx.Node, int] = {}
        self.number: dict[fx.Node, int] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                self.maker[node] = -1
            elif node in stages:
                self.maker[node], self.number[node] = stages[node], 0
            elif node.target is operator.getitem:
                whole, number = node.args
                self.maker[node], self.number[node] = stages[whole], number
        self.last_use = {
            value: max((stages[user] for user in value.users if user in stages), default=-1) for value in self.maker
        }
        self.nodes = nodes

    def live(self, stage: int) -> list[fx.Node]:
        """Return the values that pass the cut before `stage`: made before it, and used by it or later."""
        if stage == 0:
            return [value for value, maker in self.maker.items() if maker < 0]
        return [value for value, maker in self.maker.items() if maker < stage <= self.last_use[value]]

    def origin(self, value: fx.Node, stage: int, inputs: Sequence[fx.Node]) -> tuple[bool, int]:
        """Return whether `stage` makes a value, and its place among the results of the stage, or else among its inputs."""
        return (True, self.number[value]) if self.maker[value] == stage else (False, inputs.index(value))

    def meta_tensors(self, modules: Sequence[nn.Module], results: Sequence[fx.Node]) -> Mapping[fx.Node, Tensor]:
        """Return shape and type of each value, as in the stages that use it."""
        tensors: dict[fx.Node, Tensor] = {}
        for node, module in zip(self.nodes, modules, strict=True):
            placeholders = [inner for inner in _graph(module).nodes if inner.op == "placeholder"]
            for value, placeholder in zip(node.args, placeholders, strict=True):
                tensors[value] = _meta_tensor(placeholder)  # type: ignore[index]  # its arguments are nodes
        for value, maker in self.maker.items():
            if maker < 0 and value not in tensors:
                tensors[value] = _meta_tensor(value)
        for value in results:
            inner = _returned(_graph(modules[self.maker[value]]))
            while isinstance(inner, tuple | list):
                inner = inner[self.number[value]]
            tensors[value] = _meta_tensor(inner)
        return tensors


def _returned(graph: fx.Graph) -> Any:
    return next(node for node in graph.nodes if node.op == "output").args[0]


def _meta_tensor(node: fx.Node) -> Tensor:
    return meta_tensor(node.meta["val"].shape, node.meta["val"].dtype)


def _graph(module: Any) -> fx.Graph:
    graph: fx.Graph = module.graph
    return graph

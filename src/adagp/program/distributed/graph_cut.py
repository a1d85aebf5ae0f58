"""Models that are no chain of modules, cut by the tracer of torch.distributed.pipelining at the beginning of named modules.

The tracer gives a graph of stages; a value may go from one stage to a much later one (a shortcut, a dense block's outputs).
Here such values are handed on from stage to stage, so that each stage has one neighbour before and one behind it: every
pipeline can run them then, also those whose schedules know neighbours alone. Parameters, buffers and sites stay those of
the model itself. A parameter may be used by several stages (a tied embedding): `tied.py` adds up its gradients.
"""

import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from adagp.engine.validate import try_out
from adagp.errors import ModelError
from adagp.layers.sites import Survey
from adagp.pipe.partition import partition
from adagp.program.distributed.stages import ModelStage, SentStage, described

_CALL = re.compile(r"@\d+")
"""What the tracer adds to the name of a module in its second and further calls."""


def cut_traced(model: nn.Module, survey: Survey, sample: tuple[Tensor, ...], names: Sequence[str]) -> list[ModelStage]:
    """Cut `model` where the modules called `names` begin; `sample` are its inputs for a micro-batch."""
    _refuse_unknown(model, names)
    try:
        with _forwards_kept(model, names), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about its own
            graph = pipeline(model, sample, split_spec=dict.fromkeys(names, SplitPoint.BEGINNING)).split_gm
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ModelError(
            f"{type(model).__name__} cannot be cut at {', '.join(names)}: torch's tracer does not get through it ({reason})."
        ) from error
    modules = [one for _, one in sorted(graph.named_children(), key=lambda pair: int(pair[0].rpartition("_")[2]))]
    if len(modules) != len(names) + 1:
        raise ModelError(
            f"cut at {', '.join(names)}, {type(model).__name__} has {len(modules)} stages, not {len(names) + 1}: one of the "
            "modules is not called, is called several times, or has nothing before it."
        )
    _tie(model, modules)
    _refuse_split_sites(survey, modules)
    sites = {site.name: site for site in survey.sites}
    stages = []
    for module, (relay, inputs, outputs) in zip(modules, _relays(graph, modules), strict=True):
        named = ((part, sites.get(_CALL.sub("", path))) for path, part in module.named_modules())
        working = tuple((part, site) for part, site in named if site is not None)
        own = {site.index: site for _, site in working}
        chosen = tuple(own[index] for index in sorted(own))
        stages.append(ModelStage(SentStage(relay), chosen, inputs, outputs, working))
    return stages


def split_names(model: nn.Module, survey: Survey, sample: Any, parts: int) -> list[str]:
    """Return the modules at which to cut `model` into `parts` stages with as equal work as whole blocks allow."""
    layers = [layer for layer in try_out(model, survey, sample).layout.layers if layer.is_site]
    blocks = list(_blocks(model, ""))
    units: dict[str, int] = {}
    while True:
        units = {}
        for layer in layers:
            block = next((one for one in blocks if f"{layer.name}.".startswith(f"{one}.")), layer.name)
            units[block] = units.get(block, 0) + layer.macs
        inner = [deeper for one in blocks for deeper in _children(model, one)]
        if len(units) >= parts or inner == blocks:
            break
        blocks = inner
    if len(units) < parts:
        raise ModelError(
            f"the model can be cut into {len(units)} stages at most, one for each block that has a layer with predicted "
            f"gradients; {parts} were asked for."
        )
    names = list(units)
    return [names[group[0]] for group in partition(list(units.values()), parts)[1:]]


def _blocks(module: nn.Module, path: str) -> Iterator[str]:
    """Yield the paths of the modules that a model is made of; containers are taken apart."""
    for name, child in module.named_children():
        inner = f"{path}{name}"
        if isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            yield from _blocks(child, f"{inner}.")
        else:
            yield inner


def _children(model: nn.Module, path: str) -> list[str]:
    return list(_blocks(model.get_submodule(path), f"{path}.")) or [path]


def _refuse_unknown(model: nn.Module, names: Sequence[str]) -> None:
    known = dict(model.named_modules())
    for name in names:
        if not name or name not in known:
            top = ", ".join(name for name, _ in model.named_children())
            raise ModelError(f"there is no module '{name}' in {type(model).__name__} to cut at; it has {top}, ...")


@contextmanager
def _forwards_kept(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Take back what marks the split points: the tracer leaves other forwards in the modules."""
    try:
        yield
    finally:
        for name in names:
            for attribute in ("forward", "_orig_forward"):
                vars(model.get_submodule(name)).pop(attribute, None)


def _tie(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Give the stages the model's own parameters and buffers."""
    parameters, buffers = dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers())
    for module in modules:
        for path, part in module.named_modules():
            for name in list(part._parameters):
                full = _CALL.sub("", f"{path}.{name}" if path else name)
                part._parameters[name] = parameters[full]
            for name in list(part._buffers):
                full = _CALL.sub("", f"{path}.{name}" if path else name)
                part._buffers[name] = buffers.get(full, part._buffers[name])


def _refuse_split_sites(survey: Survey, modules: Sequence[nn.Module]) -> None:
    """Refuse a layer with predicted gradients that several stages call: each would predict from a part of its calls."""
    for site in survey.sites:
        users = [
            stage for stage, module in enumerate(modules) if any(one is site.weight for one in module.parameters())
        ]
        if len(users) > 1:
            raise ModelError(
                f"layer '{site.name}' is called in the stages {' and '.join(map(str, users))}: each would see a part of its "
                "calls, and predict another gradient. Cut elsewhere (--split), or use --parallel data."
            )


class _Relay(nn.Module):
    """A stage that hands on what later stages need: `takes` are places among its inputs, `gives` says what comes out.

    What comes out is the module's own output of a number (True), or an input (False).
    """

    def __init__(self, module: nn.Module, takes: Sequence[int], gives: Sequence[tuple[bool, int]]) -> None:
        super().__init__()
        self.module = module
        self.takes, self.gives = tuple(takes), tuple(gives)

    def forward(self, *values: Tensor) -> Any:
        found = self.module(*(values[place] for place in self.takes))
        own = found if isinstance(found, tuple | list) else (found,)
        given = tuple(own[place] if made else values[place] for made, place in self.gives)
        return given if len(given) > 1 else given[0]


Described = tuple[Tensor, ...]


def _relays(graph: fx.GraphModule, modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, Described, Described]]:
    """Yield each stage as one that knows its neighbours alone, and what it takes and gives."""
    nodes = [node for node in graph.graph.nodes if node.op == "call_module"]
    values, answers = _Values(graph.graph, nodes), _answers(graph.graph)
    for one in answers:
        values.last_use[one] = len(nodes)
    known = values.described(modules, answers)
    live = [values.live(stage) for stage in range(len(nodes))] + [answers]
    for stage, (node, module) in enumerate(zip(nodes, modules, strict=True)):
        takes = [live[stage].index(one) for one in node.args]
        gives = [
            (True, values.number[one]) if values.maker[one] == stage else (False, live[stage].index(one))
            for one in live[stage + 1]
        ]
        inputs, outputs = (tuple(known[one] for one in side) for side in (live[stage], live[stage + 1]))
        yield _Relay(module, takes, gives), inputs, outputs


def _answers(graph: fx.Graph) -> list[fx.Node]:
    """Return what the model returns: a tensor, or several in a tuple or list."""
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    while isinstance(found, tuple | list) and len(found) == 1:
        found = found[0]
    answers = list(found) if isinstance(found, tuple | list) else [found]
    if not all(isinstance(one, fx.Node) for one in answers):
        raise ModelError("a pipeline needs a model that returns a tensor, or several in a tuple or list.")
    return answers


class _Values:
    """The tensors of a graph of stages: which stage makes each (-1: it is an input), as which output, and who uses it last."""

    def __init__(self, graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
        places = {node: stage for stage, node in enumerate(nodes)}
        self.maker: dict[fx.Node, int] = {}
        self.number: dict[fx.Node, int] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                self.maker[node] = -1
            elif node in places:
                self.maker[node], self.number[node] = places[node], 0
            elif node.target is operator.getitem:
                whole, number = node.args
                self.maker[node], self.number[node] = places[whole], number
        self.last_use = {
            one: max((places[user] for user in one.users if user in places), default=-1) for one in self.maker
        }
        self.nodes = nodes

    def live(self, stage: int) -> list[fx.Node]:
        """Return what passes the cut before `stage`: made before it, and used by it or later."""
        if stage == 0:
            return [one for one, maker in self.maker.items() if maker < 0]
        return [one for one, maker in self.maker.items() if maker < stage <= self.last_use[one]]

    def described(self, modules: Sequence[nn.Module], answers: Sequence[fx.Node]) -> Mapping[fx.Node, Tensor]:
        """Return shape and type of each value, as the stages that use it have them."""
        found: dict[fx.Node, Tensor] = {}
        for node, module in zip(self.nodes, modules, strict=True):
            inner = [one for one in _graph(module).nodes if one.op == "placeholder"]
            for one, placeholder in zip(node.args, inner, strict=True):
                seen = placeholder.meta["val"]
                found[one] = described(seen.shape, seen.dtype)  # type: ignore[index]  # its arguments are nodes
        for one, maker in self.maker.items():
            if maker < 0 and one not in found:
                found[one] = described(one.meta["val"].shape, one.meta["val"].dtype)
        for answer in answers:
            inner = next(one for one in _graph(modules[self.maker[answer]]).nodes if one.op == "output").args[0]
            while isinstance(inner, tuple | list):
                inner = inner[self.number[answer]]
            seen = inner.meta["val"]
            found[answer] = described(seen.shape, seen.dtype)
        return found


def _graph(module: Any) -> fx.Graph:
    found: fx.Graph = module.graph
    return found

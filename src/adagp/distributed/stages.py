"""A model as a chain of modules, and the chain cut into stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from adagp.engine.trial import try_out
from adagp.errors import ModelError
from adagp.modes import evaluation_mode
from adagp.pipe.partition import partition
from adagp.sites import Site, Survey


@dataclass(frozen=True)
class ModelStage:
    """Modules that run one after the other, the sites among them, and the shapes of a micro-batch on the way in and out."""

    modules: tuple[nn.Module, ...]
    sites: tuple[Site, ...]
    input_shape: torch.Size
    output_shape: torch.Size

    def forward(self, value: Tensor) -> Tensor:
        """Run the modules."""
        for module in self.modules:
            value = module(value)
        return value

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trainable parameters of the stage."""
        return [one for module in self.modules for one in module.parameters() if one.requires_grad]

    @property
    def buffers(self) -> list[Tensor]:
        """The running statistics and other buffers of real numbers."""
        return [one for module in self.modules for one in module.buffers() if one.is_floating_point()]

    @property
    def tensors(self) -> list[Tensor]:
        """All that the stage's state_dict holds."""
        return [one for module in self.modules for one in module.state_dict().values()]


def chain(model: nn.Module, sample: Tensor) -> tuple[list[nn.Module], list[torch.Size]]:
    """Return modules that, one after the other, compute what `model` computes, and the shapes before, between and after them.

    Sequential containers are taken apart. Of another model its children are tried in their order, with a `Flatten` before
    the first linear layer, which is how many image models are written. If that gives something else than the model, it
    cannot be cut. It is tried out on `sample`.
    """
    modules, shapes = list(_links(model)), [sample.shape]
    with evaluation_mode(model), torch.no_grad():
        try:
            expected, found = model(sample), sample
            for module in modules:
                found = module(found)
                shapes.append(found.shape)
            same = torch.equal(expected, found)
        except RuntimeError:
            same = False
    if not same:
        raise ModelError(
            f"{type(model).__name__} cannot be cut into stages: its modules, called one after the other, do not compute "
            "what it computes. Write it as an nn.Sequential, or use --parallel data."
        )
    return modules, shapes


def _links(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, nn.Sequential):
        for child in model:
            yield from _links(child)
        return
    children = list(model.children())
    if not children or not _is_top(model, children):
        yield model
        return
    flat = False
    for child in children:
        links = list(_links(child))
        if not flat and isinstance(_first_weighted(links), nn.Linear):
            yield nn.Flatten()
            flat = True
        yield from links


def _is_top(model: nn.Module, children: Sequence[nn.Module]) -> bool:
    """Tell the model itself from its blocks, which stay whole: it ends in a classifier."""
    last = children[-1]
    links = list(last) if isinstance(last, nn.Sequential) else [last]
    return isinstance(links[-1], nn.Linear)


def _first_weighted(links: Sequence[nn.Module]) -> nn.Module:
    return next((link for link in links if any(True for _ in link.parameters())), links[0])


def cut(model: nn.Module, survey: Survey, sample: Tensor, parts: int) -> list[ModelStage]:
    """Cut `model` into `parts` stages, each with a site at least, balanced by their multiply-accumulates."""
    modules, shapes = chain(model, sample)
    owner = {module: place for place, link in enumerate(modules) for module in link.modules()}
    starts = sorted({owner[site.module] for site in survey.sites})
    if parts > len(starts):
        raise ModelError(
            f"the model can be cut into {len(starts)} stages at most, one for each module of its chain that has a layer "
            f"with predicted gradients; {parts} were asked for."
        )
    edges = [0, *starts[1:], len(modules)]  # what comes before the first site goes with it
    units = list(pairwise(edges))
    macs = {layer.name: layer.macs for layer in try_out(model, survey, sample).layout.layers}
    work = [sum(macs[site.name] for site in survey.sites if low <= owner[site.module] < high) for low, high in units]
    stages = []
    for chosen in partition(work, parts):
        low, high = units[chosen[0]][0], units[chosen[-1]][1]
        own = tuple(site for site in survey.sites if low <= owner[site.module] < high)
        stages.append(ModelStage(tuple(modules[low:high]), own, shapes[low], shapes[high]))
    return stages

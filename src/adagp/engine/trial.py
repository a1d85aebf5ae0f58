"""A trial forward pass: in which order a model's layers run, what they cost, and the shapes of the sites' outputs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor, nn

from adagp.engine.inputs import call
from adagp.layers.eval_mode import evaluation_mode
from adagp.layers.sites import Site, Survey
from adagp.schedules.layout import Layer, Layout


@dataclass(frozen=True)
class Trial:
    """What a trial forward pass has shown; `shapes` are those of the last call of each site that was called."""

    layout: Layout
    shapes: dict[Site, Size]


def registered(survey: Survey) -> Layout:
    """Return the sites in the order in which the model has registered them: all that is known without a trial."""
    return Layout(tuple(Layer(site.name, site.rule.kind, is_site=True) for site in survey.sites))


@torch.no_grad()
def try_out(model: nn.Module, survey: Survey, sample: Any) -> Trial:
    """Run `model` on a batch of inputs in evaluation mode, which changes nothing in it, and note what runs when.

    A parameter whose layer is not called itself (attention projections, loose parameters) takes the place of the nearest
    layer around it that is; a site that is not called comes last.
    """
    order: dict[str, int] = {}
    macs: dict[Site, int] = {}
    shapes: dict[Site, Size] = {}

    def note(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            order.setdefault(path, len(order))

        return hook

    def look(site: Site) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            macs[site] = macs.get(site, 0) + site.macs(inputs, output)
            shapes[site] = output.shape

        return hook

    handles = [module.register_forward_pre_hook(note(path)) for path, module in model.named_modules()]
    handles += [site.module.register_forward_hook(look(site)) for site in survey.sites]
    try:
        with evaluation_mode(model):
            _ = call(model, sample)
    finally:
        for handle in handles:
            handle.remove()
    return Trial(Layout(_layers(survey, order, macs), measured=True), shapes)


def _layers(survey: Survey, order: dict[str, int], macs: dict[Site, int]) -> tuple[Layer, ...]:
    held: dict[str, list[str]] = {}
    for one in survey.rest:
        held.setdefault(one.name.rpartition(".")[0], []).append(one.name)
    sites = {site.name: site for site in survey.sites}
    placed = []
    for path in dict.fromkeys([*sites, *held]):
        site = sites.get(path)
        layer = Layer(
            path,
            "other" if site is None else site.rule.kind,
            is_site=site is not None,
            macs=0 if site is None else macs.get(site, 0),
            held=tuple(held.get(path, ())),
        )
        uncalled = site is not None and path not in order
        placed.append((len(order) if uncalled else _place(path, order), layer))
    return tuple(layer for _, layer in sorted(placed, key=lambda pair: pair[0]))


def _place(path: str, order: dict[str, int]) -> int:
    while path not in order:
        path = path.rpartition(".")[0]
    return order[path]

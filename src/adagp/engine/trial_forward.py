"""A trial forward pass: the order in which a model calls its layers, the sizes of their inputs and outputs, and their work."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor, nn

from adagp.engine.hooks import call, main_output
from adagp.layers.eval_mode import evaluation_mode
from adagp.layers.sites import Site, Survey
from adagp.schedules.base import Layer, Layout
from adagp.sources.demand import TrialCall


@dataclass(frozen=True)
class TrialForward:
    """The result of a trial forward pass: the order of the layers, every call of a site, and what the model returned."""

    layout: Layout
    calls: tuple[TrialCall, ...]
    returned: Any

    @property
    def shapes(self) -> dict[Site, Size]:
        """The sizes of the output in the last call of each site that was called."""
        return {call.site: call.output for call in self.calls}


def registered_layout(survey: Survey) -> Layout:
    """Return the sites in the order in which the model registers them: without a trial, the order of execution is unknown."""
    return Layout(tuple(Layer(site.name, site.rule.kind, is_site=True) for site in survey.sites))


@torch.no_grad()
def trial_forward(model: nn.Module, survey: Survey, sample: Any) -> TrialForward:
    """Run `model` on a batch of inputs in evaluation mode, which does not change it, and record which layers run, in what
    order.

    A parameter whose own module is not called (attention projections, loose parameters) gets the position of the nearest module
    around it that is called. A site that is not called comes last.
    """
    order: dict[str, int] = {}
    calls: list[TrialCall] = []

    def note(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            order.setdefault(path, len(order))

        return hook

    def look(site: Site) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], returned: Any) -> None:
            output = returned if isinstance(returned, Tensor) else main_output(site, returned)
            input_shape = inputs[0].shape if inputs else Size()
            calls.append(TrialCall(site, input_shape, output.shape, site.macs(inputs, output)))

        return hook

    handles = [module.register_forward_pre_hook(note(path)) for path, module in model.named_modules()]
    handles += [site.module.register_forward_hook(look(site)) for site in survey.sites]
    try:
        with evaluation_mode(model):
            returned = call(model, sample)
    finally:
        for handle in handles:
            handle.remove()
    macs: Counter[Site] = Counter()
    for site_call in calls:
        macs[site_call.site] += site_call.macs
    return TrialForward(Layout(_layers(survey, order, macs), measured=True), tuple(calls), returned)


def _layers(survey: Survey, order: Mapping[str, int], macs: Mapping[Site, int]) -> tuple[Layer, ...]:
    others: dict[str, list[str]] = {}
    for other in survey.rest:
        others.setdefault(other.name.rpartition(".")[0], []).append(other.name)
    sites = {site.name: site for site in survey.sites}
    placed = []
    for path in dict.fromkeys([*sites, *others]):
        site = sites.get(path)
        layer = Layer(
            path,
            "other" if site is None else site.rule.kind,
            is_site=site is not None,
            macs=0 if site is None else macs.get(site, 0),
            other_parameters=tuple(others.get(path, ())),
        )
        uncalled = site is not None and path not in order
        placed.append((len(order) if uncalled else _position(path, order), layer))
    return tuple(layer for _, layer in sorted(placed, key=lambda pair: pair[0]))


def _position(path: str, order: Mapping[str, int]) -> int:
    while path not in order:
        path = path.rpartition(".")[0]
    return order[path]

"""What is known of a model before training: what adagp will do with it and its optimizer, what it cannot do, and what a trial
forward pass shows.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor, nn

from adagp.core.html_tables import html_table
from adagp.engine.hooks import call, main_output
from adagp.errors import ModelError
from adagp.layers.eval_mode import evaluation_mode
from adagp.layers.sites import Site, Survey, survey
from adagp.schedules.base import Layer, Layout


@dataclass(frozen=True)
class Validation:
    """The findings of `validate`. `problems` must be fixed before training; `notes` are worth knowing."""

    survey: Survey
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def raise_problems(self) -> None:
        """Raise a `ModelError` with all problems, if there are any."""
        if self.problems:
            raise ModelError(" ".join(self.problems))

    def __str__(self) -> str:
        sites, rest = self._titles()
        lines = [sites]
        lines += [
            f"  {site.name:<32} {type(site.module).__name__:<15} {site.rows} samples x {site.width} gradients"
            for site in self.survey.sites
        ]
        lines.append(rest)
        lines += [f"  {other.name:<32} {other.reason}" for other in self.survey.rest]
        return "\n".join([*lines, *self._remarks()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the same as two tables, for notebooks."""
        sites, rest = self._titles()
        kinds = ((site.name, type(site.module).__name__, f"{site.rows}", f"{site.width}") for site in self.survey.sites)
        reasons = ((other.name, other.reason) for other in self.survey.rest)
        first = html_table(sites, ("site", "layer", "samples", "gradients"), kinds)
        return first + html_table(rest, ("parameter", "why"), reasons, self._remarks())

    def _titles(self) -> tuple[str, str]:
        sites, rest = self.survey.sites, self.survey.rest
        predicted = sum(site.weight.numel() for site in sites)
        numbers = sum(other.parameter.numel() for other in rest)
        return (
            f"{len(sites)} sites, {predicted:,} weights: predicted in GP batches",
            f"{len(rest)} other parameters, {numbers:,} numbers: frozen in GP batches, backprop in BP batches",
        )

    def _remarks(self) -> list[str]:
        return [f"note: {note}" for note in self.notes] + [f"problem: {problem}" for problem in self.problems]


def validate(
    model: nn.Module, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer], exclude: Sequence[str] = ()
) -> Validation:
    """Look at a model and its optimizers without changing or running them. `print` the answer to read it."""
    optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    optimized = [parameter for group in groups for parameter in group["params"]]
    surveyed = survey(model, optimized, exclude)
    return Validation(
        surveyed, tuple(_problems(model, optimizers, optimized, surveyed)), tuple(_notes(model, optimized, surveyed))
    )


def _problems(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], optimized: Sequence[nn.Parameter], surveyed: Survey
) -> list[str]:
    own = {id(parameter) for parameter in model.parameters()}
    problems = [
        f"{type(optimizer).__name__} calls a closure several times per step, each with a loss and a backward pass; "
        "a GP batch has neither. Use an optimizer whose step() needs no closure."
        for optimizer in optimizers
        if _needs_closure(optimizer)
    ]
    if optimized and not any(id(parameter) in own for parameter in optimized):
        problems.append(
            f"none of the optimizer's {len(optimized)} parameters belongs to the model: it is the optimizer of another model, "
            "or the model was copied or converted after the optimizer was made."
        )
    elif not surveyed.sites:
        problems.append(
            "the model has no layer whose gradient can be predicted: no trainable weight of a convolution, "
            "transposed convolution or linear layer in the optimizer, nor a layer with a rule of your own "
            "(adagp.register_rule)."
        )
    return problems


def _notes(model: nn.Module, optimized: Sequence[nn.Parameter], surveyed: Survey) -> list[str]:
    own = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(parameter) not in own for parameter in optimized)
    unknown = sorted(
        {other.reason.removeprefix("no rule for layer type ") for other in surveyed.rest if "no rule" in other.reason}
    )
    notes = []
    if foreign:
        notes.append(f"{foreign} parameters of the optimizer do not belong to the model; GP batches freeze them.")
    if unknown:
        notes.append(f"no rule for {', '.join(unknown)}; adagp.register_rule makes such layers sites.")
    return notes


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    if isinstance(optimizer, torch.optim.LBFGS):
        return True
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


@dataclass(frozen=True)
class TrialForward:
    """What a trial forward pass has shown; `shapes` are those of the last call of each site that was called."""

    layout: Layout
    shapes: dict[Site, Size]


def registered_layout(survey: Survey) -> Layout:
    """Return the sites in the order in which the model has registered them: all that is known without a trial."""
    return Layout(tuple(Layer(site.name, site.rule.kind, is_site=True) for site in survey.sites))


@torch.no_grad()
def trial_forward(model: nn.Module, survey: Survey, sample: Any) -> TrialForward:
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
        def hook(module: nn.Module, inputs: tuple[Any, ...], returned: Any) -> None:
            output = returned if isinstance(returned, Tensor) else main_output(site, returned)
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
    return TrialForward(Layout(_layers(survey, order, macs), measured=True), shapes)


def _layers(survey: Survey, order: dict[str, int], macs: dict[Site, int]) -> tuple[Layer, ...]:
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


def _position(path: str, order: dict[str, int]) -> int:
    while path not in order:
        path = path.rpartition(".")[0]
    return order[path]

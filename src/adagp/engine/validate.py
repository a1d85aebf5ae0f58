"""Validation before training: how adagp will train a model, what a method needs, and what it cannot train."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Size, nn

from adagp.core.escape import html_table
from adagp.engine.arguments import MethodLike, check_model, check_patterns, read_method, read_optimizers
from adagp.engine.hooks import OutputSelector, selected
from adagp.engine.trial_forward import TrialForward, trial_forward
from adagp.errors import AdagpError, ModelError, OptionError
from adagp.layers.sites import Site, Survey, survey
from adagp.sources.base import RunFacts, RunningNorms, Source, SplitSource, build_source
from adagp.sources.demand import Demand, TrialCall, chain_macs, weight_bytes, weight_gradient_macs


@dataclass(frozen=True)
class MethodDemand:
    """The memory and the work of a method for batches like the sample; `demand` is None if the source does not declare it.

    Prices are the multiply-accumulates of sites, as a fraction of those in a batch of plain backprop: counted, not timed.
    `weights` is the size of the weights in bytes. `has_backward`: a GP batch has a backward pass too, for which autograd keeps
    activations.
    """

    method: str
    samples: int
    weights: int
    demand: Demand | None
    gp_price: float
    bp_price: float
    has_backward: bool = False

    def lines(self) -> list[str]:
        """Return the figures as text, one line each."""
        title = f"memory and price of '{self.method}' in batches of {self.samples} samples: counted, not timed"
        demand = self.demand
        if demand is None:
            return [title, "  not known for this method"]
        comparison = (
            "in addition to what autograd keeps" if self.has_backward else "while backprop keeps all activations"
        )
        rows = (
            ("kept between batches", f"{_size(demand.state)}, {demand.state / self.weights:.1f} times the weights"),
            ("kept in a GP batch", f"{_size(demand.gp_bytes)}, {comparison}"),
            ("kept in a BP batch", f"{_size(demand.bp_bytes)} more than by backprop"),
            ("price of a GP batch", f"{self.gp_price:.2f} of a batch by backprop, in multiply-accumulates"),
            ("price of a BP batch", f"{self.bp_price:.2f}"),
        )
        return [title, *(f"  {name:<24} {figure}" for name, figure in rows)]


@dataclass(frozen=True)
class Findings:
    """The problems of a method with a model, and the arguments of `attach` that avoid them; None: there are none."""

    problems: tuple[str, ...] = ()
    fixes: Mapping[str, Any] | None = None


def model_outputs(trial: TrialForward, output: OutputSelector) -> list[Size]:
    """Return the sizes of the outputs at which the error is computed."""
    named = [call.output for call in trial.calls if call.site.name == output]
    return named[-1:] or [tensor.shape for tensor in selected(trial.returned, output)]


def find_problems(source: Source, trial: TrialForward, output: OutputSelector, excluded: Sequence[str]) -> Findings:
    """Return why `source` cannot train the model, and the fixes: another `output`, or layers to exclude, if that helps."""
    outputs: Sequence[Size] = []
    try:
        outputs = model_outputs(trial, output)
        failing = _failing(source, trial.calls, outputs)
    except AdagpError as error:
        failing = {call.site: str(error) for call in trial.calls}
    if not failing:
        return Findings()
    problems = tuple(dict.fromkeys(failing.values()))
    fixes: dict[str, Any] = {}
    # Not with several outputs: the loss may depend on all of them.
    if source.needs_error and output is None and len(outputs) < 2:
        last = trial.calls[-1]
        with_last = _failing(source, trial.calls, [last.output])
        if len(with_last) < len(failing):
            failing, fixes["output"] = with_last, last.site.name
    if len(failing) == len({call.site for call in trial.calls}):
        return Findings(problems)  # nothing would be left
    if failing:
        fixes["exclude"] = [*excluded, *(site.name for site in failing)]
    return Findings(problems, fixes)


def _failing(source: Source, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> dict[Site, str]:
    """Return the sites that the source cannot serve, and why."""
    failing: dict[Site, str] = {}
    for call in calls:
        try:
            source.check_call(call, outputs)
        except AdagpError as error:
            failing.setdefault(call.site, str(error))
    return failing


def count_demand(
    method: str, source: Source, survey: Survey, trial: TrialForward, output: OutputSelector
) -> MethodDemand:
    """Return the memory and the work of `source` in batches like the trial's. It must have no problems with the model."""
    source.bind(survey.sites, RunningNorms(survey.sites))
    outputs = model_outputs(trial, output)
    demand = source.demand(trial.calls, outputs)
    forward = sum(call.macs for call in trial.calls)
    backprop = forward + weight_gradient_macs(trial.calls) + chain_macs(trial.calls)
    predicted = 0 if source.skips else forward
    return MethodDemand(
        method,
        outputs[0][0],
        weight_bytes(trial.calls),
        demand,
        gp_price=(predicted + (demand.gp_macs if demand else 0)) / backprop,
        bp_price=1 + (demand.bp_macs if demand else 0) / backprop,
        has_backward=source.needs_backward or isinstance(source, SplitSource),
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class Validation:
    """The result of `validate`. `problems` must be fixed before training; `notes` are worth knowing.

    `fixes` has the arguments that avoid the problems, if there are any: `adagp.attach(model, optimizer, **validation.fixes)`.
    """

    survey: Survey
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    demand: MethodDemand | None = None
    fixes: Mapping[str, Any] = field(default_factory=dict)

    def raise_problems(self) -> None:
        """Raise a `ModelError` with all problems, if there are any."""
        if self.problems:
            raise ModelError(" ".join(self.problems))

    def __str__(self) -> str:
        sites, rest = self._titles()
        lines = [sites]
        lines += [
            f"  {site.name:<32} {type(site.module).__name__:<15} {site.rows:,} x {site.width:,} weights"
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
        kinds = (
            (site.name, type(site.module).__name__, f"{site.rows:,} x {site.width:,}") for site in self.survey.sites
        )
        reasons = ((other.name, other.reason) for other in self.survey.rest)
        first = html_table(sites, ("site", "layer", "weights"), kinds)
        return first + html_table(rest, ("parameter", "why"), reasons, self._remarks())

    def _titles(self) -> tuple[str, str]:
        sites, rest = self.survey.sites, self.survey.rest
        predicted = sum(site.weight.numel() for site in sites)
        numbers = sum(other.parameter.numel() for other in rest)
        return (
            f"{len(sites)} sites, {predicted:,} weights: predicted in GP batches",
            f"{len(rest)} other parameters, {numbers:,} values: frozen in GP batches",
        )

    def _remarks(self) -> list[str]:
        remarks = [] if self.demand is None else self.demand.lines()
        remarks += [f"note: {note}" for note in self.notes] + [f"problem: {problem}" for problem in self.problems]
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.fixes.items())
        return [*remarks, *([f"fix: adagp.attach(..., {arguments})"] if arguments else [])]


def validate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    exclude: Sequence[str] = (),
    *,
    method: MethodLike | None = None,
    output: OutputSelector = None,
    sample: Any = None,
) -> Validation:
    """Check a model and its optimizers without changing them. `print` the result to read it.

    With a `sample`, a batch of inputs, the model is run once in evaluation mode. Then the result also has the memory and the
    work that `method` will take in such batches, counted and not timed. If the method cannot train this model, the result has
    the problems, and in `fixes` the arguments of `attach` that avoid them, if there are any. `exclude`, `method` and `output`
    are those of `attach`.
    """
    check_model(model, optimizer)
    check_patterns(exclude)
    optimizers = read_optimizers(optimizer)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    optimized = [parameter for group in groups for parameter in group["params"]]
    surveyed = survey(model, optimized, exclude)
    validation = Validation(
        surveyed, tuple(_problems(model, optimizers, optimized, surveyed)), tuple(_notes(model, optimized, surveyed))
    )
    if sample is None:
        if method is not None or output is not None:
            raise OptionError(
                "method and output are checked in a forward pass: give sample=, a batch of inputs, as well."
            )
        return validation
    return validation if validation.problems else _tried(validation, model, exclude, method, output, sample)


def _tried(
    validation: Validation,
    model: nn.Module,
    exclude: Sequence[str],
    method: MethodLike | None,
    output: OutputSelector,
    sample: Any,
) -> Validation:
    """Return `validation` with the findings of a trial forward pass."""
    choice = read_method(method, None, None)
    if choice.method is None or choice.method.builds is None:
        return validation  # plain backprop needs no extra memory or work
    source = build_source(choice.method, RunFacts(), choice.options)
    trial = trial_forward(model, validation.survey, sample)
    if not trial.calls:
        return replace(validation, problems=("the model called none of its sites in a forward pass of the sample.",))
    findings = find_problems(source, trial, output, exclude)
    if findings.problems:
        return replace(validation, problems=findings.problems, fixes=findings.fixes or {})
    demand = count_demand(choice.method.name, source, validation.survey, trial, output)
    if demand.gp_price < 1:
        return replace(validation, demand=demand)
    remedy = (
        "it has a backward pass of its own."
        if demand.has_backward
        else "larger batches, or for 'feedback' fewer features, make it cheaper."
    )
    note = f"a GP batch of {demand.samples} samples computes as much as one by backprop: {remedy}"
    return replace(validation, demand=demand, notes=(*validation.notes, note))


def _problems(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], optimized: Sequence[nn.Parameter], surveyed: Survey
) -> list[str]:
    model_parameters = {id(parameter) for parameter in model.parameters()}
    problems = [
        f"{type(optimizer).__name__} calls a closure several times per step, each with a loss and a backward pass; "
        "a GP batch has neither. Use an optimizer whose step() needs no closure."
        for optimizer in optimizers
        if _needs_closure(optimizer)
    ]
    if optimized and not any(id(parameter) in model_parameters for parameter in optimized):
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
    model_parameters = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(parameter) not in model_parameters for parameter in optimized)
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

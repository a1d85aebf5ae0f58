"""What a method will take of memory and work on a model, and what it cannot train there: counted from a trial forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Size

from adagp.engine.hooks import OutputSelector, selected
from adagp.engine.trial_forward import TrialForward
from adagp.errors import AdagpError
from adagp.layers.sites import Site, Survey
from adagp.sources.base import RunningNorms, Source
from adagp.sources.demand import Demand, TrialCall, chain_macs, weight_bytes, weight_gradient_macs
from adagp.sources.split import SplitSource


@dataclass(frozen=True)
class MethodDemand:
    """The memory and the price of a method in batches like a sample; `demand` is None if nobody has said.

    Prices are multiply-accumulates of sites, in parts of those of a batch by plain backprop: counted, not timed.
    `has_backward`: a GP batch has a backward pass too, for which autograd keeps activations.
    """

    method: str
    samples: int
    weights: int
    demand: Demand | None
    gp_price: float
    bp_price: float
    has_backward: bool = False

    def lines(self) -> list[str]:
        """Return it as text, a line for each figure."""
        title = f"memory and price of '{self.method}' in batches of {self.samples} samples: counted, not timed"
        demand = self.demand
        if demand is None:
            return [title, "  not known for this method"]
        otherwise = "next to what autograd keeps" if self.has_backward else "where backprop keeps all activations"
        rows = (
            ("kept between batches", f"{_size(demand.state)}, {demand.state / self.weights:.1f} times the weights"),
            ("kept in a GP batch", f"{_size(demand.gp_bytes)}, {otherwise}"),
            ("kept in a BP batch", f"{_size(demand.bp_bytes)} more than by backprop"),
            ("price of a GP batch", f"{self.gp_price:.2f} of a batch by backprop, in multiply-accumulates"),
            ("price of a BP batch", f"{self.bp_price:.2f}"),
        )
        return [title, *(f"  {name:<24} {figure}" for name, figure in rows)]


@dataclass(frozen=True)
class Findings:
    """What a method cannot train in a model: the problems, and the arguments of `attach` that avoid them."""

    problems: tuple[str, ...] = ()
    fixes: Mapping[str, Any] | None = None


def model_outputs(trial: TrialForward, output: OutputSelector) -> list[Size]:
    """Return the sizes of the outputs that errors are taken at."""
    named = [call.output for call in trial.calls if call.site.name == output]
    return named[-1:] or [tensor.shape for tensor in selected(trial.returned, output)]


def find_problems(source: Source, trial: TrialForward, output: OutputSelector, excluded: Sequence[str]) -> Findings:
    """Return what `source` cannot train, with another output or without some layers where that helps."""
    name, outputs = None, []
    try:
        outputs = model_outputs(trial, output)
        failing = _failing(source, trial.calls, outputs)
    except AdagpError as error:
        failing = {call.site: str(error) for call in trial.calls}
    if not failing:
        return Findings()
    problems = tuple(dict.fromkeys(failing.values()))
    if source.needs_error and output is None and len(outputs) < 2:  # one of several is not all that the loss depends on
        last = trial.calls[-1]
        with_last = _failing(source, trial.calls, [last.output])
        if len(with_last) < len(failing):
            failing, name = with_last, last.site.name
    fixes: dict[str, Any] = {} if name is None else {"output": name}
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
    """Return what `source`, which nothing keeps it from training the model, takes in batches like the trial's."""
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

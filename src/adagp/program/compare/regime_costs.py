"""What every method's runs cost in each regime, and how many batches it has there: found once, then kept in the folder."""

from collections.abc import Callable
from dataclasses import asdict, replace

from adagp.core.files import write_atomically
from adagp.errors import OptionError, RunError
from adagp.program.compare.calibrate import calibrate, seconds_of
from adagp.program.compare.comparison import BATCHES, FORMER, MODELLED, SECONDS, ComparisonWork
from adagp.program.compare.cost_shapes import calibration_shape, timing_shape
from adagp.program.compare.longest import longest_run
from adagp.program.compare.methods import Candidate
from adagp.program.compare.records import Record, run_record
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import read_result
from adagp.program.run.folder import to_json

RunCost = Callable[[TrainConfig], float]


def lengths(work: ComparisonWork, regime: str) -> dict[str, int]:
    """Return how many batches each candidate's runs have in a regime."""
    if regime == BATCHES:
        return {candidate.name: work.comparison.batches for candidate in work.comparison.candidates}
    found = calibration(work) if regime == SECONDS else modelled(work, regime)
    return {name: one["batches"] for name, one in found["methods"].items()}


def equal_lengths(work: ComparisonWork, regime: str, batches: int, costs: dict[str, RunCost]) -> dict[str, int]:
    """Return how many batches of each candidate fit into the cost of `batches` by backprop."""
    comparison = work.comparison
    if regime == BATCHES:
        return {candidate.name: batches for candidate in comparison.candidates}
    own = replace(comparison.config(comparison.reference, 0), batches=batches)
    budget = costs[comparison.reference.name](own)
    return {
        candidate.name: fitting(work, candidate, budget, costs[candidate.name]) for candidate in comparison.candidates
    }


def fitting(work: ComparisonWork, candidate: Candidate, budget: float, cost: RunCost) -> int:
    """Return how many batches of a candidate fit into a budget."""
    try:
        return longest_run(budget, work.comparison.config(candidate, 0), cost, work.batches_per_epoch)
    except OptionError as error:
        raise OptionError(f"method '{candidate.name}': {error}") from None


def run_costs(work: ComparisonWork, regime: str, adapted: Callable[[Candidate], float | None]) -> dict[str, RunCost]:
    """Return by candidate what a run costs in a regime; `adapted` tells the share of GP batches of an adaptive schedule."""
    found: dict[str, RunCost] = {}
    for candidate in work.comparison.candidates:
        share = adapted(candidate)
        if regime == SECONDS:
            known = timed(work)["methods"][candidate.name]
            found[candidate.name] = lambda config, known=known, share=share: seconds_of(  # type: ignore[misc]
                config, known, work.batches_per_epoch, share
            )
        elif regime in MODELLED:
            model = work.cost_model(regime)
            found[candidate.name] = lambda config, model=model, share=share: model.run_cost(config, share)  # type: ignore[misc]
    return found


def timed(work: ComparisonWork) -> Record:
    """Return the seconds of a batch of each kind by candidate, measured once and then kept."""
    path = work.folder.timing
    if not path.is_file():
        comparison = work.comparison
        configs = {candidate.name: comparison.config(candidate, 0) for candidate in comparison.candidates}
        work.observer.begin("calibration", comparison.rounds)
        costs = calibrate(configs, work.task, comparison.rounds, work.observer.advance)
        content = {"rounds": comparison.rounds, "methods": costs}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    found: Record = read_result(path, timing_shape(_names(work)))
    return found


def calibration(work: ComparisonWork) -> Record:
    """Return the measured costs of all methods' batches and how many fit into the time, found once and then kept."""
    path = work.folder.calibration
    if not path.is_file():
        comparison = work.comparison
        costs = timed(work)["methods"]
        run_cost = run_costs(work, SECONDS, lambda candidate: predicted_share(work, candidate))
        reference = comparison.reference
        budget = comparison.seconds or run_cost[reference.name](comparison.config(reference, 0))
        methods = {}
        for candidate in comparison.candidates:
            batches = fitting(work, candidate, budget, run_cost[candidate.name])
            config = comparison.config(candidate, 0)
            seconds = {
                regime: run_cost[candidate.name](replace(config, batches=number))
                for regime, number in ((BATCHES, comparison.batches), (SECONDS, batches))
            }
            methods[candidate.name] = {"cost": costs[candidate.name], "batches": batches, "seconds": seconds}
        content = {"budget_seconds": budget, "rounds": comparison.rounds, "methods": methods}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    found: Record = read_result(path, calibration_shape(_names(work), work.comparison.batches))
    for one in found["methods"].values():
        one["seconds"] = {FORMER.get(regime, regime): value for regime, value in one["seconds"].items()}
    return found


def _names(work: ComparisonWork) -> list[str]:
    return [candidate.name for candidate in work.comparison.candidates]


def modelled(work: ComparisonWork, regime: str) -> Record:
    """Return the modelled costs of all methods' runs and how many batches fit into backprop's.

    They are computed each time: the same options give the same figures. `costs` has a run's cost in each regime that needs
    no more than these.
    """
    comparison, model = work.comparison, work.cost_model(regime)
    shares = {candidate.name: predicted_share(work, candidate) for candidate in comparison.candidates}
    costs = run_costs(work, regime, lambda candidate: shares[candidate.name])
    batches = equal_lengths(work, regime, comparison.batches, costs)
    methods: dict[str, Record] = {}
    for candidate in comparison.candidates:
        config = comparison.config(candidate, 0)
        own, cost = replace(config, batches=batches[candidate.name]), costs[candidate.name]
        methods[candidate.name] = {
            "batches": batches[candidate.name],
            "kinds": [asdict(one) for one in model.batch_costs(own, shares[candidate.name])],
            "costs": {BATCHES: cost(config), regime: cost(own)},
            **model.details(own, shares[candidate.name]),
        }
    budget = methods[comparison.reference.name]["costs"][BATCHES]
    return {"platform": model.text, "unit": "cycles", "budget": budget, "methods": methods}


def predicted_share(work: ComparisonWork, candidate: Candidate) -> float | None:
    """Return the share of GP batches that an adaptive schedule came to at equal batches; None for one that can be counted."""
    if not work.comparison.config(candidate, 0).schedule().adapts:
        return None
    runs = work.folder.runs(work.comparison, lengths(work, BATCHES))
    records = [run_record(run, BATCHES, None) for run in runs if run.candidate == candidate and run.finished]
    if not records:
        raise RunError(
            f"no run of '{candidate.name}' at equal batches has ended well: how much it predicts is not known."
        )
    predicted = sum(one["gp_batches"] + one["guarded_batches"] for one in records)
    return float(predicted / sum(one["batches"] for one in records))

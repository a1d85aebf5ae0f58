"""What every method's runs cost in each regime, and how many batches it has there: found once, then kept in the folder."""

from collections.abc import Callable
from dataclasses import asdict, replace

from adagp.core.files import write_atomically
from adagp.errors import OptionError, RunError
from adagp.program.compare.calibrate import calibrate, seconds_of
from adagp.program.compare.comparison import BATCHES, FORMER, MODELLED, SECONDS
from adagp.program.compare.contenders import Entry
from adagp.program.compare.lengths import longest_run
from adagp.program.compare.records import Record, run_record
from adagp.program.compare.shapes import calibration_shape, timing_shape
from adagp.program.compare.work import ComparisonWork
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import read_result
from adagp.program.run.folder import to_json

RunCost = Callable[[TrainConfig], float]


def lengths(work: ComparisonWork, regime: str) -> dict[str, int]:
    """Return how many batches each entry's runs have in a regime."""
    if regime == BATCHES:
        return {entry.name: work.comparison.batches for entry in work.comparison.entries}
    found = calibration(work) if regime == SECONDS else modelled(work, regime)
    return {name: one["batches"] for name, one in found["methods"].items()}


def equal_lengths(work: ComparisonWork, regime: str, batches: int, costs: dict[str, RunCost]) -> dict[str, int]:
    """Return how many batches of each entry fit into the cost of `batches` by backprop."""
    comparison = work.comparison
    if regime == BATCHES:
        return {entry.name: batches for entry in comparison.entries}
    own = replace(comparison.config(comparison.reference, 0), batches=batches)
    budget = costs[comparison.reference.name](own)
    return {entry.name: fitting(work, entry, budget, costs[entry.name]) for entry in comparison.entries}


def fitting(work: ComparisonWork, entry: Entry, budget: float, cost: RunCost) -> int:
    """Return how many batches of an entry fit into a budget."""
    try:
        return longest_run(budget, work.comparison.config(entry, 0), cost, work.batches_per_epoch)
    except OptionError as error:
        raise OptionError(f"method '{entry.name}': {error}") from None


def run_costs(work: ComparisonWork, regime: str, adapted: Callable[[Entry], float | None]) -> dict[str, RunCost]:
    """Return by entry what a run costs in a regime; `adapted` tells the share of GP batches of an adaptive schedule."""
    found: dict[str, RunCost] = {}
    for entry in work.comparison.entries:
        share = adapted(entry)
        if regime == SECONDS:
            known = timed(work)["methods"][entry.name]
            found[entry.name] = lambda config, known=known, share=share: seconds_of(  # type: ignore[misc]
                config, known, work.batches_per_epoch, share
            )
        elif regime in MODELLED:
            model = work.cost_model(regime)
            found[entry.name] = lambda config, model=model, share=share: model.run_cost(config, share)  # type: ignore[misc]
    return found


def timed(work: ComparisonWork) -> Record:
    """Return the seconds of a batch of each kind by entry, measured once and then kept."""
    path = work.folder.timing
    if not path.is_file():
        comparison = work.comparison
        configs = {entry.name: comparison.config(entry, 0) for entry in comparison.entries}
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
        run_cost = run_costs(work, SECONDS, lambda entry: predicted_share(work, entry))
        reference = comparison.reference
        budget = comparison.seconds or run_cost[reference.name](comparison.config(reference, 0))
        methods = {}
        for entry in comparison.entries:
            batches = fitting(work, entry, budget, run_cost[entry.name])
            config = comparison.config(entry, 0)
            seconds = {
                regime: run_cost[entry.name](replace(config, batches=number))
                for regime, number in ((BATCHES, comparison.batches), (SECONDS, batches))
            }
            methods[entry.name] = {"cost": costs[entry.name], "batches": batches, "seconds": seconds}
        content = {"budget_seconds": budget, "rounds": comparison.rounds, "methods": methods}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    found: Record = read_result(path, calibration_shape(_names(work), work.comparison.batches))
    for one in found["methods"].values():
        one["seconds"] = {FORMER.get(regime, regime): value for regime, value in one["seconds"].items()}
    return found


def _names(work: ComparisonWork) -> list[str]:
    return [entry.name for entry in work.comparison.entries]


def modelled(work: ComparisonWork, regime: str) -> Record:
    """Return the modelled costs of all methods' runs and how many batches fit into backprop's.

    They are computed each time: the same options give the same figures. `costs` has a run's cost in each regime that needs
    no more than these.
    """
    comparison, model = work.comparison, work.cost_model(regime)
    shares = {entry.name: predicted_share(work, entry) for entry in comparison.entries}
    costs = run_costs(work, regime, lambda entry: shares[entry.name])
    batches = equal_lengths(work, regime, comparison.batches, costs)
    methods: dict[str, Record] = {}
    for entry in comparison.entries:
        config = comparison.config(entry, 0)
        own, cost = replace(config, batches=batches[entry.name]), costs[entry.name]
        methods[entry.name] = {
            "batches": batches[entry.name],
            "kinds": [asdict(one) for one in model.batch_costs(own, shares[entry.name])],
            "costs": {BATCHES: cost(config), regime: cost(own)},
            **model.details(own, shares[entry.name]),
        }
    budget = methods[comparison.reference.name]["costs"][BATCHES]
    return {"platform": model.text, "unit": "cycles", "budget": budget, "methods": methods}


def predicted_share(work: ComparisonWork, entry: Entry) -> float | None:
    """Return the share of GP batches that an adaptive schedule came to at equal batches; None for one that can be counted."""
    if not work.comparison.config(entry, 0).schedule().adapts:
        return None
    runs = work.folder.runs(work.comparison, lengths(work, BATCHES))
    records = [run_record(run, BATCHES, None) for run in runs if run.entry == entry and run.finished]
    if not records:
        raise RunError(f"no run of '{entry.name}' at equal batches has ended well: how much it predicts is not known.")
    predicted = sum(one["gp_batches"] + one["guarded_batches"] for one in records)
    return float(predicted / sum(one["batches"] for one in records))

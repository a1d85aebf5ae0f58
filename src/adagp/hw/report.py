"""A simulation as plain values, with stable names: what `--json` prints and what tables are made of."""

from collections.abc import Sequence
from typing import Any

from adagp.core.escape import html_table
from adagp.core.plan import BACKPROP_ALL
from adagp.hw.product import Cost
from adagp.hw.simulate import DESIGNS, DesignOutcome, Simulation, predictor_weights
from adagp.hw.stages import OWN_PREDICTOR, Stage, duties, source_work


def simulation_report(simulation: Simulation, per_layer: bool = False) -> dict[str, Any]:
    """Return what was simulated and what came out; with `per_layer`, also one batch layer by layer."""
    accelerator, run = simulation.accelerator, simulation.run
    report: dict[str, Any] = {
        "model": simulation.workload.name,
        "dataflow": accelerator.dataflow,
        "array": str(accelerator.array),
        "predictor_array": str(accelerator.predictor_array),
        "batch": run.batch,
        "batches": {str(phase): count for phase, count in run.phases.items()},
        "macs_per_sample": simulation.workload.macs,
        "weights": simulation.workload.weights,
        "backward_to_forward": simulation.backward_to_forward,
        "designs": {name: _design(simulation, name, outcome) for name, outcome in simulation.outcomes.items()},
        "failure_signatures": failure_signatures(simulation),
    }
    if per_layer:
        report["layers"] = layer_rows(simulation)
    return report


def _design(simulation: Simulation, name: str, outcome: DesignOutcome) -> dict[str, Any]:
    energy, cost = outcome.energy, outcome.cost
    return {
        "cycles": cost.cycles,
        "seconds": outcome.seconds,
        "speedup": simulation.speedup(name),
        "energy_joules": energy.joules,
        "energy_saving": simulation.energy_saving(name),
        "memory_energy_joules": energy.memory,
        "memory_energy_saving": simulation.memory_energy_saving(name),
        "energy": energy.by_level,
        "array": str(outcome.array),
        "compared_with": str(simulation.reference(name).array),
        "dram_bytes": cost.dram_bits // 8,
        "buffer_bytes": cost.buffer_bits // 8,
        "cycles_by_phase": {str(phase): phase_cost.cycles for phase, phase_cost in outcome.by_phase.items()},
        "dram_bytes_by_phase": {
            str(phase): phase_cost.dram_bits // 8 for phase, phase_cost in outcome.by_phase.items()
        },
    }


DESIGN_COLUMNS = ("design", "cycles", "seconds", "speed-up", "joules", "saved", "memory joules saved")


def design_heading(report: dict[str, Any]) -> str:
    """Return the heading of a report in one line."""
    phases = ", ".join(f"{count:,} {phase}" for phase, count in report["batches"].items() if count)
    return f"{report['model']}: {report['dataflow']} on {report['array']} PEs; batches: {phases}"


def design_row(name: str, row: dict[str, Any]) -> Sequence[str]:
    """Return a design's figures as texts, one for each of `DESIGN_COLUMNS`."""
    figures = (f"{row['cycles']:.4g}", f"{row['seconds']:.4g}", f"{row['speedup']:.3f}x", f"{row['energy_joules']:.4g}")
    return (name, *figures, f"{row['energy_saving']:.1%}", f"{row['memory_energy_saving']:.1%}")


COST_ONLY = "Cost only, not accuracy: adagp compare measures what a method's batches are worth."


def design_notes(report: dict[str, Any]) -> list[str]:
    """Return the notes below the table of designs."""
    ratio = f"Backward takes {report['backward_to_forward']:.2f} times the forward pass."
    return [ratio, COST_ONLY, *report["failure_signatures"]]


def simulation_html(simulation: Simulation) -> str:
    """Return the table of designs for notebooks, with a note that its seconds are modelled."""
    report = simulation_report(simulation)
    rows = [design_row(name, row) for name, row in report["designs"].items()]
    modelled = "All figures are modelled, none is measured."
    return html_table(design_heading(report), DESIGN_COLUMNS, rows, [*design_notes(report), modelled])


def failure_signatures(simulation: Simulation) -> list[str]:
    """Return the reasons against prediction on this accelerator: no speed-up, or a predictor too large for its memory."""
    accelerator = simulation.accelerator
    designs = {name: DESIGNS[name] for name in simulation.outcomes}
    predicting = [
        name
        for name, design in designs.items()  # those of another arithmetic are not about prediction
        if design.predicts and not design.own_arithmetic
    ]
    slow = [name for name in predicting if simulation.speedup(name) <= 1]
    signatures = []
    if slow:
        signatures.append(
            f"No faster than backprop: {', '.join(slow)}. "
            "Predicting takes at least as long as the backward passes that it saves."
        )
    run = simulation.run
    if not (run.predictor_learns and source_work(run.learner or OWN_PREDICTOR).predictor):
        return signatures  # no source of this run has the accelerator's predictor
    kilobytes = predictor_weights(simulation.workload, accelerator) * accelerator.width("weights") / 8192
    if predicting and kilobytes > accelerator.buffer_kilobytes:
        signatures.append(
            f"The predictor's weights take {kilobytes:,.0f} kB and do not fit the {accelerator.buffer_kilobytes:,.0f} kB "
            f"global buffer: {_where_they_are(predicting)}."
        )
    return signatures


def _where_they_are(designs: Sequence[str]) -> str:
    """Return where the designs have the predictor's weights that do not fit the global buffer."""
    with_memory = [name for name in designs if DESIGNS[name].predictor_memory]
    streaming = [name for name in designs if name not in with_memory]
    places = ((streaming, "they are read from DRAM for each layer"), (with_memory, "a memory of that size is added"))
    return "; ".join(f"with {' and '.join(names)} {what}" for names, what in places if names)


def layer_rows(simulation: Simulation) -> list[dict[str, Any]]:
    """Return each layer of the array in one batch by backprop: passes with their stalls, traffic by level, joules.

    The predictor's cycles are those on the main array. Element-wise work and the update are part of the traffic and the joules,
    each with its pass.
    """
    return [_layer(simulation, stage) for stage in simulation.stages]


def _layer(simulation: Simulation, stage: Stage) -> dict[str, Any]:
    accelerator = simulation.accelerator
    passes = stage.needed_passes
    stalls = {name: accelerator.stall(cost) for name, cost in passes.items()}
    cycles = {name: cost.cycles + stalls[name][0] for name, cost in passes.items()}
    (duty,) = duties([stage], BACKPROP_ALL, accelerator, False)
    batch = duty.forward + duty.backward
    energy = accelerator.energy_model().energy(batch)
    work = stage.predictions
    busy = accelerator.array.pes * sum(cycles.values())
    causes = list(dict.fromkeys(cause for _, cause in stalls.values() if cause))
    return {
        "name": stage.layer.name,
        "kind": stage.layer.kind,
        "macs": stage.forward.macs,
        **{f"{name}_cycles": count for name, count in cycles.items()},
        "stall_cycles": sum(count for count, _ in stalls.values()),
        "stall_cause": " and ".join(causes),
        "predictor_cycles": work.forward.cycles + work.training.cycles if work else 0,
        "utilisation": sum(cost.macs for cost in passes.values()) / busy if busy else 0.0,
        "dram_bytes": batch.dram_bits // 8,
        "buffer_bytes": batch.buffer_bits // 8,
        "register_bytes": batch.registers // 8,
        "network_bytes": batch.network // 8,
        "joules": energy.joules,
        "energy": energy.by_level,
    }


def operational_intensity(cost: Cost) -> float:
    """Return multiply-accumulates for each off-chip byte."""
    return 8 * cost.macs / max(1, cost.dram_bits)

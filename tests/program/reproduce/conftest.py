"""Results that were never computed, to see what experiments conclude from them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from adagp.papers.adagp.chip_experiments import COUNTED
from adagp.papers.adagp.error_experiments import PRINTED, SQUARED
from adagp.papers.adagp.hypotheses import TASKS, published_numbers
from adagp.papers.camel.experiments import VARIANTS
from adagp.papers.lecture.noise_experiment import variants
from adagp.program.compare.methods import read_candidates
from adagp.program.reproduce.experiment import Experiment, Part, Workspace
from adagp.program.reproduce.training import train_run

Pretend = Callable[..., Workspace]

MASK_FIGURES = ("weights", "density", "unbalanced", "balanced", "random_unbalanced", "random_balanced")
DESIGNS = ("baseline", "low", "efficient", "max", "equal-power", "equal-area")


def designs() -> dict[str, dict[str, float]]:
    return {
        name: {"cycles": 1e12 - index, "speedup": 1 + 0.1 * index, "memory_joules": 10.0, "memory_saving": 0.1 * index}
        for index, name in enumerate(DESIGNS)
    }


def by_epoch() -> list[dict[str, Any]]:
    """Return two epochs whose mantissas grow by a bit."""
    widths = [
        {f"mantissa_{name}": 2.0 + epoch for name in ("weights", "activations", "gradients")} for epoch in range(2)
    ]
    return [{"batches": {"bp": 5}, "sites": {"first": own, "second": own}} for own in widths]


def result(part: Part) -> dict[str, Any]:
    """Return a result of the right form: speed-ups by the order of the designs, accuracies from the part's key."""
    kind = part.work.__name__
    if kind == "train_run":
        accuracy = 0.5 + sum(part.key.encode()) % 400 / 1000
        return {
            "test_accuracy": accuracy,
            "best_test_accuracy": accuracy,
            "float_test_accuracy": accuracy,
            "test_loss": 1.0,
            "cosine": 0.1,
            "curves": {"loss": [2.0, 1.0], "accuracy": [0.4, accuracy], "mse": [0.1, None]},
            "by_epoch": by_epoch(),
            "test_bleu": 30.0,
            "test_map50": 0.4,
            "seconds_by_phase": {"data": 1.0, "bp": 2.0, "gp": 1.0},
            "batches": {"bp": 10, "gp": 20, "guarded": 0, "warmup": 5},
        }
    if kind == "measure_errors":
        sizes = {PRINTED: 200.0, SQUARED: 0.1, "another": 0.3}
        sites = ("first", "second")
        return {
            name: {"sites": {site: [size, size / 2] for site in sites}, "zero": size} for name, size in sizes.items()
        }
    if kind == "synthesize_design":
        more = 1 + 0.01 * DESIGNS.index(part.options["design"])
        totals = dict.fromkeys(("lut", "ff", "dsp", "ramb36", "ramb18", "cells", "area"), 1000 * more)
        return {"totals": totals, "memory_bits": 1000, "element": {"lut": 5, "dsp": 1, "area": 5}}
    if kind == "design_power":
        more = 1 + 0.1 * DESIGNS.index(part.options["design"])
        totals = dict.fromkeys(("power", "internal", "switching", "leakage"), 1000 * more)
        return {"totals": totals, "element": {"power": 5}}
    if kind == "synthesize_element":
        return {"element": {"lut": 10, "dsp": 1} if part.options["dsp"] else {"lut": 30, "dsp": 0}}
    if kind == "train_on_chip":
        epoch = {"chip": 0.7, "engine": 0.8, "backprop": 0.9, "different_words": 0, "bp": 9, "gp": 1}
        names = ("model_cycles", "model_predictor_cycles", *COUNTED)
        phase = {"batches": 5, "unequal_batches": 0, **dict.fromkeys(names, 100)}
        return {"epochs": [epoch, epoch], "bp": phase, "gp": phase}
    if kind == "simulate_model":
        layer = {"layer": "a", "convolution": True, "baseline": {"bp": 9}, "efficient": {"warmup": 2, "gp": 3}}
        dataflows = {name: designs() for name in ("ws", "rs", "is")}
        return {"dataflows": dataflows, "layers": [layer], "predictor_words": 1000, "word_bits": 16}
    if kind == "simulate_task":
        return designs()
    if kind == "try_hypotheses":
        near = part.options["features"] == 512  # all figures as published, but for the tasks' as they are assumed
        figures = {name: number.value if near else 0.0 for name, number in published_numbers().items()}
        return {
            "figures": figures,
            "tasks": {name: figures if "short" in name else figures | {"yolov3 cycles": 0.0} for name in TASKS},
        }
    if kind == "widest_convolution":
        return {"inputs": 4608}
    if kind in ("pipeline_model", "pipeline_run"):
        speedups = {"low": 1.5, "efficient": 1.6, "max": 1.65}
        return dict.fromkeys(("gpipe", "dapple", "chimera"), speedups)
    if kind == "compare_methods":
        return comparison(part.options)
    if kind == "simulate_widths":
        cycles = {"2 bits": 100, "4 bits": 300, "dense-16": 600, "dense-32": 700}
        return {name: {"cycles": count, "joules": 1.0} for name, count in cycles.items()}
    if kind == "time_kernels":
        return {"exact": 4.0, "approximated": 1.0, "transposition": 0.25, "filter": 0.1}
    if kind == "simulate_procrustes":
        return {"speed-up over dense on the same array": 3.0, "energy of dense over ours": 2.0}
    if kind == "train_with_noise":
        return {
            name: {"accuracy": 50.0 + number, "loss": 1.0, "overfitting": 2.0}
            for number, (name, *_) in enumerate(variants())
        }
    if kind == "transfer_runs":
        return {name: {"accuracy": 50.0, "peak_memory": 1, "error": None} for name in VARIANTS}
    if kind == "count_statements":
        counts = dict.fromkeys(("sites", "more_weights", "quicker_predictions"), 4)
        rest = dict.fromkeys(("efficient_dram", "max_dram", "baseline_macs_a_cycle", "efficient_macs_a_cycle"), 60.0)
        sizes = {"predictor_bits": 9e6, "buffer_bits": 4e6, "baseline_dram": 90.0, "max_macs_a_cycle": 62.0}
        return counts | rest | sizes | {"always_efficient": 2.8, "always_max": 2.9, "pes": 180, "predictor_pes": 80}
    if kind == "trained_masks":
        return {"layer": dict.fromkeys(MASK_FIGURES, 0.2) | {"balanced": 0.1}}
    assert kind in ("simulate_ratio", "simulate_ideal")
    return {"speedup": 1.4}


def comparison(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of a comparison in which each method is better than the one before."""
    names = [candidate.name for candidate in read_candidates(options["methods"])]
    methods = {
        name: {
            "runs": 3,
            "batches": 100 + index,
            "bp_batches": 50,
            "gp_batches": 50 + index,
            "accuracy_mean": 0.5 + 0.1 * index,
            "accuracy_low": 0.48 + 0.1 * index,
            "accuracy_high": 0.52 + 0.1 * index,
            "ahead_mean": 0.1 * index,
            "ahead_low": 0.09 * index,
            "ahead_high": 0.11 * index,
            "modelled_cost": 1e6,
        }
        for index, name in enumerate(names)
    }
    platform = {"verdict": "pays", "break_even": 0.44}
    return {
        "regimes": {regime: {"methods": methods} for regime in options["regimes"]},
        "tuning": {"methods": {name: {"picked": {"lr": 0.01}} for name in names}},
        "worth": {
            "methods": {
                name: {"worth": 0.6, "interval": [0.5, None], "platforms": {"accelerator": platform}}
                for name in names[1:]
            }
        },
        "platforms": {},
        "seeds": 3,
        "batches": 100,
        "model": "net",
        "dataset": "data",
    }


@pytest.fixture
def pretend(tmp_path: Path) -> Pretend:
    """Return a function that pretends that all parts of an experiment are finished, and returns the workspace.

    `trained` gives the results of training runs.
    """

    def run(experiment: Experiment, budget: str, trained: Callable[[Part], dict[str, Any]] = result) -> Workspace:
        workspace = Workspace(tmp_path)
        (tmp_path / "parts").mkdir(exist_ok=True)
        for part in dict.fromkeys(experiment.parts(budget)):
            is_run = part.work is train_run
            workspace.result_file(part).write_text(json.dumps({"result": trained(part) if is_run else result(part)}))
        return workspace

    return run

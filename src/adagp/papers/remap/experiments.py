"""Tensor re-mapping: Tables I to III and the study of the predictor's output size."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Workspace
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_1, TABLE_2, TABLE_3, OUTPUT_SIZE = "remap-table1", "remap-table2", "remap-table3", "remap-output-size"
MODELS = ("vgg11", "vgg13", "vgg16", "mobilenet_v2")
METHODS = ("bp", "remap")
BATCHES = (8, 16, 32, 64, 128)
DEFAULT_SIZE = 10_000
SIZES = (1_000, 5_000, DEFAULT_SIZE, 20_000)
"""Output sizes that are tried; those of the published picture are not printed."""
COMMON: dict[str, dict[str, Any]] = {
    "quick": {"dataset": "digits", "epochs": 6},
    "standard": {"dataset": "cifar10", "epochs": 5, "lr": 0.01, "lr_scheduler": "cosine"},
    "full": {"dataset": "cifar10", "epochs": 20},
}
WARMUP = {"quick": 1, "standard": 1, "full": 5}
TRAINED: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {"vgg11": {"model": "digits_cnn"}},
    "standard": {
        **{model: {"model": f"{model}_bn", "width": 0.125} for model in MODELS[:3]},
        "mobilenet_v2": {"model": "mobilenet_v2", "width": 0.25},
    },
    "full": {model: {"model": model} for model in MODELS},
}
TERMS = {
    "quick": Terms(unlike="digits instead of CIFAR-10"),
    "standard": Terms(reduced="5 epochs instead of 20, an eighth or a quarter of the width"),
    "full": Terms(reduced="crop and mirror, which the paper has not; its program differs from its text"),
}
UNTRAINED = Terms(reduced="the quick budget trains digits_cnn in the place of VGG11 only")


@cache
def _run(budget: str, model: str, method: str, batch: int = 32, outputs: int | None = None) -> RunGroup:
    predicts = method == "remap"
    return group(
        2 if budget == "quick" else 1,
        weight=batch_weight(batch) if predicts else 2.0,
        **COMMON[budget],
        **TRAINED[budget][model],
        method=method,
        batch_size=batch,
        warmup=WARMUP[budget] if predicts else None,
        remap_outputs=outputs,
    )


def batch_weight(batch: int) -> float:
    """Return rough seconds of a run: the predictor's work is the same for a small batch as for a large one."""
    return 600.0 / batch


def _pairs(budget: str) -> dict[str, dict[str, RunGroup]]:
    return {model: {method: _run(budget, model, method) for method in METHODS} for model in TRAINED[budget]}


def _pair_groups(budget: str) -> list[RunGroup]:
    return [run_group for pair in _pairs(budget).values() for run_group in pair.values()]


def conclude_accuracy(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the accuracies of Table I."""
    section, pairs = published(TABLE_1), _pairs(budget)
    verdicts: list[Verdict] = []
    for model in MODELS:
        for method in METHODS:
            measured = pairs[model][method].mean(workspace) if model in pairs else None
            terms = TERMS[budget] if model in pairs else UNTRAINED
            verdicts.append(compare(f"{model}, {method}", section.number(model, method), measured, "measured", terms))
    for pair in pairs.values():
        bp, remapped = (pair[method].values(workspace) for method in METHODS)
        verdicts.append(
            judge(
                f"accuracy of {pair['bp'].options['model']}",
                section.claim("similar"),
                mean(remapped) >= mean(bp) - section.slack,
                f"remap {mean_and_range(remapped)}, bp {mean_and_range(bp)} %; {pair['bp'].extent}",
            )
        )
    return _about_pairs(verdicts, budget, workspace)


def conclude_seconds(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the speed-ups of Table II: seconds in batches of backprop over those of re-mapping."""
    section, pairs = published(TABLE_2), _pairs(budget)
    machine = "a CPU that other runs share, not the paper's GPU"
    base = TERMS[budget]
    terms = Terms(unlike=base.unlike and f"{base.unlike}; {machine}", reduced=f"{base.reduced}; {machine}")
    speedups = {
        model: pair["bp"].seconds(workspace) / pair["remap"].seconds(workspace) for model, pair in pairs.items()
    }
    verdicts = [
        compare(
            f"measured speed-up, {model}",
            section.number(model, "speedup"),
            speedups.get(model),
            "measured",
            terms if model in speedups else UNTRAINED,
        )
        for model in MODELS
    ]
    whole = mean(speedups.values()) if len(speedups) == len(MODELS) else None
    verdicts.append(
        compare(
            "average of the measured speed-ups",
            section.number("average", "speedup"),
            whole,
            "measured",
            UNTRAINED if whole is None else terms,
        )
    )
    text = ", ".join(f"{pairs[model]['bp'].options['model']} {value:.2f}" for model, value in speedups.items())
    faster = all(value > 1 for value in speedups.values())
    verdicts.append(judge("speed-ups", section.claim("faster"), faster, text))
    return _about_pairs(verdicts, budget, workspace)


def _about_pairs(verdicts: list[Verdict], budget: str, workspace: Workspace) -> Conclusion:
    rows = [run_group.row(workspace) for run_group in _pair_groups(budget)]
    return Conclusion(rows, verdicts, lambda: _draw_pairs(budget, workspace))


def _draw_pairs(budget: str, workspace: Workspace) -> "Figure":
    figure, (axes,) = subplots(1, 2, (11, 4.5))
    names = {
        f"{pair[method].options['model']} {method}": pair[method]
        for pair in _pairs(budget).values()
        for method in METHODS
    }
    accuracy_bars(axes[0], workspace, names)
    axes[1].bar(list(names), [run_group.seconds(workspace) for run_group in names.values()])
    axes[1].set_xticks(range(len(names)), list(names), rotation=30, ha="right")
    axes[1].set(ylabel="measured seconds in batches")
    return figure


def _by_batch(budget: str) -> dict[int, RunGroup]:
    return {batch: _run(budget, "vgg11", "remap", batch).first for batch in BATCHES}


def conclude_batches(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the accuracies of Table III and check its two trends."""
    section, runs = published(TABLE_3), _by_batch(budget)
    accuracies = {batch: run_group.mean(workspace) for batch, run_group in runs.items()}
    seconds = {batch: run_group.seconds(workspace) for batch, run_group in runs.items()}
    verdicts = [
        compare(f"accuracy, batch {batch}", section.number("accuracy", str(batch)), accuracy, "measured", TERMS[budget])
        for batch, accuracy in accuracies.items()
    ]
    for name, values, unit in (("accuracy", accuracies, "%"), ("time", seconds, "s")):
        by_batch = ", ".join(f"{batch}: {value:.4g}" for batch, value in values.items())
        falls = all(values[small] > values[large] for small, large in pairwise(BATCHES))
        verdicts.append(judge(f"{name} by batch size", section.claim(name), falls, f"{by_batch} {unit}"))
    rows = [{"batch_size": batch, **run_group.row(workspace)} for batch, run_group in runs.items()]
    return Conclusion(rows, verdicts, lambda: _draw_curve("batch size", rows, "batch_size"))


def _by_size(budget: str) -> dict[int, RunGroup]:
    # The default is left out, so that this run is the one of Table I.
    return {
        size: _run(budget, "vgg11", "remap", outputs=None if size == DEFAULT_SIZE else size).first for size in SIZES
    }


def conclude_sizes(budget: str, workspace: Workspace) -> Conclusion:
    """Check that 10,000 outputs are the best balance: no other size is both more accurate and quicker."""
    section, runs = published(OUTPUT_SIZE), _by_size(budget)
    rows = [{"outputs": size, **run_group.row(workspace)} for size, run_group in runs.items()]
    chosen = next(row for row in rows if row["outputs"] == DEFAULT_SIZE)
    better = [
        row["outputs"]
        for row in rows
        if row["accuracy_percent"] >= chosen["accuracy_percent"] and row["batch_seconds"] < chosen["batch_seconds"]
    ]
    text = ", ".join(
        f"{row['outputs']}: {row['accuracy_percent']:.2f} % in {row['batch_seconds']:.1f} s" for row in rows
    )
    text += f"; as accurate and quicker than 10000: {', '.join(map(str, better)) or 'none'}; one seed"
    verdicts = [judge("best output size", section.claim("best"), not better, text)]
    return Conclusion(rows, verdicts, lambda: _draw_curve("outputs of the predictor", rows, "outputs"))


def _draw_curve(label: str, rows: list[dict[str, Any]], key: str) -> "Figure":
    figure, (axes,) = subplots(1, 2, (11, 4))
    figures = ("accuracy_percent", "batch_seconds")
    for axis, name, title in zip(axes, figures, ("measured accuracy, %", "measured seconds in batches"), strict=True):
        axis.plot([row[key] for row in rows], [row[name] for row in rows], marker="o")
        axis.set(xscale="log", xlabel=label, title=title)
    return figure


def _experiment(
    name: str,
    shows: str,
    minutes: tuple[float, float],
    groups: Callable[[str], Sequence[RunGroup] | Mapping[int, RunGroup]],
    conclude: Callable[[str, Workspace], Conclusion],
) -> Experiment:
    """Return an experiment with its minutes at the quick and the standard budget, and its days at the full one."""
    quick, standard = minutes
    lengths = {"quick": quick, "standard": standard, "full": None}
    return Experiment(name, shows, lengths, lambda budget: all_parts(groups(budget)), conclude)


for _declared in (
    _experiment(
        TABLE_1,
        "accuracy of VGG11, 13, 16 and MobileNet by backprop and re-mapping",
        (0.5, 150.0),
        _pair_groups,
        conclude_accuracy,
    ),
    _experiment(TABLE_2, "seconds of the same runs", (0.5, 150.0), _pair_groups, conclude_seconds),
    _experiment(TABLE_3, "batch sizes 8 to 128: accuracy and seconds, VGG11", (1.8, 75.0), _by_batch, conclude_batches),
    _experiment(
        OUTPUT_SIZE, "output sizes of the re-mapping predictor (Fig. 8), VGG11", (0.7, 40.0), _by_size, conclude_sizes
    ),
):
    add_experiment(_declared)

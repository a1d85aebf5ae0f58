"""Tensor re-mapping: Tables I to III and the study of the predictor's output size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import correlation, mean
from typing import TYPE_CHECKING, Any

from adagp.papers.remap.hardware import OUTPUTS, network_layers
from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import Number, Section, published
from adagp.program.reproduce.training import RunGroup, accuracy_bars, all_parts, group, mean_and_range
from adagp.program.reproduce.verdict import Terms, Verdict, compare, compare_difference, covering, judge, noted
from adagp.program.workloads import model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_1, TABLE_2, TABLE_3, OUTPUT_SIZE = "remap-table1", "remap-table2", "remap-table3", "remap-output-size"
LOSSES, EXAMPLE = "remap-losses", "remap-example"
EXAMPLE_SIZE = 51_000
MODELS = ("vgg11", "vgg13", "vgg16", "mobilenet_v2")
METHODS = ("bp", "remap")
CONTROL = "skip"
CONTROLS = (CONTROL, "remap_program", "adagp")
"""The same epochs left out; what the published program does in the place of what the text describes; the original predictor."""
BATCHES = (8, 16, 32, 64, 128)
DEFAULT_SIZE = 10_000
SIZES = (1_000, 5_000, DEFAULT_SIZE, 20_000)
"""Output sizes that are tried; those of the published picture are not printed."""
COMMON: dict[str, dict[str, Any]] = {
    "quick": {"dataset": "digits", "epochs": 6},
    "short": {
        "dataset": "cifar10",
        "validation": 0.98,
        "test_samples": 1000,
        "epochs": 6,
        "augment": False,
        "metrics_every": 10,
        "lr": 0.01,
    },
    "standard": {"dataset": "cifar10", "epochs": 8, "augment": False, "metrics_every": 50},
    "full": {"dataset": "cifar10", "epochs": 20, "augment": False},
}
"""SGD at 0.001 with momentum and the plateau scheduler are the defaults; the paper has neither crop nor mirror.
The few batches of the short budget would learn next to nothing at that rate."""
WARMUP = {"quick": 1, "short": 2, "standard": 2, "full": 5}
NARROW: dict[str, dict[str, Any]] = {
    **{model: {"model": f"{model}_bn", "width": 0.125} for model in MODELS[:3]},
    "mobilenet_v2": {"model": "mobilenet_v2", "width": 0.25},
}
TRAINED: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {"vgg11": {"model": "digits_cnn"}},
    "short": NARROW,
    "standard": NARROW,
    "full": {model: {"model": model} for model in MODELS},
}
TERMS = {
    "quick": Terms(unlike="digits instead of CIFAR-10"),
    "short": Terms(
        reduced="one seed, 1,000 training images, 6 epochs instead of 20, an eighth or a quarter of the width, a rate of 0.01"
    ),
    "standard": Terms(reduced="8 epochs instead of 20, an eighth or a quarter of the width"),
    "full": Terms(reduced="the paper's program differs from its text"),
}
UNTRAINED = Terms(reduced="the quick budget trains digits_cnn in the place of VGG11 only")
RANK = 2
"""The place of these runs in the queue of a campaign."""


@cache
def _run(budget: str, model: str, method: str, batch: int = 32, outputs: int | None = None) -> RunGroup:
    return group(
        2 if budget == "quick" else 1,
        batch_weight(batch) if method.startswith("remap") else 2.0,
        RANK,
        **COMMON[budget],
        **TRAINED[budget][model],
        method=method,
        batch_size=batch,
        warmup=WARMUP[budget] if method != "bp" else None,
        ratio="epochs:3:1" if method in (CONTROL, "adagp") else None,
        remap_outputs=outputs,
    )


def batch_weight(batch: int) -> float:
    """Return rough seconds of a run: the predictor's work is the same for a small batch as for a large one."""
    return 600.0 / batch


def _pairs(budget: str) -> dict[str, dict[str, RunGroup]]:
    return {
        model: {method: _run(budget, model, method) for method in (*METHODS, *CONTROLS)} for model in TRAINED[budget]
    }


def _pair_groups(budget: str) -> list[RunGroup]:
    return [run_group for pair in _pairs(budget).values() for run_group in pair.values()]


def conclude_accuracy(budget: str, workspace: Workspace) -> Conclusion:
    """Compare by how many points re-mapping differs from backprop in Table I, and re-mapping with the controls."""
    section, pairs = published(TABLE_1), _pairs(budget)
    verdicts: list[Verdict] = []
    for model in MODELS:
        numbers = [section.number(model, method) for method in METHODS]
        accuracies = [pairs[model][method].mean(workspace) for method in METHODS] if model in pairs else []
        terms = TERMS[budget] if model in pairs else UNTRAINED
        quantity = f"{model}: re-mapping less backprop"
        extent = _beside_control(pairs[model][CONTROL], workspace) if model in pairs else ""
        verdicts.append(compare_difference(quantity, numbers, accuracies, terms, extent=extent))
    for pair in pairs.values():
        verdicts += _judge_accuracies(section, pair, workspace)
    return _about_pairs(verdicts, budget, workspace)


def _beside_control(control: RunGroup, workspace: Workspace) -> str:
    """Return the accuracy with the same epochs left out and how much was trained, in words."""
    return f"the same epochs left out: {mean_and_range(control.values(workspace))} %; {control.extent}"


def _judge_accuracies(section: Section, pair: Mapping[str, RunGroup], workspace: Workspace) -> list[Verdict]:
    """Judge the claims on the accuracies of one model, given its runs by method."""
    accuracies = {method: run_group.values(workspace) for method, run_group in pair.items()}
    means = {method: mean(values) for method, values in accuracies.items()}
    figures = ", ".join(f"{method} {mean_and_range(values)}" for method, values in accuracies.items())
    text, model = f"{figures} %; {pair['bp'].extent}", pair["bp"].options["model"]
    return [
        judge(quantity, section.claim(claim), holds, text)
        for claim, holds, quantity in (
            ("similar", means["remap"] >= means["bp"] - section.slack, f"accuracy of {model}"),
            ("skip", means["remap"] > means[CONTROL], f"accuracy of {model}, the same epochs left out"),
            ("original", means["remap"] >= means["adagp"] - 1.0, f"accuracy of {model}, the original predictor"),
            ("program", means["remap_program"] >= means["bp"] - section.slack, f"accuracy of {model}, the program"),
        )
    ]


def conclude_seconds(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the speed-ups of Table II: seconds in batches of backprop over those of re-mapping."""
    section, pairs = published(TABLE_2), _pairs(budget)
    machine = "a CPU that other runs share, not the paper's GPU"
    base = TERMS[budget]
    terms = Terms(unlike=base.unlike and f"{base.unlike}; {machine}", reduced=f"{base.reduced}; {machine}")
    speedups, original = (_speedups_over(method, pairs, workspace) for method in ("bp", "adagp"))
    text = ", ".join(f"{pairs[model]['bp'].options['model']} {value:.2f}" for model, value in speedups.items())
    original_text = ", ".join(f"{model} {value:.2f}" for model, value in original.items())
    extent = next(iter(pairs.values()))["bp"].extent
    verdicts = [
        *_compare_speedups(section, speedups, terms),
        judge(
            "speed-ups",
            section.claim("faster"),
            all(value > 1 for value in speedups.values()),
            f"{text} times as fast; {extent}",
        ),
        judge(
            "seconds of the original predictor",
            section.claim("runtime"),
            all(value > 1 for value in original.values()),
            f"{original_text} times as fast as the original; {extent}",
        ),
        *_own_speedups(section),
        _predictor_work(section),
    ]
    return _about_pairs(verdicts, budget, workspace)


def _speedups_over(method: str, pairs: Mapping[str, Mapping[str, RunGroup]], workspace: Workspace) -> dict[str, float]:
    """Return by model the seconds of a method over those of re-mapping."""
    return {model: pair[method].seconds(workspace) / pair["remap"].seconds(workspace) for model, pair in pairs.items()}


def _compare_speedups(section: Section, speedups: Mapping[str, float], terms: Terms) -> list[Verdict]:
    """Compare the speed-up of every model, and their average if all were trained."""
    verdicts = [
        covering(
            compare(
                f"measured speed-up, {model}",
                section.number(model, "speedup"),
                speedups.get(model),
                "measured",
                terms if model in speedups else UNTRAINED,
            ),
            *(section.number(model, f"{method}_seconds") for method in METHODS),
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
    return verdicts


def _own_speedups(section: Section) -> list[Verdict]:
    """Compare the printed speed-ups with the printed seconds."""
    verdicts, ratios = [], []
    for model in MODELS:
        seconds = [section.number(model, f"{method}_seconds") for method in METHODS]
        ratios.append(seconds[0].value / seconds[1].value)
        printed = replace(section.number(model, "speedup"), tolerance=section.set_up("rounding"))
        verdict = compare(f"printed seconds, {model}", printed, ratios[-1], "computed")
        verdicts.append(covering(verdict, *seconds))
    rounding = section.set_up("rounding")
    for name, value in (("average", mean(ratios)), ("most", max(ratios))):
        printed = replace(section.number(name, "speedup"), tolerance=rounding if name == "average" else 0.1)
        verdicts.append(compare(f"{name} of the printed seconds' speed-ups", printed, value, "computed"))
    return verdicts


def _predictor_work(section: Section) -> Verdict:
    """Compare the work of the predictor's forward pass with that of ResNet-50's for a batch of 32, on CIFAR-10's pictures."""
    workload = model_workload("resnet50", "cifar10")
    samples = sum(layer.samples for layer in workload.array_layers if layer.trainable)
    macs = samples * sum(layer.product(1).macs for layer in network_layers(OUTPUTS))
    network = 32 * workload.macs
    text = f"{macs / 1e9:.1f} GMAC to predict as printed, {network / 1e9:.1f} GMAC for a forward pass of a batch of 32"
    return judge("work of the predictor, ResNet-50", section.claim("heavy"), macs > network, text, "computed")


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


def _left_out_by_batch(budget: str) -> dict[int, RunGroup]:
    """Return the controls: the same epochs left out."""
    return {batch: _run(budget, "vgg11", CONTROL, batch).first for batch in BATCHES}


def _batch_groups(budget: str) -> list[RunGroup]:
    return [*_by_batch(budget).values(), *_left_out_by_batch(budget).values()]


def conclude_batches(budget: str, workspace: Workspace) -> Conclusion:
    """Compare accuracies and seconds of Table III with those of batch 32, and check its two trends."""
    section, runs = published(TABLE_3), _by_batch(budget)
    accuracies = {batch: run_group.mean(workspace) for batch, run_group in runs.items()}
    seconds = {batch: run_group.seconds(workspace) for batch, run_group in runs.items()}
    left_out = {batch: run_group.mean(workspace) for batch, run_group in _left_out_by_batch(budget).items()}
    extent = runs[REFERENCE_BATCH].extent
    others = [batch for batch in BATCHES if batch != REFERENCE_BATCH]
    verdicts = [_relative_accuracy(section, batch, accuracies, left_out, TERMS[budget], extent) for batch in others]
    verdicts += [_relative_seconds(section, batch, seconds, TERMS[budget]) for batch in others]
    verdicts.append(_epoch_seconds(section, workspace, runs[REFERENCE_BATCH], TERMS[budget]))
    verdicts.append(
        _judge_trend(
            section, "accuracy", accuracies, f"%; the same epochs left out: {_by_size_text(left_out)} %; {extent}"
        )
    )
    verdicts.append(_judge_trend(section, "time", seconds, f"s; {extent}"))
    verdicts += _own_table_3(section, accuracies, left_out, TERMS[budget])
    rows = [{"batch_size": batch, **run_group.row(workspace)} for batch, run_group in runs.items()]
    controls = [
        {"batch_size": batch, **run_group.row(workspace)} for batch, run_group in _left_out_by_batch(budget).items()
    ]
    return Conclusion([*rows, *controls], verdicts, lambda: _draw_curve("batch size", rows, "batch_size"))


def _judge_trend(section: Section, name: str, values: Mapping[int, float], end: str) -> Verdict:
    """Judge whether the values fall from each batch size to the next larger one; `end` follows the figures."""
    falls = all(values[small] > values[large] for small, large in pairwise(BATCHES))
    return judge(f"{name} by batch size", section.claim(name), falls, f"{_by_size_text(values)} {end}")


def _by_size_text(values: Mapping[int, float]) -> str:
    return ", ".join(f"{batch}: {value:.4g}" for batch, value in values.items())


def _own_table_3(
    section: Section, accuracies: Mapping[int, float], left_out: Mapping[int, float], terms: Terms
) -> list[Verdict]:
    """Check the printed correlation and the printed totals: 8 epochs of warm-up and BP and 12 of GP, by text and program."""
    printed = [section.number("accuracy", str(batch)).value for batch in BATCHES]
    number = section.number("correlation", "accuracy")
    control = _correlation(list(left_out.values()))
    ours = compare("correlation in our runs", number, _correlation(list(accuracies.values())), "measured", terms)
    verdicts = [
        compare("correlation in the printed table", number, correlation(BATCHES, printed), "computed"),
        ours if control is None else noted(ours, f"with the same epochs left out: {control:.3f}"),
    ]
    falls = {
        kind: section.number("seconds", kind, "8").value / section.number("seconds", kind, "128").value
        for kind in ("warmup_epoch", "gp_epoch", "total")
    }
    figures = ", ".join(f"{kind.replace('_', ' ')} {fall:.1f} times" for kind, fall in falls.items())
    most = max(falls, key=falls.__getitem__) == "warmup_epoch"
    verdicts.append(
        judge("fall of the printed seconds", section.claim("warmup"), most, f"batch 8 over 128: {figures}", "computed")
    )
    for batch in BATCHES:
        epochs = [section.number("seconds", kind, str(batch)) for kind in ("warmup_epoch", "gp_epoch")]
        whole = replace(section.number("seconds", "total", str(batch)), tolerance=1.0)
        value = 8 * epochs[0].value + 12 * epochs[1].value
        verdicts.append(
            covering(compare(f"printed seconds of epochs, batch {batch}", whole, value, "computed"), *epochs)
        )
    return verdicts


def _correlation(values: Sequence[float]) -> float | None:
    """Return the correlation of values with the batch sizes; None if they are all the same."""
    return correlation(BATCHES, values) if len(set(values)) > 1 else None


REFERENCE_BATCH = 32
"""The paper's usual batch size: seconds and accuracies of the others are compared with it."""


def _relative_accuracy(
    section: Section,
    batch: int,
    accuracies: Mapping[int, float],
    left_out: Mapping[int, float],
    terms: Terms,
    extent: str,
) -> Verdict:
    """Compare by how many points the accuracy differs from that with batch 32."""
    numbers = [section.number("accuracy", str(size)) for size in (REFERENCE_BATCH, batch)]
    measured = accuracies[REFERENCE_BATCH], accuracies[batch]
    quantity = f"accuracy, batch {batch} less batch {REFERENCE_BATCH}"
    control = f"the same epochs left out: {left_out[REFERENCE_BATCH]:.2f} to {left_out[batch]:.2f} %"
    return compare_difference(quantity, numbers, measured, terms, extent=f"{control}; {extent}")


def _relative_seconds(section: Section, batch: int, seconds: Mapping[int, float], terms: Terms) -> Verdict:
    """Compare how many times as long as with batch 32 a run takes; seconds themselves are those of a machine."""
    number, reference = (section.number("seconds", "total", str(size)) for size in (batch, REFERENCE_BATCH))
    ratio = Number(round(number.value / reference.value, 4), "times", number.source, section.set_up("ratio_tolerance"))
    measured = seconds[batch] / seconds[REFERENCE_BATCH]
    quantity = f"time, batch {batch} over batch {REFERENCE_BATCH}"
    verdict = compare(quantity, ratio, measured, "measured", terms)
    return replace(verdict, covers=f"{number.path} {reference.path}")


def _epoch_seconds(section: Section, workspace: Workspace, runs: RunGroup, terms: Terms) -> Verdict:
    """Compare how many times as long a warm-up epoch takes as a GP epoch, over all batch sizes published."""
    ratios, covered = [], []
    for batch in BATCHES:
        numbers = [section.number("seconds", kind, str(batch)) for kind in ("warmup_epoch", "gp_epoch")]
        ratios.append(numbers[0].value / numbers[1].value)
        covered += numbers
    result = workspace.result(runs.parts[0])
    table, batches = result["seconds_by_phase"], result["batches"]
    learned = (table.get("warmup", 0.0) + table.get("bp", 0.0)) / max(1, batches["bp"])
    predicted = table.get("gp", 0.0) / max(1, batches["gp"])
    number = Number(round(mean(ratios), 3), "times", covered[0].source, section.set_up("ratio_tolerance"))
    measured = learned / predicted if predicted else None
    verdict = compare("time of a warm-up epoch over a GP epoch, batch 32", number, measured, "measured", terms)
    text = f"published between {min(ratios):.3g} and {max(ratios):.3g}, mean over the batch sizes"
    return covering(replace(verdict, reason="; ".join(filter(None, (verdict.reason, text))), covers=""), *covered)


def _by_size(budget: str) -> dict[int, RunGroup]:
    # The default is left out, so that this run is the one of Table I.
    return {
        size: _run(budget, "vgg11", "remap", outputs=None if size == DEFAULT_SIZE else size).first for size in SIZES
    }


def _size_groups(budget: str) -> list[RunGroup]:
    return [*_by_size(budget).values(), _run(budget, "vgg11", CONTROL).first]


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
    text += f"; as accurate and quicker than 10000: {', '.join(map(str, better)) or 'none'}; "
    text += _beside_control(_run(budget, "vgg11", CONTROL).first, workspace)
    verdicts = [judge("best output size", section.claim("best"), not better, text)]
    return Conclusion(rows, verdicts, lambda: _draw_curve("outputs of the predictor", rows, "outputs"))


def conclude_example(budget: str, workspace: Workspace) -> Conclusion:
    """Repeat the printed example of re-mapping, and count the predictor's convolutions: the text has two and four."""
    import torch
    from torch import nn

    from adagp.papers.remap.source import RemapNetwork, remap

    section = published(EXAMPLE)
    filled = remap(torch.arange(OUTPUTS), EXAMPLE_SIZE)
    padding = int((filled == OUTPUTS - 1).sum()) - EXAMPLE_SIZE // OUTPUTS
    convolutions = sum(isinstance(module, nn.Conv2d) for module in RemapNetwork(10).modules())
    terms = Terms(reduced="built as the set-up and the listing have it; section IV-G describes two")
    verdicts = [
        compare("copies in the example", section.number("copies", "count"), int((filled == 0).sum()), "computed"),
        compare("padding in the example", section.number("padding", "count"), padding, "computed"),
        *(
            compare(f"convolutions of the predictor, {place}", number, convolutions, "computed", terms)
            for place in ("text", "listing")
            for number in (section.number("layers", place),)
        ),
    ]
    rows: list[dict[str, Any]] = [
        {"size": EXAMPLE_SIZE, "outputs": OUTPUTS, "padding": padding, "convolutions": convolutions}
    ]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (8, 3))
        axes[0][0].plot(filled.tolist())
        axes[0][0].set(xlabel="number of the tensor", ylabel="number of the prediction")
        return figure

    return Conclusion(rows, verdicts, draw)


def _vgg11_curves(budget: str) -> list[RunGroup]:
    return [_run(budget, model, "remap").first for model in TRAINED[budget]]


def conclude_losses(budget: str, workspace: Workspace) -> Conclusion:
    """Check the curves of Figures 4, 5 and 9: the predictor's loss by layer and the model's loss, epoch by epoch."""
    section = published(LOSSES)
    rows, falling, constant, model_falls = [], [], [], []
    for runs in _vgg11_curves(budget):
        curves = workspace.result(runs.parts[0]).get("curves") or {}
        losses, errors = curves.get("loss", []), curves.get("mse", [])
        name = runs.options["model"]
        rows += [
            {"model": name, "epoch": epoch, "measured_loss": loss, "measured_predictor_mse": error}
            for epoch, (loss, error) in enumerate(zip(losses, errors, strict=False))
        ]
        known = [error for error in errors if error is not None]
        learned = losses[: WARMUP[budget]]
        falling.append(len(known) > 1 and known[-1] < known[0])
        constant.append(all(error is None for error in errors[WARMUP[budget] : WARMUP[budget] + 3]))
        model_falls.append(len(losses) > len(learned) > 0 and losses[-1] < learned[-1])
    text = f"{len(falling)} models, {WARMUP[budget]} epochs of warm-up; {_vgg11_curves(budget)[0].extent}"
    verdicts = [
        judge(
            "predictor's loss in warm-up and BP epochs",
            section.claim("falls"),
            all(falling),
            f"{sum(falling)} of {text}",
        ),
        judge(
            "predictor's loss in GP epochs",
            section.claim("constant"),
            all(constant),
            f"it has no true gradient to be measured with there: {sum(constant)} of {text}",
        ),
        judge(
            "loss of the model after the warm-up",
            section.claim("model"),
            all(model_falls),
            f"{sum(model_falls)} of {text}",
        ),
    ]
    return Conclusion(rows, verdicts, lambda: _draw_losses(rows))


def _draw_losses(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (11, 4))
    for axis, name in zip(axes, ("measured_loss", "measured_predictor_mse"), strict=True):
        for model in dict.fromkeys(row["model"] for row in rows):
            points = [(row["epoch"], row[name]) for row in rows if row["model"] == model and row[name] is not None]
            axis.plot([point[0] for point in points], [point[1] for point in points], marker=".", label=model)
        axis.set(xlabel="epoch", title=name.replace("_", " "))
    return figure


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
    minutes: tuple[float, float, float],
    groups: Callable[[str], Sequence[RunGroup]],
    conclude: Callable[[str, Workspace], Conclusion],
) -> Experiment:
    """Return an experiment with its minutes at the quick, short and standard budget, and its days at the full one."""
    quick, short, standard = minutes
    lengths = {"quick": quick, "short": short, "standard": standard, "full": None}
    return Experiment(name, shows, lengths, lambda budget: all_parts(groups(budget)), conclude)


for _declared in (
    _experiment(
        TABLE_1,
        "accuracy of VGG11, 13, 16 and MobileNet by backprop and re-mapping",
        (0.9, 9.0, 600.0),
        _pair_groups,
        conclude_accuracy,
    ),
    _experiment(TABLE_2, "seconds of the same runs", (0.9, 9.0, 600.0), _pair_groups, conclude_seconds),
    _experiment(
        TABLE_3, "batch sizes 8 to 128: accuracy and seconds, VGG11", (1.8, 4.0, 560.0), _batch_groups, conclude_batches
    ),
    _experiment(
        LOSSES,
        "loss of the model and of the predictor by epoch (Figs. 4, 5, 9)",
        (0.5, 4.0, 20.0),
        _vgg11_curves,
        conclude_losses,
    ),
    _experiment(
        EXAMPLE, "the printed example of repeating a prediction", (0.1, 0.1, 0.1), lambda budget: (), conclude_example
    ),
    _experiment(
        OUTPUT_SIZE,
        "output sizes of the re-mapping predictor (Fig. 8), VGG11",
        (0.7, 2.0, 250.0),
        _size_groups,
        conclude_sizes,
    ),
):
    add_experiment(_declared, needs=("adagp",) if _declared.name in (TABLE_1, TABLE_2) else ())

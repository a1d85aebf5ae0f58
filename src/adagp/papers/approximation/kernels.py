"""Gradient approximation, Table 1: the approximated weight gradient against the exact one, timed on one thread."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from adagp.program.figures.style import grouped_bars, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Number, Section, published
from adagp.program.reproduce.verdict import Terms, Verdict, compare, covering, judge
from adagp.program.run.documents import POSITIVE, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_1 = "approximation-table1"
SAMPLES = {"quick": 32, "standard": 128, "full": 128}
TIMED = 5
"""In the key of each part: a result with fewer timings is another part."""
COLUMNS = ("exact", "kernel", "transposition", "approximated")
ROUNDS = {"quick": 5, "standard": 15, "full": 15}


def time_kernels(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Time both weight gradients of a 3x3 convolution, taking turns; return the medians in seconds."""
    import torch
    from torch import nn
    from torch.nn.grad import conv2d_weight

    from adagp.layers.sites import survey
    from adagp.papers.approximation.source import topk_gradient

    if workspace.device == "cpu":
        torch.set_num_threads(1)
    channels, size, samples = (part.options[name] for name in ("channels", "size", "samples"))
    torch.manual_seed(0)
    module = nn.Conv2d(channels, channels, 3, padding=1, bias=False, device=workspace.device)
    (site,) = survey(module).sites
    inputs = torch.randn(samples, channels, size, size, device=workspace.device)
    gradient = torch.randn_like(inputs)
    filters = torch.randn_like(module.weight)
    kernels: dict[str, Callable[[], Any]] = {
        "exact": lambda: conv2d_weight(inputs, module.weight.shape, gradient, padding=1),
        "approximated": lambda: topk_gradient(site, inputs, gradient, 1),
        # The part of it that lays the input out as rows of channels, so that a patch is a few rows.
        "transposition": lambda: inputs.movedim(1, -1).reshape(-1, channels),
        "filter": lambda: filters.movedim(1, -1).contiguous(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kernels}
    # process_time leaves out other processes on the CPU; work on another device needs the wall clock.
    clock = time.process_time if workspace.device == "cpu" else time.perf_counter
    for turn in range(part.options["rounds"] + 1):
        for name, kernel in kernels.items():
            begin = clock()
            kernel()
            if workspace.device.startswith("cuda"):
                torch.cuda.synchronize()
            if turn:  # the first one warms up
                seconds[name].append(clock() - begin)
    return {name: median(values) for name, values in seconds.items()}


SECONDS = record_of(dict.fromkeys(("exact", "approximated", "transposition", "filter"), POSITIVE))


@cache
def _cases(budget: str) -> list[tuple[dict[str, Any], Part]]:
    cases = []
    for case in published(TABLE_1).content["cases"]:
        sizes = case["set_up"]
        options = {**sizes, "timed": TIMED, "samples": SAMPLES[budget], "rounds": ROUNDS[budget]}
        cases.append((case, Part(time_kernels, f"{sizes['channels']}x{sizes['size']}", options, shape=SECONDS)))
    return cases


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the speed-up of every case, and whether it is three in most."""
    section = published(TABLE_1)
    machine = f"one thread of a CPU, batch {SAMPLES[budget]}, not a Titan Xp"
    terms = Terms(reduced=machine)
    rows, verdicts = [], []
    for index, (case, part) in enumerate(_cases(budget)):
        seconds, sizes = workspace.result(part), case["set_up"]
        speedup = seconds["exact"] / seconds["approximated"]
        name = f"{sizes['channels']} channels, {sizes['size']}x{sizes['size']}"
        number = section.number("cases", str(index), "speedup")
        speed = compare(f"measured speed-up, {name}", number, speedup, "measured", terms)
        printed = {name: section.number("cases", str(index), name) for name in COLUMNS}
        verdicts.append(covering(speed, printed["exact"], printed["approximated"]))
        share = seconds["transposition"] / seconds["approximated"]
        published_share = printed["transposition"].value / printed["approximated"].value
        number = Number(published_share, "share", number.source, section.set_up("share_tolerance"))
        verdict = compare(f"share of the transposition, {name}", number, share, "measured", terms)
        verdicts.append(covering(verdict, printed["kernel"], printed["transposition"]))
        rows.append(
            {
                "case": name,
                "published_speedup": case["speedup"],
                "measured_exact_seconds": seconds["exact"],
                "measured_approximated_seconds": seconds["approximated"],
                "measured_transposition_seconds": seconds["transposition"],
                "measured_filter_seconds": seconds["filter"],
                "measured_speedup": speedup,
            }
        )
    verdicts += [*_judge_kernels(section, rows), _scaling(section, budget, workspace)]
    return Conclusion(rows, verdicts, lambda: _draw(rows))


def _judge_kernels(section: Section, rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Judge the paper's claims on the approximated gradient and on transpositions, over all cases."""
    speedups = [row["measured_speedup"] for row in rows]
    quick = [speedup for speedup in speedups if speedup >= section.slack]
    long = [row for row in rows if row["measured_transposition_seconds"] > row["measured_approximated_seconds"] / 3]
    inputs = [row for row in rows if row["measured_transposition_seconds"] > row["measured_filter_seconds"]]
    return [
        judge(
            "approximated gradient",
            section.claim("faster"),
            2 * len(quick) > len(rows),
            f"{len(quick)} of {len(rows)} cases; {min(speedups):.2f} to {max(speedups):.2f} times",
        ),
        judge(
            "transposition",
            section.claim("transposition"),
            2 * len(long) >= len(rows),
            f"{len(long)} of {len(rows)} cases: the transposition takes a third of the whole time, half of the rest",
        ),
        judge(
            "transposition of filters",
            section.claim("filter"),
            len(inputs) >= len(rows) - 1,
            f"{len(inputs)} of {len(rows)} cases",
        ),
    ]


def _draw(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    figure, axes = subplots(1, 1, (9, 4.5))
    speedups = {
        "published, Titan Xp": [row["published_speedup"] for row in rows],
        "measured here": [row["measured_speedup"] for row in rows],
    }
    grouped_bars(axes[0][0], [row["case"] for row in rows], speedups)
    axes[0][0].axhline(1, color="black", linewidth=0.8)
    axes[0][0].set(ylabel="speed-up over the exact weight gradient")
    return figure


def _scaling(section: Section, budget: str, workspace: Workspace) -> Verdict:
    """Judge how times grow with the size of the maps, by the cases that have as many channels."""
    timed = {
        (case["set_up"]["channels"], case["set_up"]["size"]): workspace.result(part) for case, part in _cases(budget)
    }
    texts, follows = [], []
    for channels, small, large in ((512, 2, 4), (64, 8, 32)):
        exact, approximated = (
            timed[channels, large][name] / timed[channels, small][name] for name in ("exact", "approximated")
        )
        area = (large / small) ** 2
        follows.append(exact > area / 2 and approximated < area / 2)
        texts.append(
            f"{channels} channels, maps {area:g} times as large: exact {exact:.1f}, approximated {approximated:.1f}"
        )
    return judge("times by the size of the maps", section.claim("scaling"), all(follows), "; ".join(texts))


for _experiment in (
    Experiment(
        TABLE_1,
        "time of exact and approximated weight gradients",
        {"quick": 0.1, "standard": 0.2, "full": 0.2},
        lambda budget: [part for _, part in _cases(budget)],
        conclude,
    ),
):
    add_experiment(_experiment)

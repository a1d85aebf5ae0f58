"""Pictures of runs: a single epoch can be seen, epochs are whole, legends lie beside, deep models have names."""

import json
from pathlib import Path
from typing import Any

from adagp.program.figures.curves import MOST_NAMED, curves, site_cosines
from adagp.program.figures.style import style
from adagp.program.run.record import read_whole_run


def records(*paths: Path) -> list[Any]:
    return [read_whole_run(path, "draw") for path in paths]


def ticks(axes: Any) -> list[float]:
    low, high = axes.get_xlim()
    return [float(tick) for tick in axes.get_xticks() if low <= tick <= high]


def test_a_run_of_one_epoch_is_a_dot(write_run: Any) -> None:
    with style():
        figure = curves(records(write_run("one", epochs=1, method="bp")))
        figure.canvas.draw()
    for axes in figure.axes:
        line: Any = axes.lines[0]
        assert (line.get_marker(), list(line.get_xdata())) == ("o", [1])
        assert ticks(axes) == [1.0]


def test_many_runs_have_distinct_colours_and_a_legend_next_to_the_axes(write_run: Any) -> None:
    with style():
        figure = curves(records(*(write_run(f"r{place}", lr=0.001 * (place + 1), epochs=9) for place in range(16))))
        figure.canvas.draw()
    axes: Any = figure.axes[1]
    assert len({line.get_color() for line in axes.lines}) == 16
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    assert figure.axes[0].get_legend() is None
    assert all(tick.is_integer() for tick in ticks(axes))


def test_every_nth_site_of_a_deep_model_is_in_the_legend(write_run: Any) -> None:
    run = write_run("deep")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["sites"] = {f"layer{place}": {"cosine": 0.1, "cosine_previous": 0.2} for place in range(50)}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with style():
        figure = site_cosines(records(run)[0])
    legend: Any = figure.axes[1].get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:2] == ["layer0", "layer4"]
    assert len(names) <= MOST_NAMED
    assert legend.get_title().get_text() == "some of 50 sites"

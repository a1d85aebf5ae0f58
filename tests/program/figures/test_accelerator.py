"""Pictures of the accelerator model."""

from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.hw import Accelerator, Convolution, Linear, Workload, scheduled_run, simulate
from adagp.program.figures import accelerator
from adagp.program.figures.accelerator import name_layers, plot_simulation, plot_speedups
from adagp.program.figures.style import check_picture_path, style, subplots
from adagp.schedules import parse_schedule


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_figures_are_written(tmp_path: Path, suffix: str) -> None:
    layers = (Convolution("stem", 3, 32, (3, 3), (16, 16), (16, 16), input_gradient=False), Linear("head", 1, 64, 10))
    run = scheduled_run(parse_schedule("paper", 90), 90, samples=2000, batch=100)
    path = tmp_path / f"picture.{suffix}"
    plot_simulation(simulate(Workload("small", layers), Accelerator(), run), path)
    assert path.stat().st_size > 10_000
    plot_speedups({"a": {"baseline": 1.0, "max": 1.4}, "b": {"baseline": 1.0, "max": 1.5}}, "title", path)
    assert path.stat().st_size > 3_000


def test_speedups_of_one_model_are_named_below_their_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(accelerator, "save", lambda figure, path: drawn.append(figure))
    layers = (Linear("head", 1, 64, 10),)
    run = scheduled_run(parse_schedule("paper", 90), 90, samples=2000, batch=100)
    plot_simulation(simulate(Workload("small", layers), Accelerator(), run), tmp_path / "picture.png")
    (figure,) = drawn
    panel = figure.axes[5]
    assert panel.get_title() == "Speed-up"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["baseline", "low", "efficient", "max"]
    assert panel.get_legend() is None


def test_bad_paths_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        check_picture_path(tmp_path / "x.doc")
    assert str(raised.value) == f"cannot plot to '{tmp_path / 'x.doc'}'; the name must end in .svg, .png, .pdf."
    with pytest.raises(OptionError) as raised:
        check_picture_path(tmp_path / "none" / "x.png")
    assert str(raised.value) == (
        f"cannot plot to '{tmp_path / 'none' / 'x.png'}': there is no folder '{tmp_path / 'none'}'."
    )


def test_every_nth_layer_of_a_deep_model_is_labelled() -> None:
    with style():
        _, ((axes,),) = subplots(1, 1, (6, 4))
        name_layers(axes, [f"block{place}.convolution.with.a.long.name" for place in range(60)])
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert len(names) == 20
    assert names[0].startswith("…")
    assert axes.get_xlabel() == "layer; every third of 60 is named"

from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import LineCollection

from adagp.errors import OptionError
from adagp.pipe import Timeline, constant_costs, generate, parse_phases, simulate
from adagp.program.figures import gantt
from adagp.program.figures.gantt import plot_gantt, text_gantt


def timeline(name: str = "dapple", devices: int = 2, micro_batches: int = 2, alpha: float = 0.0) -> Timeline:
    program = generate(name, devices, micro_batches, parse_phases("GP,BP"))
    return simulate(program, constant_costs(devices, alpha=alpha))


def test_actions_are_labelled_if_they_fit() -> None:
    assert [line.plain for line in text_gantt(timeline(), 80)] == [
        "0: F0 F1 F2 F3 ......B2    ...B3    ",
        "1: ...F0 F1 F2 B2    F3 B3    ......",
    ]


def test_a_long_timeline_is_sampled() -> None:
    lines = [line.plain for line in text_gantt(timeline(), 14)]
    assert lines == ["0: FFFF..BB.BB", "1: .FFFBBFBB.."]
    assert [line.plain for line in text_gantt(timeline(alpha=1), 80)][1].count("U") > 1


def test_phases_have_different_colours() -> None:
    styles = [str(span.style) for span in text_gantt(timeline(), 80)[0].spans]
    assert styles[:4] == ["black on bright_yellow"] * 2 + ["black on bright_cyan"] * 2


@pytest.mark.parametrize(("name", "start"), [("chart.svg", b"<?xml"), ("chart.png", b"\x89PNG")])
def test_a_figure_is_written(tmp_path: Path, name: str, start: bytes) -> None:
    plot_gantt(timeline("chimera", 4, 4, alpha=0.1), "steps", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_steps_are_whole_and_the_last_update_is_drawn_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(gantt, "save", lambda figure, path: drawn.append(figure))
    plot_gantt(timeline("zb-h1", 4, 4), "steps", tmp_path / "chart.png")
    (chart,) = drawn[0].axes
    assert all(float(tick).is_integer() for tick in chart.get_xticks())
    updates = [lines for lines in chart.collections if isinstance(lines, LineCollection)]
    assert max(x for lines in updates for line in lines.get_segments() for x, _ in line) == chart.get_xlim()[1]
    assert not any(lines.get_clip_on() for lines in updates)


def test_a_bad_path_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the name must end in \.svg, \.png, \.pdf\.$"):
        plot_gantt(timeline(), "steps", tmp_path / "chart.txt")

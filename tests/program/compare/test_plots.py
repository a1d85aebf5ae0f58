"""The picture of a comparison: names apart, colours of their own, bars that end where values do."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

from adagp.program.compare import plots
from adagp.program.figures.style import save


def method(accuracy: float, seconds: float, reach: float = 0.01) -> dict[str, Any]:
    return {
        "method": "bp",
        "batch_size": 64,
        "runs": 3,
        "accuracy_mean": accuracy,
        "accuracy_low": accuracy - reach,
        "accuracy_high": min(1.0, accuracy + reach),
        "seconds_mean": seconds,
        "seconds_low": max(0.0, seconds - 20),
        "seconds_high": seconds + 20,
    }


def document(methods: dict[str, Any], *names: str) -> dict[str, Any]:
    regimes = {regime: {"methods": methods} for regime in names or ("batches",)}
    runs = [
        {"regime": regime, "name": name, "accuracy": methods[name]["accuracy_mean"]}
        for regime in regimes
        for name in methods
    ]
    return {"model": "net", "dataset": "data", "methods": list(methods), "regimes": regimes, "runs": runs}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the figures that are saved during the test."""
    found: list[Any] = []

    def keep(figure: Any, path: Path) -> Path:
        found.append(figure)
        return save(figure, path)

    monkeypatch.setattr(plots, "save", keep)
    return found


@pytest.mark.medium
def test_sixteen_methods_have_separate_labels_and_distinct_colours(tmp_path: Path, drawn: list[Any]) -> None:
    methods = {f"method_{place}@4:1": method(0.5 + 0.002 * (place % 5), 50 + 3 * (place % 4)) for place in range(16)}
    assert len(plots.draw_pareto(document(methods), tmp_path, ("png",))) == 1
    (figure,) = drawn
    for axes in figure.axes:
        texts = [one for one in axes.texts if one.get_text() in methods]
        assert len(texts) == 16
        assert len({one.get_color() for one in texts}) == 16
        boxes = [Text.get_window_extent(one) for one in texts]  # without the line to the point
        for one, other in combinations(boxes, 2):
            width = min(one.x1, other.x1) - max(one.x0, other.x0)
            height = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert width <= 1 or height <= 1
        assert axes.get_xlim()[0] >= -15  # no bar goes below zero seconds


def test_the_note_explains_only_what_is_drawn(tmp_path: Path, drawn: list[Any]) -> None:
    methods = {"bp": method(0.6, 50)}
    for names in (("batches",), ("seconds",)):
        plots.draw_pareto(document(methods, *names), tmp_path, ("png",))
    assert [figure.get_supxlabel() for figure in drawn] == [
        "bars: 95% interval over seeds; dotted line: Pareto front",
        "bars: 95% interval over seeds; small dots: single seeds",
    ]


def test_error_bars_end_at_the_bounds_of_the_values(tmp_path: Path, drawn: list[Any]) -> None:
    plots.draw_pareto(document({"bp": method(0.99, 5, 0.2)}), tmp_path, ("png",))
    (figure,) = drawn
    for axes in figure.axes:
        ends = [tuple(point) for bars in axes.collections for line in bars.get_segments() for point in line]
        assert max(y for _, y in ends) == pytest.approx(100)
        assert min(x for x, _ in ends) == pytest.approx(0)


def test_at_equal_cost_each_method_has_a_row_with_its_seeds(tmp_path: Path, drawn: list[Any]) -> None:
    methods = {"bp": method(0.6, 50), "feedback": method(0.55, 90) | {"method": "feedback", "batch_size": 32}}
    plots.draw_pareto(document(methods, "seconds", "accelerator"), tmp_path, ("png",))
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes] == [
        "equal CPU seconds, calibrated",
        "equal cost on the accelerator, modelled",
    ]
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == ["bp\nbatch 64", "feedback\nbatch 32"]
        assert [text.get_text() for text in axes.texts] == ["60.0", "55.0"]
        assert "seconds" not in axes.get_xlabel()

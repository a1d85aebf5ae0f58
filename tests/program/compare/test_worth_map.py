"""The map: points of reports of this and of earlier versions, their sides of the break-even, table and picture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.compare.plots import draw_map
from adagp.program.compare.tables import map_sheets
from adagp.program.compare.worth_map import map_points, read_map


def platform(price: float, overhead: float) -> dict[str, Any]:
    return {
        "price": price,
        "overhead": overhead,
        "break_even": price + overhead,
        "price_without_bubbles": None,
        "verdict": "pays",
        "details": "",
    }


def report(**more: Any) -> dict[str, Any]:
    method = {
        "worth": 0.6,
        "interval": [0.5, 0.7],
        "regime": "batches",
        "bp_batches": 200,
        "gp_batches": 200,
        "beyond_curve": "",
        "platforms": {"cpu": platform(0.4, 0.05), "pipeline-64": platform(0.7, 0.02)},
    }
    quality = {"rho_squared": 0.5, "rho_squared_low": 0.45, "rho_squared_high": 0.55, "noise_scale": 800.0}
    plain: dict[str, Any] = {
        "command": "adagp compare --batch-size 96",
        "model": "net",
        "dataset": "digits",
        "methods": ["bp", "feedback"],
        "reference": "bp",
        "batch_sizes": {"bp": 64, "feedback": 128},
        "regimes": {"batches": {"methods": {"bp": {"noise_scale": 900.0}, "feedback": quality}}},
        "worth": {"metric": "accuracy", "curve": [], "methods": {"feedback": method}},
    }
    return plain | more


def test_points_and_their_sides() -> None:
    cpu, pipeline = map_points(report())
    assert (cpu.series, cpu.platform, cpu.price) == ("net on digits, batch size 128: feedback", "cpu", 0.4)
    assert (cpu.step_limited, cpu.noise_limited) == ("pays", "pays")
    assert (pipeline.step_limited, pipeline.noise_limited) == ("does not pay", "does not pay")
    # (sqrt(0.5 * 0.4) + sqrt(0.5 * 0.6))^2
    assert cpu.noise_limited_cost == pytest.approx(0.5 + 2 * (0.2 * 0.3) ** 0.5)
    assert pipeline.noise_limited_cost == 1
    assert cpu.as_dict()["step_limited"] == "pays"


def test_a_report_of_an_earlier_version_has_its_batch_size_in_the_command() -> None:
    former = report(regimes={"batches": {"methods": {"bp": {}, "feedback": {}}}})
    del former["batch_sizes"]
    point = next(map_points(former))
    assert (point.batch_size, point.rho_squared, point.noise_limited, point.noise_limited_cost) == (
        96,
        None,
        None,
        None,
    )


def test_prices_of_a_comparison_without_a_curve() -> None:
    costs = {"bp": {"bp": 1.0, "data": 0.25}, "feedback": {"bp": 2.5, "gp": 1.0, "data": 0.5}}
    sizes = {"bp": 64, "feedback": 128}
    calibration = {
        "rounds": 3,
        "methods": {name: {"cost": cost, "batch_size": sizes[name]} for name, cost in costs.items()},
    }
    kinds = {
        "bp": [{"phase": "bp", "batches": 9, "cost": 100.0}],
        "feedback": [{"phase": "bp", "batches": 4, "cost": 210.0}, {"phase": "gp", "batches": 4, "cost": 90.0}],
    }
    platforms = {
        "cluster": {"methods": {name: {"kinds": own, "batch_size": sizes[name]} for name, own in kinds.items()}}
    }
    points = list(map_points(report(worth=None, calibration=calibration, platforms=platforms)))
    assert [(point.platform, point.price) for point in points] == [("cpu", 0.6), ("cluster", 0.45)]
    assert {point.step_limited for point in points} == {None}


def test_table_and_picture(tmp_path: Path) -> None:
    points = list(map_points(report())) + list(map_points(report(model="other")))
    first, second = map_sheets(points)
    assert first.title == "net on digits, batch size 128: feedback"
    assert first.rows == (
        ("cpu", "0.400", "0.450", "pays", "0.99", "pays"),
        ("pipeline-64", "0.700", "0.720", "does not pay", "1.00", "does not pay"),
    )
    assert first.note == (
        "Measured: a GP batch is worth 0.60 (0.50 to 0.70), rho^2 0.50, gradient noise scale 800 samples."
    )
    assert "In batches of plain backprop." in second.note
    (without,) = map_sheets([replace(points[0], worth_interval=(None, None))])
    assert without.note.startswith("Measured: a GP batch is worth 0.60, without an interval, rho^2 0.50, ")
    text = draw_map(points, tmp_path / "map.svg").read_text()
    assert text.count("does not pay") >= 2
    skipped = replace(points[0], method="skip", price=0.0)
    assert "skip" not in draw_map([*points, skipped], tmp_path / "map.svg").read_text()
    assert "skip" in draw_map([skipped], tmp_path / "map.svg").read_text()
    only_worth = report(regimes={"batches": {"methods": {}}})
    assert draw_map(list(map_points(only_worth)), tmp_path / "one.png").stat().st_size > 5000


def test_folders_without_a_quality_are_left_out(tmp_path: Path) -> None:
    contents: dict[str, Any] = {
        "good": report(),
        "none": report(worth=None, regimes={"batches": {"methods": {}}}),
        "bad": report(worth={"methods": {"feedback": {"worth": "x"}}}),
        "odd": {"regimes": 3},
    }
    for name, content in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(content))
    points, left_out = read_map([tmp_path / name for name in (*contents, "missing")])
    assert len(points) == 2
    assert left_out == [
        f"'{tmp_path}/none' measured no quality: neither worth (--curve) nor rho^2 (--large-batch).",
        f"cannot read '{tmp_path}/bad/report.json': worth: 'metric' is missing.",
        f"'{tmp_path}/odd' holds a report.json that is not the report of a comparison.",
        f"'{tmp_path}/missing' holds no finished comparison: it has no report.json.",
    ]
    with pytest.raises(RunError, match="measured no quality"):
        read_map([tmp_path / "none"])

"""What people read: the cells of the tables, and Markdown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.compare.records import aligned_record
from adagp.program.compare.tables import markdown, method_rows, read_comparison, sheets, site_rows


def record(accuracy: float, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "runs": 3,
        "batches": 600,
        "gp_batches": 269,
        "guarded_batches": 1,
        "accuracy_mean": accuracy,
        "accuracy_low": accuracy - 0.01,
        "accuracy_high": accuracy + 0.01,
        "seconds_mean": 12.34,
        "seconds_low": None,
        "seconds_high": None,
        "calibrated_seconds": None,
        "seconds_by_phase": {"warmup": 1.0, "bp": 2.0, "gp": 3.0, "data": 0.25},
        "peak_memory": 5e8,
        "peak_memory_low": 4e8,
        "peak_memory_high": 6e8,
        "target_share": 2 / 3,
        "seconds_to_target_mean": None,
        "seconds_to_target_low": None,
        "seconds_to_target_high": None,
        "gap_closed": None,
        "gap_clear": False,
        **dict.fromkeys(("ahead_mean", "ahead_low", "ahead_high")),
        **aligned_record([]),
    }
    return plain | more


def document(**more: Any) -> dict[str, Any]:
    figures = {"cosine_true": 0.5, "cosine_true_low": 0.4, "cosine_true_high": 0.6, "ceiling_minibatch": 0.25}
    ahead = {"ahead_mean": -0.05, "ahead_low": -0.07, "ahead_high": -0.03}
    methods = {
        "bp": record(0.7, gap_closed=1.0, gap_clear=True),
        "a|b": record(0.65, gap_closed=-0.5, **ahead, **figures, sites={"conv1": {"cosine_true": 0.5}}),
    }
    plain = {
        "command": "adagp compare --x",
        "dataset": "cifar10",
        "model": "net",
        "methods": list(methods),
        "batches": 600,
        "budget_seconds": 99.96,
        "target": None,
        "jobs": 2,
        "alignment": {"points": 5, "seeds": 1, "samples": 4096},
        "regimes": {"batches": {"methods": methods}, "seconds": {"methods": methods}},
        "failed": [],
    }
    return plain | more


def test_the_cells() -> None:
    results, costs, seconds, _, gradients = sheets(document())
    assert results.title == "net on cifar10, equal batches: 600 each"
    assert seconds.title == "net on cifar10, equal seconds: 100.0 as calibrated"
    assert results.heads == (
        "method",
        "accuracy, %",
        "ahead of bp",
        "gap closed",
        "batches",
        "GP",
        "seconds",
        "calibrated",
    )
    assert results.rows == (
        ("bp", "70.00 ± 1.00", "-", "100%", "600", "270", "12.3", "-"),
        ("a|b", "65.00 ± 1.00", "-5.00 ± 2.00", "?", "600", "270", "12.3", "-"),
    )
    assert results.note.startswith("n = 3. ± is the 95% interval (Student's t) over seeds.")
    assert seconds.note.endswith("The learning rate decays to 0 in each run.")
    assert costs.heads == ("method", "warmup", "bp", "gp", "data", "peak MB")
    assert costs.rows[0] == ("bp", "1.00", "2.00", "3.00", "0.25", "500 ± 100")
    assert gradients.rows == (
        ("bp", "-", "-", "-", "-", "-", "-"),
        ("a|b", "0.500 ± 0.100", "-", "-", "-", "0.250", "-"),
    )


def test_a_target_adds_columns() -> None:
    costs = sheets(document(target=0.65))[1]
    assert costs.heads[-2:] == ("reach 65%", "after s")
    assert costs.rows[0][-2:] == ("67%", "-")


def test_another_metric_has_its_own_column() -> None:
    metric = {"name": "error", "unit": "m", "higher_is_better": False, "title": "largest error"}
    ends = {"error_mean": 0.12345, "error_low": 0.11, "error_high": 0.13}
    found = document(regimes={"batches": {"methods": {"bp": record(0.7, **ends)}}}, metrics=[metric], target=0.5)
    results, costs = sheets(found)
    assert (results.heads[1], results.rows[0][1]) == ("largest error, m", "0.1235 (0.11 to 0.13)")
    assert "share of the largest error gap between skip and bp" in results.note
    assert costs.heads[-2:] == ("reach 0.5 m", "after s")


def test_missing_runs_and_failures_are_listed() -> None:
    partly = {"bp": record(0.7), "skip": record(0.6, runs=1)}
    found = document(regimes={"batches": {"methods": partly}}, failed=[{"name": "skip seed 1", "reason": "no memory"}])
    (results, _) = sheets(found)
    assert results.note.startswith("n = 1 to 3: some runs are missing.")
    text = markdown(found)
    assert "## Failed\n\n- skip seed 1: no memory\n" in text
    assert text.endswith("Repeat with: `adagp compare --x`\n")


def test_a_comparison_without_finished_runs() -> None:
    empty = document(regimes={"batches": {"methods": {}}})
    assert sheets(empty)[0].note.startswith("No run is finished.")
    assert markdown(empty).startswith("# net on cifar10: bp, a|b\n")
    assert site_rows(empty) == method_rows(empty) == []


def test_markdown_and_rows() -> None:
    text = markdown(document())
    assert "| a\\|b | 65.00 ± 1.00 | -5.00 ± 2.00 | ? | 600 | 270 | 12.3 | - |" in text
    assert [(row["regime"], row["name"]) for row in method_rows(document())] == [
        ("batches", "bp"),
        ("batches", "a|b"),
        ("seconds", "bp"),
        ("seconds", "a|b"),
    ]
    assert "sites" not in method_rows(document())[0]
    assert site_rows(document()) == [{"name": "a|b", "site": "conv1", "cosine_true": 0.5}]


def test_a_modelled_regime_lists_the_cost_of_batches() -> None:
    def cost(kinds: list[tuple[str, int, float]], **more: Any) -> dict[str, Any]:
        total = sum(count * price for _, count, price in kinds)
        found = [{"phase": phase, "batches": count, "cost": price} for phase, count, price in kinds]
        return {
            "kinds": found,
            "costs": {"batches": total, "pipeline": total},
            "bound": 90.0,
            "kept_bytes": 2e6,
            **more,
        }

    platform = {
        "platform": "best,devices=4,micro-batches=4",
        "unit": "cycles",
        "budget": 60_000.0,
        "methods": {
            "bp": cost([("bp", 600, 100.0)], schedule="zb-v"),
            "feedback": cost([("bp", 400, 102.0), ("gp", 400, 48.0)], schedule="dapple"),
        },
    }
    methods = {name: record(0.7, modelled_cost=6e4) for name in ("bp", "feedback")}
    found = document(regimes={"pipeline": {"methods": methods}}, platforms={"pipeline": platform})
    results, costs = sheets(found)
    assert (
        results.title == "net on cifar10, equal cycles on the pipeline best,devices=4,micro-batches=4: 6e+04, modelled"
    )
    assert (results.heads[-1], results.rows[0][-1]) == ("modelled cycles", "6e+04")
    assert results.note.endswith(
        "A batch costs, in batches of plain backprop: feedback BP 1.020, GP 0.480. Pipelines: bp zb-v, feedback dapple. "
        "Without bubbles a batch of plain backprop would cost 0.900. Peak activations on a device: bp 2.00 MB, "
        "feedback 2.00 MB. The learning rate decays to 0 in each run."
    )
    assert costs.title == "costs at equal cycles (pipeline), measured here"


def test_the_picked_values_are_listed() -> None:
    tuning = {
        "option": "lr",
        "values": [0.01, 0.1],
        "regime": "accelerator",
        "validation": 0.1,
        "seeds": 1,
        "methods": {
            "bp": {"batches": 600, "accuracy": {"0.01": 0.5, "0.1": None}, "picked": 0.01, "at_the_edge": True},
        },
    }
    first = sheets(document(tuning=tuning))[0]
    assert first.title == "tuning: each method's own lr"
    assert first.heads == ("method", "lr 0.01", "lr 0.1", "picked", "batches")
    assert first.rows == (("bp", "50.00", "-", "0.01*", "600"),)
    assert first.note.startswith("Accuracy on a held-out 10% of the training data; 1 seed that no other run")


def test_a_grid_of_tuned_values() -> None:
    def trial(lr: float, size: int, accuracy: float | None) -> dict[str, Any]:
        return {"values": {"lr": lr, "batch_size": size}, "batches": 6400 // size, "accuracy": accuracy}

    points = ((0.01, 32, 0.5), (0.01, 64, 0.52), (0.1, 32, None), (0.1, 64, 0.4))
    method = {
        "trials": [trial(*point) for point in points],
        "picked": {"lr": 0.01, "batch_size": 64},
        "at_the_edge": ["batch_size"],
    }
    tuning = {
        "options": {"lr": [0.01, 0.1], "batch_size": [32, 64]},
        "regime": "batches",
        "validation": 0.1,
        "seeds": 1,
        "methods": {"bp": method},
    }
    first = sheets(document(tuning=tuning))[0]
    assert first.title == "tuning: each method's own lr and batch_size"
    assert first.heads == ("method", "lr 0.01", "lr 0.1", "picked", "batches")
    assert first.rows == (
        ("bp, batch_size 32", "50.00", "-", "-", "200"),
        ("bp, batch_size 64", "52.00", "40.00", "lr 0.01, batch_size 64*", "100"),
    )
    assert "equal samples" in first.note


def test_batch_sizes_are_named() -> None:
    methods = {"bp": record(0.7, batch_size=64), "a|b": record(0.65, batch_size=128)}
    regimes = {"batches": {"methods": methods}}
    sizes = {"batch_size": 128, "batch_sizes": {"bp": 64, "a|b": 128}, "backprop_batch_sizes": [32, 64, 128]}
    differing = document(regimes=regimes, **sizes)
    results = sheets(differing)[0]
    assert results.title == "net on cifar10, equal samples: 76,800 each"
    assert (results.heads[4], [row[4] for row in results.rows]) == ("batch size", ["64", "128"])
    assert results.note.endswith("Backprop was tried with batches of 32, 64 and 128 samples.")
    assert markdown(differing).startswith("# net on cifar10: bp (batch size 64), a|b (batch size 128)\n")

    equal = document(regimes=regimes, batch_size=128, batch_sizes={"bp": 128}, backprop_batch_sizes=[128])
    assert sheets(equal)[0].title == "net on cifar10, equal batches: 600 each"
    assert sheets(equal)[0].note.endswith(
        "Backprop was trained with batches of 128 samples only. Smaller batches, which give more steps at equal cost, were "
        "not tried (add batch_size=... to --tune)."
    )
    assert markdown(equal).startswith("# net on cifar10, batch size 128: bp, a|b\n")


def write(folder: Path, content: Any) -> Path:
    (folder / "report.json").write_text(json.dumps(content))
    return folder


def test_tables_as_text_and_as_html(tmp_path: Path) -> None:
    found = read_comparison(write(tmp_path, document()))
    assert str(found).startswith(
        "# net on cifar10: bp, a|b\n\nAt equal batches (600 each), bp reaches accuracy 70.00%; "
    )
    page = found._repr_html_()
    assert page.count("<table>") == len(found.sheets) == 5
    assert '<td style="text-align: right">70.00 ± 1.00</td>' in page


def test_names_of_methods_and_reasons_are_escaped(tmp_path: Path) -> None:
    methods = {"bp": record(0.7), "<img src=x>": record(0.6)}
    failed = [{"name": "<b>", "reason": "<i>&", "log": ""}]
    hostile = document(model="<script>", regimes={"batches": {"methods": methods}}, failed=failed)
    page = read_comparison(write(tmp_path, hostile))._repr_html_()
    assert re.findall(r"<(?:script|img|b|i)\b", page) == []
    assert "&lt;script&gt; on cifar10" in page
    assert "&lt;img src=x&gt;" in page
    assert "failed: &lt;b&gt;: &lt;i&gt;&amp;" in page


def test_a_folder_without_a_comparison_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError) as missing:
        read_comparison(tmp_path / "nowhere")
    assert str(missing.value) == f"'{tmp_path / 'nowhere'}' holds no finished comparison: it has no report.json."
    wrong_ones: list[Any] = [[], {}, {"regimes": 3}, document(regimes={"batches": {"methods": {"bp": {}}}})]
    for content in wrong_ones:
        with pytest.raises(RunError) as wrong:
            read_comparison(write(tmp_path, content))
        assert str(wrong.value) == f"'{tmp_path}' holds a report.json that is not the report of a comparison."

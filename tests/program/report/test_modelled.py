from dataclasses import replace
from typing import Any

import pytest

from adagp.core.methods import METHODS
from adagp.hw import Accelerator, replayed_run, simulate
from adagp.program.report.charts import gantt
from adagp.program.report.modelled import accelerate, pattern, pipelines
from adagp.program.report.run_groups import Chapter, chapters
from adagp.program.run.record import collect, read_whole_run
from adagp.program.workloads import model_workload


def only(*paths: Any) -> Chapter:
    (chapter,) = chapters(collect(paths))
    return chapter


def test_a_run_is_replayed_as_adagp_simulate_does(write_run: Any) -> None:
    path = write_run("one")
    found = accelerate(only(write_run("bp", method="bp"), path))
    record = read_whole_run(path, "replay")
    replay = replayed_run(record.phases, record.batch_size, "predicted")
    whole = simulate(model_workload("digits_cnn", "digits"), Accelerator(), replay)
    assert found.remarks == ()
    assert list(found.reports) == ["adagp"]
    report = found.reports["adagp"]
    assert report["batches"] == {"warmup": 10, "bp": 15, "gp": 15}
    assert report["designs"]["max"]["speedup"] == whole.speedup("max")


@pytest.mark.parametrize(
    ("options", "remark"),
    [
        ({"method": "bp"}, "No run has GP batches, so there is nothing to gain on the accelerator."),
        ({"method": "dni"}, "dni: this method has no accelerator cost model."),
        (
            {"model": "os:getcwd"},
            "adagp could not be modelled: 'os:getcwd' is not one of adagp's models; use adagp simulate --from-run.",
        ),
    ],
)
def test_remarks_on_methods_that_cannot_be_modelled(
    write_run: Any, options: dict[str, Any], remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._things, "dni", replace(METHODS["dni"], accelerator=None))
    found = accelerate(only(write_run("one", **options)))
    assert (found.reports, found.remarks) == ({}, (remark,))


def test_the_pattern_is_that_of_the_last_predicting_epoch(write_run: Any, rewrite: Any) -> None:
    run = write_run("one")
    assert pattern(only(run).groups) == "GP,BP"
    for label, expected in (("3:1", "GP,GP,GP,BP"), ("all gp", "GP,BP"), ("40:1", "GP,BP")):
        rewrite(run, 3, {"label": label})
        assert pattern(only(run).groups) == expected
    assert pattern(only(write_run("bp", method="bp")).groups) == "GP,BP"


def test_pipelines_take_the_published_steps() -> None:
    found = {one.name: one for one in pipelines("GP,BP")}
    assert {name: one.steps for name, one in found.items()} == {
        "gpipe": 25,
        "dapple": 25,
        "chimera": 20,
        "interleaved": 20.5,
        "zb-h1": 19,
        "zb-v": 20.5,
    }
    assert found["chimera"].speedup == 32 / 20
    assert {action["what"] for action in found["gpipe"].actions} == {"GP forward", "BP forward", "backward"}


def test_numbers_on_dark_bars_are_white() -> None:
    chart = next(chart for chart in gantt(pipelines("GP,BP")) if chart.title == "zb-h1")
    white = chart.spec["layer"][1]["encoding"]["color"]["condition"]
    assert white == {"test": {"field": "what", "oneOf": ["backward", "input gradient"]}, "value": "#fff"}
    assert {row["what"] for row in chart.spec["data"]["values"]} >= {"input gradient", "weight gradient"}

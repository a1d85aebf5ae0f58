"""What is asked for and its folder: what is rejected, and which runs it means."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import AdagpError, OptionError, RunError
from adagp.program.compare.comparison import Comparison, ComparisonFolder
from adagp.program.compare.grid import Tuning
from adagp.program.compare.methods import read_candidates


def comparison(**options: Any) -> Comparison:
    given: dict[str, Any] = {
        "options": {"ratio": "1:1", "warmup_batches": 3},
        "settings": {},
        "batches": 20,
        "seeds": 2,
    }
    return Comparison(read_candidates("bp,skip,dni"), **given | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "--seeds is 0; it must be 1 or more."),
        ({"large_batch": -1}, "--large-batch is -1; it must be 0 or more."),
        ({"points": 0}, "--points is 0; it must be 1 or more."),
        ({"aligned_seeds": -1}, "--aligned-seeds is -1; it must be 0 or more."),
        ({"aligned_seeds": 3}, "--aligned-seeds is 3; it must be at most the number of seeds, 2."),
        ({"rounds": 0}, "--rounds is 0; it must be 1 or more."),
        ({"regimes": ()}, "--regimes is empty; choose from: batches, seconds, accelerator, pipeline, cluster."),
        (
            {"regimes": ("batch",)},
            "unknown regime 'batch'. Did you mean 'batches'? Choose from: accelerator, batches, cluster, pipeline, seconds.",
        ),
        ({"regimes": ("batches", "batches")}, "--regimes names 'batches' twice."),
        ({"seconds": 5.0, "regimes": ("batches",)}, "--seconds goes with the regime seconds; add it to --regimes."),
        ({"seconds": 0.0}, "--seconds is 0.0; it must be a finite number above 0."),
        (
            {"options": {"lr_scheduler": "plateau"}},
            "the regime seconds needs a learning rate that falls to 0 within each run; --lr-scheduler is plateau, "
            "choose from: cosine, linear.",
        ),
        ({"options": {"batch_size": 0}}, "--batch-size is 0; it must be 1 or more."),
        (
            {"options": {"ratio": "one"}},
            "method 'skip': cannot read the schedule 'one'. Allowed forms: ladder, paper, K:M, K:MxEPOCHS,...,K:M, epochs:K:M, "
            "bp, approx:1|2|3|2-layer, adaptive[:LOW-HIGH], sites=...; batches=....",
        ),
        ({"settings": {"dni": {"predictor_lr": -1.0}}}, "method 'dni': --predictor-lr is -1.0; it must be above 0."),
    ],
)
def test_bad_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        comparison(**options)
    assert str(caught.value) == message
    assert comparison(regimes=("batches",), options={"lr_scheduler": "plateau"}).regimes == ("batches",)


def test_regimes_share_equal_runs(tmp_path: Path) -> None:
    folder = ComparisonFolder(tmp_path)
    wanted = comparison()
    at_batches = list(folder.runs(wanted, {"bp": 20, "skip": 20, "dni": 20}))
    at_seconds = list(folder.runs(wanted, {"bp": 20, "skip": 35, "dni": 18}))
    assert [run.name for run in at_batches[:4]] == [
        "bp seed 0, 20 batches",
        "skip seed 0, 20 batches",
        "dni seed 0, 20 batches",
        "bp seed 1, 20 batches",
    ]
    shared = {run.folder.path for run in at_batches} & {run.folder.path for run in at_seconds}
    assert {path.name for path in shared} == {"bp-20-seed0", "bp-20-seed1"}
    assert at_seconds[1].config == wanted.config(wanted.candidates[1], 0, 35)
    assert not any(run.finished for run in at_batches)


def test_lengths_are_scaled_to_equal_samples() -> None:
    own = {"skip": {"batch_size": 64}, "dni": {"batch_size": 24}}
    wanted = comparison(settings=own, curve=(0.5, 2.0))
    bp, skip, dni = (wanted.config(candidate, 0) for candidate in wanted.candidates)
    assert [(config.batch_size, config.batches) for config in (bp, skip, dni)] == [(32, 20), (64, 10), (24, 27)]
    assert (bp.warmup_batches, skip.warmup_batches, dni.warmup_batches) == (None, 2, 4)  # 3 of 32: 96 samples
    assert wanted.curve_lengths == [10, 40]
    given = wanted.config(wanted.candidates[1], 0, 7)
    assert (given.batches, given.warmup_batches) == (7, 2), "a length in batches of its own size"
    assert wanted.equal_batches(1, 4096) == 1

    small = comparison(settings={"bp": {"batch_size": 8}}, curve=(0.5,))
    assert (small.base_batch_size, small.curve_lengths) == (32, [40])


def test_the_batch_sizes_that_a_method_may_have() -> None:
    wanted = comparison(tuning=Tuning({"lr": (0.1, 0.2), "batch_size": (64, 16)}))
    assert [wanted.batch_sizes(candidate) for candidate in wanted.candidates] == [[16, 32, 64], [16, 64], [16, 64]]
    tuned = replace(wanted, picked={"skip": {"lr": 0.2, "batch_size": 64}})
    config = tuned.config(tuned.candidates[1], 0)
    assert (config.lr, config.batch_size, config.batches) == (0.2, 64, 10)
    assert tuned.config(tuned.candidates[1], 0, tuned={}).batch_size == 32
    assert tuned.batch_sizes(tuned.candidates[1]) == [16, 64]
    plain = comparison(settings={"skip": {"batch_size": 8}})
    assert [plain.batch_sizes(candidate) for candidate in plain.candidates] == [[32], [8], [32]]


def rejection(folder: ComparisonFolder, wanted: Comparison) -> str:
    with pytest.raises(AdagpError) as caught:
        folder.begin(wanted)
    return str(caught.value)


def test_a_folder_keeps_its_comparison(tmp_path: Path) -> None:
    folder = ComparisonFolder(tmp_path / "new" / "one")
    wanted = comparison()
    folder.begin(wanted)
    folder.begin(comparison())  # the same again
    before = (folder.path / "comparison.json").read_bytes()
    assert json.loads(before) == wanted.as_dict()
    assert rejection(folder, replace(wanted, rounds=3, batches=21)) == (
        f"'{folder.path}' holds a comparison with other options (batches, rounds differ). "
        "Repeat it with the same ones to continue, or give another --out."
    )
    assert (folder.path / "comparison.json").read_bytes() == before


def test_methods_can_be_added_but_not_changed(tmp_path: Path) -> None:
    folder = ComparisonFolder(tmp_path / "one")
    folder.begin(Comparison(read_candidates("bp,fast:dni@1:1"), 2, {}, {"fast": {"predictor_lr": 0.1}}, 20))
    more = read_candidates("bp,fast:dni@1:1,skip,slow:dni@1:1")
    settings = {"fast": {"predictor_lr": 0.1}, "slow": {"predictor_lr": 0.01}}
    grown = Comparison(more, 5, {}, settings, 20, aligned_seeds=2)
    folder.begin(grown)
    assert json.loads((folder.path / "comparison.json").read_bytes()) == grown.as_dict()
    ending = "Repeat it with the same ones to continue, or give another --out."
    for candidates in ("bp,fast:dni@2:1,skip,slow:dni@1:1", "bp,skip,slow:dni@1:1"):  # changed, dropped
        changed = replace(grown, candidates=read_candidates(candidates))
        assert rejection(folder, changed) == (
            f"'{folder.path}' holds a comparison with other options (methods differ). {ending}"
        )
    settings = {"fast": {"predictor_lr": 0.2}}
    assert rejection(folder, replace(grown, settings=settings)) == (
        f"'{folder.path}' holds a comparison with other options (settings differ). {ending}"
    )
    folder.timing.touch()
    folder.begin(replace(grown, seeds=6))
    assert rejection(folder, replace(grown, candidates=(*more, *read_candidates("bp,zero")[1:]))) == (
        f"'{folder.path}' holds a comparison with other options (methods, which were timed together, differ). {ending}"
    )


def test_a_folder_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    assert rejection(ComparisonFolder(tmp_path), comparison()) == (
        f"'{tmp_path}' holds files that are not a comparison (thesis.txt, ...); give another --out."
    )
    with pytest.raises(RunError, match="^cannot write the folder '.*': Not a directory.$"):
        ComparisonFolder(tmp_path / "thesis.txt" / "below").begin(comparison())

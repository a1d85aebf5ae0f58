import re
from pathlib import Path

import pytest

from adagp.errors import DataError, RunError
from adagp.reproduce.catalogue import choose
from adagp.reproduce.document import BEGIN, END, put_verdicts
from adagp.reproduce.parts import Place
from adagp.reproduce.study import Study, source_digest


def test_an_experiment_from_its_parts_to_the_summary(tmp_path: Path) -> None:
    study = Study(choose(["adagp-figure16"]), "quick", Place(tmp_path))
    told: list[str] = []
    assert study.run(1, lambda part: told.append(part.key))
    assert len(told) == 1
    assert study.left == []
    text = (tmp_path / "verdicts.md").read_text()
    assert text.startswith("Budget quick: offline: training on the embedded digits")
    assert "All verdicts: 1 outside, 1 holds." in text
    assert "### adagp-figure16" in text
    assert "holds: 10 of 10 convolutions; ImageNet, 90 epochs" in text
    head, *rows = (tmp_path / "verdicts.csv").read_text().splitlines()
    assert head == (
        "experiment,quantity,kind,claim,published,measured,modelled,computed,difference,verdict,reason,unit,tolerance,source"
    )
    assert len(rows) == 2
    before = (tmp_path / "adagp-figure16" / "figure.svg").read_bytes()
    assert Study(choose(["adagp-figure16"]), "quick", Place(tmp_path)).run(1, lambda part: told.append(part.key))
    assert len(told) == 1
    assert (tmp_path / "adagp-figure16" / "figure.svg").read_bytes() == before
    assert not study.is_stale
    marker = tmp_path / "reproduce.json"
    marker.write_text(marker.read_text().replace(source_digest(), "0123456789abcdef"))
    assert study.is_stale
    with pytest.raises(RunError, match=r"holds results of budget quick; give another --out for budget full\.$"):
        Study(choose(["adagp-figure16"]), "full", Place(tmp_path))


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(RunError, match=r"holds files that are not a reproduction; give another --out\.$"):
        Study(choose(["adagp-figure16"]), "quick", Place(tmp_path))


def test_missing_data_are_told_before_any_work(tmp_path: Path) -> None:
    out, data = tmp_path / "out", tmp_path / "data"
    with pytest.raises(DataError) as caught:
        Study(choose(["adagp-table1", "adagp-table4", "remap-table1"]), "standard", Place(out, data))
    expected = (
        f"at budget standard, adagp-table1, remap-table1 need real data: data set 'cifar10' is not in {data}. Put there "
        f"the file {data / 'cifar10.npz'} with the arrays x_train, y_train, x_test, y_test (and class_names if you like), or "
        f"the folder {data / 'cifar-10-batches-py'} in its usual layout. "
        "Give its folder with --data-dir, or leave these experiments out."
    )
    assert re.sub(r"\s+", " ", str(caught.value)) == expected
    assert not out.exists()


def test_verdicts_take_their_place_in_a_document() -> None:
    document = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    new = put_verdicts(document, "new\n")
    assert new == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    assert put_verdicts(new, "new\n") == new
    with pytest.raises(DataError, match=r"^the document does not have the comments '<!-- verdicts: begin, written by"):
        put_verdicts("no comments", "new")

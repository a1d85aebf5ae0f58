import importlib.util

import numpy as np
import pytest

from adagp.data.voc import Objects
from adagp.errors import OptionError
from adagp.program.tasks.detection.precision import Detections, average_precisions, require_pycocotools

UNIT = [0.0, 0.0, 0.5, 0.5]
AWAY = [0.6, 0.6, 0.9, 0.9]


def objects(*things: tuple[list[float], int, bool]) -> Objects:
    corners = np.array([box for box, _, _ in things], np.float32).reshape(-1, 4)
    labels = np.array([label for _, label, _ in things], np.int64)
    return Objects(corners, labels, np.array([difficult for *_, difficult in things], np.bool_))


def detections(*things: tuple[list[float], int, float]) -> Detections:
    corners = np.array([box for box, _, _ in things], np.float32).reshape(-1, 4)
    labels = np.array([label for _, label, _ in things], np.int64)
    return Detections(corners, labels, np.array([score for *_, score in things], np.float32))


def test_average_precision_by_hand() -> None:
    # Class 0 has three objects. Best first: right (recall 1/3, precision 1), wrong, right (recall 2/3, precision 2/3);
    # the third object is never found. Of the 101 recalls 0, 0.01, ..., 1 those up to 0.33 (34 of them) see precision 1,
    # those from 0.34 to 0.66 (33) see 2/3, the rest 0: AP = (34 + 33 * 2/3) / 101. Class 1 is found at once: AP = 1.
    truth = [objects((UNIT, 0, False), (AWAY, 1, False)), objects((UNIT, 0, False), (AWAY, 0, False))]
    found = [
        detections((UNIT, 0, 0.9), (AWAY, 1, 0.3), (AWAY, 0, 0.8)),
        detections((UNIT, 0, 0.7)),
    ]
    np.testing.assert_allclose(average_precisions(found, truth, 2), [(34 + 33 * 2 / 3) / 101, 1.0])


def test_an_overlap_of_half_is_needed_and_a_second_hit_is_wrong() -> None:
    truth = [objects((UNIT, 0, False)), objects((UNIT, 0, False))]
    enough, little = [0.0, 0.0, 0.5, 0.26], [0.0, 0.0, 0.5, 0.24]
    np.testing.assert_allclose(average_precisions([detections((enough, 0, 0.9)), detections()], truth, 1), [51 / 101])
    np.testing.assert_allclose(average_precisions([detections((little, 0, 0.9)), detections()], truth, 1), [0])
    twice = [detections((UNIT, 0, 0.9), (UNIT, 0, 0.8)), detections((UNIT, 0, 0.7))]
    np.testing.assert_allclose(average_precisions(twice, truth, 1), [(51 + 50 * 2 / 3) / 101])


def test_difficult_objects_count_for_nothing() -> None:
    truth = [objects((UNIT, 0, True), (AWAY, 0, False), (UNIT, 1, True))]
    np.testing.assert_allclose(
        average_precisions([detections((UNIT, 0, 0.9), (AWAY, 0, 0.8))], truth, 2), [1.0, np.nan]
    )
    np.testing.assert_allclose(average_precisions([detections((AWAY, 0, 0.8))], truth, 2), [1.0, np.nan])


def test_without_detections_precision_is_zero() -> None:
    truth = [objects((UNIT, 0, False), (UNIT, 2, True)), objects()]
    np.testing.assert_allclose(average_precisions([detections(), detections()], truth, 3), [0.0, np.nan, np.nan])


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    average_precisions([detections((UNIT, 0, 0.9))], [objects((UNIT, 0, False))], 1)
    assert capsys.readouterr().out == ""


def test_a_missing_library_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError) as caught:
        require_pycocotools()
    assert str(caught.value) == ("pycocotools is needed for mean average precision: pip install 'adagp[detect]'.")

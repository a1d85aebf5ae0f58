import numpy as np
import torch

from adagp.program.tasks.detection.detect import detect


def test_the_best_answer_comes_first_and_its_doubles_are_dropped() -> None:
    outputs = [torch.full((2, 3, size, size, 7), -9.0) for size in (4, 2, 1)]
    for output in outputs:
        output[..., :4] = 0
    outputs[2][0, 1, 0, 0, 4:] = torch.tensor([5.0, -9.0, 4.0])  # anchor 156x198 of 416, class 1
    outputs[2][0, 0, 0, 0, 2:] = torch.tensor([np.log(156 / 116), np.log(198 / 90), 4.0, 3.0, 3.0])  # the same box
    best, nothing = detect(outputs)
    half = np.array([156 / 832, 198 / 832])
    np.testing.assert_allclose(best.corners[0], [*(0.5 - half), *(0.5 + half)], rtol=1e-5)
    assert best.labels[:2].tolist() == [1, 0]  # class 0 has no rival there; the double of class 1 is gone
    expected = torch.tensor([5.0, 4.0]).sigmoid().prod(), torch.tensor([4.0, 3.0]).sigmoid().prod()
    np.testing.assert_allclose(best.scores[:2], expected, rtol=1e-5)
    assert (best.scores[2:] < 0.01).all()
    assert len(best.scores) <= 100
    assert (np.diff(best.scores) <= 0).all()
    assert (nothing.scores < 1e-6).all()
    assert best.corners.min() >= 0
    assert best.corners.max() <= 1

"""Any result of the right shape allows an experiment to conclude: results may come from another machine or program."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.figures.style import style
from adagp.program.reproduce.experiment import EXPERIMENTS, Part, Workspace
from adagp.program.reproduce.training import KEPT, train_run
from adagp.program.reproduce.verdict import markdown
from adagp.program.run.documents import Both, Either, Fields, ListOf, Plain, Shape, find_fault
from adagp.program.run.folder import flat_csv, to_json

BY_EPOCH = ("fast-training", "fast-time-to-accuracy")
"""These need the figures of runs by epoch, which results of earlier versions lack."""
COMPARISONS = ("feedback-platforms", "worth-batch-size", "long-run")
"""Their parts are whole comparisons, of whose report only the outline is checked."""
NUMBERS = (2, 0, 1, 2**63, 1e-18, -5.5, 0.25, None, True, "text")


def values(shape: Shape, numbers: Iterator[Any]) -> Any:
    """Return a value of a shape, made of the accepted ones among `numbers`."""
    if isinstance(shape, Plain):
        return next(value for value in numbers if shape.accepted(value))
    if isinstance(shape, Both):
        found = (values(shape.shape, numbers) for _ in range(100))
        return next(value for value in found if shape.also.accepted(value))
    if isinstance(shape, Either):
        return values(shape.first if next(numbers) else shape.second, numbers)
    if isinstance(shape, ListOf):
        return [values(shape.item, numbers) for _ in range(2)]
    if isinstance(shape, Fields):
        return {name: values(shape.known[name], numbers) for name in shape.required}
    return {name: values(shape.value, numbers) for name in ("bp", "gp", "warmup")}


class Forged(Workspace):
    """A workspace where every part has a result of its shape, and nothing more is known of it."""

    def finished(self, part: Part) -> bool:
        """Return that it is."""
        return True

    def result(self, part: Part) -> dict[str, Any]:
        """Return a result."""
        first = sum(part.key.encode()) % len(NUMBERS)
        found: dict[str, Any] = values(part.shape, cycle(NUMBERS[first:] + NUMBERS[:first]))
        if part.work is train_run:
            found |= dict(zip(KEPT[:3], (0.5, 0.75, None), strict=True))
        assert find_fault(found, part.shape) is None
        return found


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in COMPARISONS])
@pytest.mark.medium
def test_any_result_of_the_right_shape_will_do(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    assert all(part.shape is not Part.shape for part in experiment.parts("quick")), (
        "each part declares the shape of its result"
    )
    if name in BY_EPOCH:
        message = r"^'.*\.json' has no figures by epoch\. Delete the file to compute it again\.$"
        with pytest.raises(RunError, match=message):
            experiment.conclude("quick", Forged(tmp_path))
        return
    found = experiment.conclude("quick", Forged(tmp_path))
    assert markdown(found.verdicts)
    assert to_json([one.row() for one in found.verdicts])
    assert flat_csv(found.rows)
    with style():
        found.draw()

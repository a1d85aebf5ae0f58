import pytest

from adagp.core.plan import Phase
from adagp.papers.adagp.timeline_experiments import overlapped_steps, steps


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("layers", [1, 4, 7])
def test_the_formulas_of_the_timelines(layers: int, alpha: float) -> None:
    assert steps("baseline", Phase.BP, layers, alpha) == 3 * layers
    assert steps("efficient", Phase.BP, layers, alpha) == pytest.approx(3 * layers * (1 + alpha))
    assert steps("efficient", Phase.GP, layers, alpha) == pytest.approx(layers * (1 + alpha))
    # Ours also has the last layer's prediction, which no further layer overlaps with.
    assert steps("max", Phase.GP, layers, alpha) == pytest.approx(overlapped_steps(Phase.GP, layers, alpha) + alpha)
    assert steps("max", Phase.BP, layers, alpha) == pytest.approx(overlapped_steps(Phase.BP, layers, alpha) + alpha)

import torch

from adagp.core.plan import Step
from adagp.sources.support.randomness import step_generator


def draw(seed: int, epoch: int, batch: int) -> list[float]:
    numbers: list[float] = torch.randn(4, generator=step_generator(seed, Step(epoch, batch))).tolist()
    return numbers


def test_numbers_are_a_function_of_seed_and_step() -> None:
    assert draw(3, 1, 2) == draw(3, 1, 2)
    others = [draw(4, 1, 2), draw(3, 2, 2), draw(3, 1, 3), draw(3, 2, 1)]
    assert all(draw(3, 1, 2) != other for other in others)


def test_the_global_random_state_is_not_touched() -> None:
    before = torch.get_rng_state()
    draw(0, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)

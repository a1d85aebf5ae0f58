from adagp.papers.feedback.turns import Turns


def test_the_first_then_one_of_so_many() -> None:
    turns = Turns(3)
    assert [(turns.due, turns.take()) for _ in range(8)] == [
        (True, 1),
        (False, 0),
        (False, 0),
        (True, 3),
        (False, 0),
        (False, 0),
        (True, 3),
        (False, 0),
    ]
    assert turns.waiting == 1


def test_all() -> None:
    turns = Turns(1)
    assert [turns.take() for _ in range(3)] == [1, 1, 1]

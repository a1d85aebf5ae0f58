"""Doing something in one of so many batches."""


class Turns:
    """Counts batches. The first is due, then one of `every`; that one stands for itself and those since the last."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.waiting: int | None = None

    @property
    def due(self) -> bool:
        """Whether the running batch is one of those."""
        return self.waiting is None or self.waiting + 1 >= self.every

    def take(self) -> int:
        """Return for how many batches the running one stands, 0 if it is not due, and go on to the next one."""
        stands_for = (self.waiting or 0) + 1
        due, self.waiting = self.due, 0 if self.due else stands_for
        return stands_for if due else 0

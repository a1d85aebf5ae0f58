"""A running least-squares fit: many outputs from a few features, with old batches slowly forgotten."""

from typing import Any

import torch
from torch import Tensor


class RunningRegression:
    """Keeps E[f f'] and E[f y'] of features f and outputs y, and predicts y = f E[f f']^-1 E[f y'].

    What `add` is given counts from the next `commit` on; each commit multiplies the past by `decay`. The matrix that is
    inverted has a ridge: `ridge` times its mean diagonal. The solution is never formed, as a system of the features' size
    is solved instead.
    """

    def __init__(self, features: int, outputs: int, decay: float, ridge: float, device: torch.device) -> None:
        self.decay = decay
        self.ridge = ridge
        self.second = torch.zeros(features, features, dtype=torch.float32, device=device)
        self.cross = torch.zeros(features, outputs, dtype=torch.float32, device=device)
        self._new: tuple[Tensor, Tensor] | None = None

    @property
    def outputs(self) -> int:
        """Numbers that are predicted for a row."""
        return self.cross.shape[1]

    @torch.no_grad()
    def add(self, features: Tensor, outputs: Tensor, scale: float = 1.0) -> None:
        """Take note of rows of `features` and of `outputs`, the latter times `scale`."""
        features, outputs = features.float(), outputs.float()
        scaled = features.T * scale
        if self._new is None:
            self._new = features.T @ features, scaled @ outputs
        else:
            self._new[0].addmm_(features.T, features)
            self._new[1].addmm_(scaled, outputs)

    @torch.no_grad()
    def commit(self) -> None:
        """Learn from what was added since the last commit."""
        if self._new is not None:
            self.second.mul_(self.decay).add_(self._new[0])
            self.cross.mul_(self.decay).add_(self._new[1])
            self._new = None

    def drop(self) -> None:
        """Forget what was added since the last commit."""
        self._new = None

    def predict(self, features: Tensor) -> Tensor:
        """Return the expected outputs of rows of `features`; 0 before the first commit."""
        return self.mixture(features) @ self.cross

    @torch.no_grad()
    def mixture(self, features: Tensor) -> Tensor:
        """Return the weights `(rows, features)` with which each row's prediction is mixed from the rows of `cross`."""
        second = self.second.double()  # features may depend on each other, so the inverse is ill-conditioned
        mean = second.diagonal().mean()
        inverse = torch.where(mean > 0, 1 / mean, 0)
        steadied = second * inverse + self.ridge * torch.eye(len(second), dtype=second.dtype, device=second.device)
        solved: Tensor = torch.linalg.solve(steadied, features.double().T).T * inverse
        return solved.to(self.cross.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the two moments."""
        return {"second": self.second.clone(), "cross": self.cross.clone()}

    @classmethod
    def restored(cls, state: dict[str, Any], decay: float, ridge: float, device: torch.device) -> "RunningRegression":
        """Return the regression whose `state_dict` this was."""
        features, outputs = state["cross"].shape
        one = cls(features, outputs, decay, ridge, device)
        one.second.copy_(state["second"])
        one.cross.copy_(state["cross"])
        return one

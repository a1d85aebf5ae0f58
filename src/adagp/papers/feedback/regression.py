"""A running least-squares fit: many outputs from a few features, with old batches slowly forgotten.

The mean of the features over a forward call, and each row's difference from it, are features of their own. Differences add up
to nothing, so the two kinds do not mix: there are two systems of equations, and a call's mean counts as one row.
"""

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from adagp.papers.feedback.products import weighted_sums


class FeatureRows:
    """The features `(rows, K)` of one forward call. What all fits on the same rows share is computed once.

    Where the call has a part of a batch only, and others have the rest, differences are those from another `mean` `(1, K)`; or
    `whole` are the rows of all parts: the mean is theirs, and so are the second moments. Then what is learned from a part, or
    predicted for it, adds up to the whole.
    """

    def __init__(self, rows: Tensor, mean: Tensor | None = None, whole: Tensor | None = None) -> None:
        exact = rows.double()  # differences that do not add up to nothing would mix with the mean
        every = exact if whole is None else whole.double()
        self.exact_mean = every.mean(0, keepdim=True) if mean is None else mean
        self.mean, self.differences = self.exact_mean.float(), (exact - self.exact_mean).float()
        self._every = self.differences if whole is None else (every - self.exact_mean).float()
        self._mixtures: dict[Moments, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.differences)

    @property
    def share(self) -> float:
        """Which part of the batch's rows these are."""
        return len(self) / len(self._every)

    def around(self, mean: Tensor) -> "FeatureRows":
        """Return the same rows with their differences from another mean."""
        return FeatureRows(self.differences.double() + self.exact_mean, mean)

    def second_around(self, mean: Tensor) -> Tensor:
        """Return the second moments `(K, K)` of the differences from another mean, added up over the rows."""
        moved = self.exact_mean - mean
        return (self.second[0].double() + len(self) * (moved.T @ moved)).to(self.second.dtype)

    @cached_property
    def weights(self) -> Tensor:
        """With these `(K + 1, rows)`, rows of outputs are added up: the differences, and ones."""
        return torch.cat([self.differences.T, self.differences.new_ones(1, len(self))])

    @cached_property
    def second(self) -> Tensor:
        """The second moments `(2, K, K)` of differences and of the mean, added up over the rows of the whole batch."""
        differences = self._every.T @ self._every
        return torch.stack([differences, len(self._every) * (self.mean.T @ self.mean)])

    def mixture(self, moments: "Moments") -> tuple[Tensor, Tensor]:
        """Return with which weights predictions are mixed: `(K + 1, rows)`, and `(1, K)` for what all have in common.

        The last of the K + 1 is 1 for every row: it is that of the common part.
        """
        if moments not in self._mixtures:
            weights = moments.solve(self.differences)
            rows = torch.cat([weights.T, weights.new_ones(1, len(self))])
            self._mixtures[moments] = rows, moments.solve_mean(self.mean)
        return self._mixtures[moments]


class JointRows:
    """The features of one forward call in all processes: their `mean`, how many rows, and second moments of differences."""

    def __init__(self, mean: Tensor, count: float, differences: Tensor) -> None:
        self.mean = mean.float()
        self.second = torch.stack([differences, (count * (mean.T @ mean)).to(differences.dtype)])


class Moments:
    """E[f f'] of the features so far, `(2, K, K)`; never changed, so that fits that saw the same batches share one.

    The matrix that is inverted has a ridge: `ridge` times its mean diagonal.
    """

    def __init__(self, second: Tensor, ridge: float) -> None:
        self.second = second
        self.ridge = ridge
        self._next: tuple[float, tuple[FeatureRows | JointRows, ...], weakref.ref[Moments]] | None = None

    @classmethod
    def none(cls, features: int, ridge: float, device: torch.device) -> "Moments":
        """Return those before the first batch."""
        return cls(torch.zeros(2, features, features, dtype=torch.float32, device=device), ridge)

    @torch.no_grad()
    def after(self, decay: float, batch: Sequence[FeatureRows | JointRows]) -> "Moments":
        """Return the moments after one more batch, in which the past counts `decay`; the same ones to all who ask."""
        if self._next is not None and self._next[:2] == (decay, tuple(batch)) and (known := self._next[2]()):
            return known
        new = sum((rows.second for rows in batch[1:]), batch[0].second)
        found = Moments(torch.add(new, self.second, alpha=decay), self.ridge)
        self._next = decay, tuple(batch), weakref.ref(found)  # a fit that lags behind must not keep all that follows
        return found

    @cached_property
    def inverses(self) -> Tensor:
        """The inverses `(2, K, K)` of both matrices, in double precision; 0 before the first batch."""
        second = self.second.double()  # features may depend on each other, so the inverse is ill-conditioned
        mean = second.diagonal(dim1=1, dim2=2).mean()
        inverse = torch.where(mean > 0, 1 / mean, 0)
        steadied = second * inverse + self.ridge * torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
        found: Tensor = torch.linalg.inv(steadied) * inverse
        return found

    @cached_property
    def inverse(self) -> Tensor:
        """The inverse `(K, K)` for differences, in the precision of the moments."""
        return self.inverses[0].to(self.second.dtype)

    def solve(self, differences: Tensor) -> Tensor:
        """Return rows of differences times their inverse; 0 before the first batch."""
        return (differences.double() @ self.inverses[0]).to(self.second.dtype)

    def solve_mean(self, mean: Tensor) -> Tensor:
        """Return a mean of features `(1, K)` times its inverse; 0 before the first batch."""
        return (mean.double() @ self.inverses[1]).to(self.second.dtype)


class CallSums:
    """Rows of numbers added up over the forward calls of one batch: weighted with the features' differences, and plainly."""

    def __init__(self) -> None:
        self.rows: Sequence[FeatureRows | JointRows] = []
        self.plain: list[Tensor] = []
        self._first: Tensor | None = None

    @property
    def weighted(self) -> Tensor | None:
        """The sums of all calls `(K, numbers)`, weighted with the differences; None if there was no call."""
        return None if self._first is None else self._first[:-1]

    @property
    def added(self) -> list[FeatureRows]:
        """The features of each call, before they were replaced by those of all processes."""
        return [rows for rows in self.rows if isinstance(rows, FeatureRows)]

    @torch.no_grad()
    def add(self, rows: FeatureRows, numbers: Tensor, scale: float = 1.0) -> None:
        """Take note of a call: its features, and as many rows of `numbers`, which count `scale` times."""
        weights = rows.weights if scale == 1 else rows.weights * scale
        products = weighted_sums(weights, numbers.to(weights.dtype))  # one pass over the numbers
        self.rows = [*self.rows, rows]
        self.plain.append(products[-1:])
        if self._first is None:
            self._first = products
        else:
            self._first[:-1] += products[:-1]

    @torch.no_grad()
    def move(self, place: int, mean: Tensor) -> None:
        """Let the differences of the call at `place` be larger by `mean` `(1, K)`: they were from another mean."""
        assert self.weighted is not None, "something was added"
        self.weighted.addmm_(mean.to(self.weighted.dtype).T, self.plain[place])

    def total(self) -> Tensor:
        """Return the sums of all calls `(K + 1, numbers)`, the plain one last. After that nothing more may be added."""
        assert self._first is not None, "something was added"
        for one in self.plain[1:]:
            self._first[-1:] += one
        return self._first

    def waiting(self) -> list[Tensor]:
        """Return the sums, to be added up over processes in place."""
        weighted = self.weighted
        return [*([] if weighted is None else [weighted]), *self.plain]


class RunningRegression:
    """Predicts outputs y = f E[f f']^-1 E[f y'] from features f.

    What `add` is given counts from the next `commit` on, which multiplies the past by a factor. The solution is never formed,
    as a system of the features' size is solved instead: a prediction is a mixture of `patterns`, and of `mean_patterns`.
    """

    def __init__(self, moments: Moments, outputs: int) -> None:
        self.moments = moments
        features = moments.second.shape[1]
        # What all rows have in common goes below the patterns, for the product with all of them: now, and for recent batches.
        self._table = moments.second.new_zeros(features + 2, outputs)
        self.patterns = self._table[:features]
        self.mean_patterns = torch.zeros_like(self.patterns)
        self.sums = CallSums()

    @property
    def features(self) -> int:
        """Numbers of the error that predictions are made from."""
        return self.patterns.shape[0]

    @property
    def outputs(self) -> int:
        """Numbers that are predicted for a row."""
        return self.patterns.shape[1]

    def add(self, rows: FeatureRows, outputs: Tensor, scale: float = 1.0) -> None:
        """Take note of rows of features and of `outputs`, the latter times `scale`."""
        self.sums.add(rows, outputs, scale)

    @torch.no_grad()
    def commit(self, decay: float) -> None:
        """Learn from what was added since the last commit; all that was before counts `decay`."""
        sums = self.sums
        if sums.weighted is None:
            return
        self.moments = self.moments.after(decay, sums.rows)
        # As the moments are added up, in the same operations: what is rounded off in both alike cancels in the solution.
        means = torch.cat([rows.mean for rows in sums.rows]).T @ torch.cat(sums.plain)
        for new, patterns in ((sums.weighted, self.patterns), (means, self.mean_patterns)):
            torch.add(new, patterns, alpha=decay, out=patterns)
        self.drop()

    def drop(self) -> None:
        """Forget what was added since the last commit."""
        self.sums = CallSums()

    def mixture(self, rows: FeatureRows, recent: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights `(K + 1, rows)` and the patterns `(K + 1, outputs)` of which each row's prediction is mixed.

        `recent` `(1, K)` is another mean of features; there is a pattern more then, of what rows around it have in common. The
        patterns are those that the next call changes.
        """
        weights, common = rows.mixture(self.moments)
        count = len(weights)
        torch.mm(common, self.mean_patterns, out=self._table[count - 1 : count])
        if recent is None:
            return weights, self._table[:count]
        usual = self.moments.solve_mean(recent)
        torch.mm(usual, self.mean_patterns, out=self._table[count : count + 1])
        return weights, self._table

    def predict(self, rows: FeatureRows) -> Tensor:
        """Return the expected outputs of rows of features; 0 before the first commit."""
        weights, patterns = self.mixture(rows)
        return weights.T @ patterns

    def state_dict(self) -> dict[str, Any]:
        """Return the moments."""
        tensors = {"second": self.moments.second, "patterns": self.patterns, "mean_patterns": self.mean_patterns}
        return {name: tensor.clone() for name, tensor in tensors.items()}

    @classmethod
    def restored(cls, state: dict[str, Any], moments: Moments) -> "RunningRegression":
        """Return the regression whose `state_dict` this was."""
        one = cls(moments, state["patterns"].shape[1])
        one.patterns.copy_(state["patterns"])
        one.mean_patterns.copy_(state["mean_patterns"])
        return one


def modern(state: dict[str, Any]) -> dict[str, Any]:
    """Return a regression's state as it is saved now; older run folders have one system for both kinds of features."""
    if "cross" not in state:
        return state
    half = len(state["cross"]) // 2
    second = torch.stack([state["second"][:half, :half], state["second"][half:, half:]])
    rest = {name: value for name, value in state.items() if name != "cross"}
    return rest | {"second": second, "patterns": state["cross"][:half], "mean_patterns": state["cross"][half:]}

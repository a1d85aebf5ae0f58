"""The mathematics of feedback, top to bottom: regression, bias correction, prediction of a weight gradient.

A forward call of a site has rows n = 1..N (samples of a convolution, samples or positions of a linear layer). Row n has an
input x_n, a gradient g_n at the site's output, and K features e_n of the loss's gradient at the model's output; K is small.

**Regression.** Split the features into the call's mean and deviations from it, e_n = m + d_n, and fit both by least squares:

    g_n  ~  d_n A^-1 P  +  m B^-1 Q

    A = sum d_n' d_n,   P = sum d_n' g_n        (`Moments.second[0]`, `RunningRegression.patterns`)
    B = sum m' m,       Q = sum m' g_n          (`Moments.second[1]`, `RunningRegression.mean_patterns`)

The sums run over the rows of all BP batches; each batch multiplies those of the past by `weight_of_past`. Deviations add up to
zero over a call, so d and m do not mix: there are two systems of K equations in place of one of 2K. A ridge makes A and B
invertible.

**Prediction.** A weight gradient G(x, g) is bilinear, and predicted output gradients are mixtures of the K rows P_k of P (the
patterns) and of one common row. So mix the inputs instead, and take the weight gradient of K + 1 mixed samples, not of N:

    sum_n G(x_n, d_n A^-1 P + m B^-1 Q)  =  sum_k G(sum_n (A^-1 d_n')_k x_n, P_k)  +  G(sum_n x_n, m B^-1 Q)

**Bias correction.** A linear fit errs in the same direction batch after batch, which adds up where noise does not. So keep the
running mean T of the true gradients in BP batches, and predict only how a batch differs from those batches:

    corrected  =  T + predicted(this batch) - predicted(recent BP batches)

The last term is never computed by itself. It is a G of the running means of `sum d_n' x_n`, `sum x_n` and `m`, with the same
patterns, so it is subtracted from the mixed inputs before the one weight gradient is taken (`BiasCorrection.subtract`).
"""

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from adagp.errors import ModelError
from adagp.layers.sites import Site
from adagp.papers.feedback.pooling import blocks_for, pooled, pooled_shape, repeated
from adagp.sources.local import padded, weight_gradient

# Features of a call.


class FeatureRows:
    """The features `(rows, K)` of one forward call. Sites with the same rows share one object, which computes everything once.

    A call with only a part of the batch is given the batch's `mean` `(1, K)` or all rows of the batch, `whole`. Deviations are
    then taken from the batch's mean, so that the results of the parts add up. With `whole`, `count` and `second` are those of
    the whole batch.
    """

    def __init__(self, rows: Tensor, mean: Tensor | None = None, whole: Tensor | None = None) -> None:
        self._rows = rows
        exact = rows.double()  # in single precision the deviations would not add up to 0, and would mix with the mean
        all_rows = exact if whole is None else whole.double()
        self.exact_mean = all_rows.mean(0, keepdim=True) if mean is None else mean
        self.mean, self.deviations = self.exact_mean.float(), (exact - self.exact_mean).float()
        self._all_deviations = self.deviations if whole is None else (all_rows - self.exact_mean).float()
        self._mixtures: dict[Moments, tuple[Tensor, Tensor]] = {}
        self._around: dict[FeatureRows, FeatureRows] = {}

    @classmethod
    def joined(cls, parts: Sequence["FeatureRows"]) -> "FeatureRows":
        """Return the rows of several micro-batches as those of one batch."""
        return parts[0] if len(parts) == 1 else cls(torch.cat([part._rows for part in parts]))

    def __len__(self) -> int:
        return len(self.deviations)

    @property
    def count(self) -> float:
        """The number of rows of the whole batch."""
        return len(self._all_deviations)

    @property
    def fraction(self) -> float:
        """The fraction of the batch's rows that are in this call."""
        return len(self) / self.count

    def around(self, mean: Tensor) -> "FeatureRows":
        """Return the same rows with their deviations from another mean."""
        return FeatureRows(self._rows, mean)

    def around_mean_of(self, first: "FeatureRows") -> "FeatureRows":
        """Return the same rows with their deviations from the mean of others; the same object to all callers."""
        if first is self:
            return self
        if first not in self._around:
            self._around[first] = self.around(first.exact_mean)
        return self._around[first]

    def second_around(self, mean: Tensor) -> Tensor:
        """Return the second moments `(K, K)` of the deviations from another mean, summed over the rows."""
        shift = self.exact_mean - mean
        return (self.second[0].double() + len(self) * (shift.T @ shift)).to(self.second.dtype)

    @cached_property
    def weights(self) -> Tensor:
        """The deviations, transposed, and a row of ones `(K + 1, rows)`: the weights of `CrossSums`."""
        return torch.cat([self.deviations.T, self.deviations.new_ones(1, len(self))])

    @cached_property
    def second(self) -> Tensor:
        """This call's A and B `(2, K, K)`, summed over the rows of the whole batch."""
        deviations = self._all_deviations.T @ self._all_deviations
        return torch.stack([deviations, len(self._all_deviations) * (self.mean.T @ self.mean)])

    def mixture(self, moments: "Moments") -> tuple[Tensor, Tensor]:
        """Return the weights of the patterns in each row's prediction `(K + 1, rows)`, and m B^-1 `(1, K)`.

        The last of the K + 1 weights is 1: that of the common row m B^-1 Q.
        """
        if moments not in self._mixtures:
            weights = moments.solve(self.deviations)
            rows = torch.cat([weights.T, weights.new_ones(1, len(self))])
            self._mixtures[moments] = rows, moments.solve_mean(self.mean)
        return self._mixtures[moments]


class GlobalRows:
    """The features of one forward call over all processes: mean `(1, K)`, row count, second moments of the deviations."""

    def __init__(self, mean: Tensor, count: float, deviations: Tensor) -> None:
        self.count = count
        self.mean = mean.float()
        self.second = torch.stack([deviations, (count * (mean.T @ mean)).to(deviations.dtype)])


# Regression.

ROWS_PER_FEATURE = 13
"""Rows per feature of a batch that multiplies the past by `decay` once: about those of 128 samples and ten classes."""


def weight_of_past(decay: float, rows: float, features: int) -> float:
    """Return the factor that a batch applies to the sums of earlier batches: `decay`, or a power of it.

    A batch of few rows needs the rows of earlier batches for a good fit. A large batch does not, and it moves the weights
    further, so that old sums would make the fit lag behind. It therefore forgets as much as several small batches would that
    together have as many rows.
    """
    weight: float = decay ** max(1.0, rows / (ROWS_PER_FEATURE * features))
    return weight


class Moments:
    """A and B `(2, K, K)` after some batches. Immutable, so that fits on the same batches share one object and its inverse.

    The ridge is `ridge` times the mean of both diagonals.
    """

    def __init__(self, second: Tensor, ridge: float) -> None:
        self.second = second
        self.ridge = ridge
        self._next: tuple[float, tuple[FeatureRows | GlobalRows, ...], weakref.ref[Moments]] | None = None

    @classmethod
    def zero(cls, features: int, ridge: float, device: torch.device) -> "Moments":
        """Return the moments before the first batch."""
        return cls(torch.zeros(2, features, features, dtype=torch.float32, device=device), ridge)

    @torch.no_grad()
    def after(self, decay: float, batch: Sequence[FeatureRows | GlobalRows]) -> "Moments":
        """Return `decay` times these moments plus those of `batch`; calls with equal arguments return the same object."""
        if self._next is not None and self._next[:2] == (decay, tuple(batch)) and (known := self._next[2]()):
            return known
        new = sum((rows.second for rows in batch[1:]), batch[0].second)
        moments = Moments(torch.add(new, self.second, alpha=decay), self.ridge)
        # Weak, or a fit that lags behind would keep all later moments alive.
        self._next = decay, tuple(batch), weakref.ref(moments)
        return moments

    @cached_property
    def inverses(self) -> Tensor:
        """A^-1 and B^-1 `(2, K, K)` in double precision; 0 before the first batch."""
        # Features may be linearly dependent (the errors of a softmax add up to 0), so the matrices are ill-conditioned.
        second = self.second.double()
        mean = second.diagonal(dim1=1, dim2=2).mean()
        scale = torch.where(mean > 0, 1 / mean, 0)
        ridged = second * scale + self.ridge * torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
        inverses: Tensor = torch.linalg.inv(ridged) * scale
        return inverses

    @cached_property
    def inverse(self) -> Tensor:
        """A^-1 `(K, K)` in the precision of the moments."""
        return self.inverses[0].to(self.second.dtype)

    def solve(self, deviations: Tensor) -> Tensor:
        """Return d A^-1 for rows of deviations; 0 before the first batch."""
        return (deviations.double() @ self.inverses[0]).to(self.second.dtype)

    def solve_mean(self, mean: Tensor) -> Tensor:
        """Return m B^-1 for a mean of features `(1, K)`; 0 before the first batch."""
        return (mean.double() @ self.inverses[1]).to(self.second.dtype)


class CrossSums:
    """sum d_n' y_n over all calls of one batch, and sum y_n of each call. y is the output gradient (for P and Q) or the input.

    `rows` has the features of each call, `row_sums` its sum of y `(1, numbers)`. A call that every micro-batch repeats counts
    as one call. Its deviations are taken from the mean of the first micro-batch, until `join_micro_batches` corrects them to
    the mean of the batch.
    """

    def __init__(self) -> None:
        self.rows: list[FeatureRows | GlobalRows] = []
        self.row_sums: list[Tensor] = []
        self._numbers: dict[Hashable, int] = {}
        self._parts: list[list[FeatureRows]] = []
        # (K + 1, numbers): all calls' sum d' y, and below it the first call's sum y
        self._products: Tensor | None = None

    @property
    def weighted(self) -> Tensor | None:
        """sum d_n' y_n over all calls `(K, numbers)`; None if there was no call."""
        return None if self._products is None else self._products[:-1]

    @property
    def local_rows(self) -> list[FeatureRows]:
        """The features of each call in this process, before those of all processes replace them."""
        return [rows for rows in self.rows if isinstance(rows, FeatureRows)]

    @torch.no_grad()
    def add(self, rows: FeatureRows, numbers: Tensor, scale: float = 1.0, call: Hashable = None) -> None:
        """Add a call: its features, and for each row the `numbers` y, multiplied by `scale`.

        `call` identifies the call in all micro-batches of the batch; None: a new call.
        """
        number = self._numbers.setdefault(len(self._parts) if call is None else call, len(self._parts))
        first = number == len(self._parts)
        if first:
            self._parts.append([])
        self._parts[number].append(rows)
        weights = rows.around_mean_of(self._parts[number][0]).weights
        weights = weights if scale == 1 else weights * scale
        products = weighted_sums(weights, numbers.to(weights.dtype))  # both sums in one pass over the numbers
        if first:
            self.rows.append(rows)
            self.row_sums.append(products[-1:])
        else:
            self.row_sums[number] += products[-1:]
        if self._products is None:
            self._products = products
        else:
            self._products[:-1] += products[:-1]

    def join_micro_batches(self, join: Callable[[Sequence[FeatureRows]], FeatureRows]) -> None:
        """Take the deviations of each call from the mean of all its micro-batches, whose features `join` returns."""
        for number, parts in enumerate(self._parts):
            if len(parts) > 1:
                whole = join(parts)
                self.shift(number, parts[0].exact_mean - whole.exact_mean)
                self.rows[number] = whole
                parts[:] = [whole]

    @torch.no_grad()
    def shift(self, call: int, offset: Tensor) -> None:
        """Add `offset` `(1, K)` to the deviations of a call, given by its number: they are then from another mean."""
        assert self.weighted is not None, "something was added"
        self.weighted.addmm_(offset.to(self.weighted.dtype).T, self.row_sums[call])

    def divide(self, count: int) -> None:
        """Divide all sums by `count`."""
        for tensor in self.tensors():
            tensor /= count

    def total(self) -> Tensor:
        """Return the sums of all calls `(K + 1, numbers)`, sum y last. Nothing may be added after this."""
        assert self._products is not None, "something was added"
        for row_sum in self.row_sums[1:]:
            self._products[-1:] += row_sum
        return self._products

    def tensors(self) -> list[Tensor]:
        """Return the sums themselves, to be all-reduced in place."""
        weighted = self.weighted
        return [*([] if weighted is None else [weighted]), *self.row_sums]


class RunningRegression:
    """Predicts outputs from features; `add` the rows of a batch, then `commit` them.

    The coefficients A^-1 P (K x outputs) are never formed: it is cheaper to solve for the K weights of each row's prediction.
    """

    def __init__(self, moments: Moments, outputs: int) -> None:
        self.moments = moments
        features = moments.second.shape[1]
        # P, and two rows below it for the common parts m B^-1 Q of this batch and of recent ones: one product takes all.
        self._table = moments.second.new_zeros(features + 2, outputs)
        self.patterns = self._table[:features]
        self.mean_patterns = torch.zeros_like(self.patterns)
        self.sums = CrossSums()

    @property
    def features(self) -> int:
        """K."""
        return self.patterns.shape[0]

    @property
    def outputs(self) -> int:
        """Predicted numbers per row."""
        return self.patterns.shape[1]

    def add(self, rows: FeatureRows, outputs: Tensor, scale: float = 1.0, call: Hashable = None) -> None:
        """Add rows of features and of `outputs`, the latter multiplied by `scale`, to the next `commit`."""
        self.sums.add(rows, outputs, scale, call)

    @torch.no_grad()
    def commit(self, decay: float, batches: int = 1) -> None:
        """Update A, B, P and Q with what was added since the last commit.

        `batches` is the number of batches since then. Only the last of them was added; it stands for all, so the past is
        multiplied by `weight_of_past` to the power of `batches`.
        """
        sums = self.sums
        if sums.weighted is None:
            return
        decay = weight_of_past(decay, sum(rows.count for rows in sums.rows), self.features) ** batches
        self.moments = self.moments.after(decay, sums.rows)
        # The same operations as for the moments: equal rounding errors cancel in the solution.
        mean_products = torch.cat([rows.mean for rows in sums.rows]).T @ torch.cat(sums.row_sums)
        for new, patterns in ((sums.weighted, self.patterns), (mean_products, self.mean_patterns)):
            torch.add(new, patterns, alpha=decay, out=patterns)
        self.drop()

    def drop(self) -> None:
        """Forget what was added since the last commit."""
        self.sums = CrossSums()

    def mixture(self, rows: FeatureRows, recent_mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights `(K + 1, rows)` and the patterns `(K + 1, outputs)` of each row's prediction.

        With the mean features of recent batches `(1, K)` there is one more pattern: their common row. The patterns are views
        that the next call overwrites.
        """
        weights, mean_weights = rows.mixture(self.moments)
        count = len(weights)
        torch.mm(mean_weights, self.mean_patterns, out=self._table[count - 1 : count])
        if recent_mean is None:
            return weights, self._table[:count]
        torch.mm(self.moments.solve_mean(recent_mean), self.mean_patterns, out=self._table[count : count + 1])
        return weights, self._table

    def predict(self, rows: FeatureRows) -> Tensor:
        """Return the expected outputs of rows of features; 0 before the first commit."""
        weights, patterns = self.mixture(rows)
        return weights.T @ patterns

    def state_dict(self) -> dict[str, Any]:
        """Return copies of A and B, P and Q."""
        tensors = {"second": self.moments.second, "patterns": self.patterns, "mean_patterns": self.mean_patterns}
        return {name: tensor.clone() for name, tensor in tensors.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], moments: Moments) -> "RunningRegression":
        """Return the regression whose `state_dict` this was."""
        regression = cls(moments, state["patterns"].shape[1])
        regression.patterns.copy_(state["patterns"])
        regression.mean_patterns.copy_(state["mean_patterns"])
        return regression


def upgraded_regression_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return a regression's state in today's form; older checkpoints have one system of 2K equations for d and m."""
    if "cross" not in state:
        return state
    half = len(state["cross"]) // 2
    second = torch.stack([state["second"][:half, :half], state["second"][half:, half:]])
    rest = {name: value for name, value in state.items() if name != "cross"}
    return rest | {"second": second, "patterns": state["cross"][:half], "mean_patterns": state["cross"][half:]}


# Bias correction.


class BiasCorrection:
    """Running means over a site's recent BP batches; see the module's formulas.

    `gradient` is T, the mean true gradient; `inputs` `(K + 1, inputs)` the mean of `sum d_n' x_n` and, last, of `sum x_n`;
    `error` `(1, K)` the mean of m.
    """

    def __init__(self) -> None:
        self.gradient: Tensor | None = None
        self.inputs: Tensor | None = None
        self.error: Tensor | None = None
        self.sums = CrossSums()

    @torch.no_grad()
    def mean_with(self, gradient: Tensor, rate: float) -> Tensor:
        """Return a new tensor for `commit`: T, moved by `rate` towards the true gradient of a batch."""
        if self.gradient is None:
            return gradient.detach().clone()
        return torch.lerp(self.gradient, gradient.to(self.gradient.dtype), rate)

    @torch.no_grad()
    def commit(self, mean: Tensor, rate: float) -> None:
        """Move the means by `rate` towards the batch that was added to `sums`. `mean` is the new T, from `mean_with`."""
        if not self.sums.rows:
            return
        inputs, error = self.sums.total(), torch.stack([rows.mean for rows in self.sums.rows]).mean(0)
        first, self.gradient = self.gradient is None, mean
        if first:
            self.inputs, self.error = inputs, error
        else:
            if self.inputs is None or self.error is None:  # from an older checkpoint, with nothing to subtract
                self.inputs, self.error = torch.zeros_like(inputs), torch.zeros_like(error)
            self.inputs.lerp_(inputs, rate)
            self.error.lerp_(error, rate)
        self.drop()

    def drop(self) -> None:
        """Forget what was added since the last commit."""
        self.sums = CrossSums()

    @torch.no_grad()
    def subtract(
        self,
        mixed: Tensor,
        inverse: Tensor,
        fraction: float,
        repeat: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Subtract `fraction` of the recent batches' mixed inputs from those of a call `(K + 2, inputs)`, in place.

        If inputs were averaged over blocks, `repeat` expands rows of them to all positions.

        The last row receives their sum of inputs; its pattern is the common row of the recent batches. So this term is the
        product of two running means. The exact term is the running mean of a product: the covariance over batches is
        neglected.
        """
        assert self.inputs is not None, "a batch was committed"
        if repeat is None:
            mixed[:-2].addmm_(inverse, self.inputs[:-1], alpha=-fraction)
            torch.mul(self.inputs[-1], -fraction, out=mixed[-1])
            return
        mixed[:-2].sub_(repeat(inverse @ self.inputs[:-1]), alpha=fraction)
        torch.mul(repeat(self.inputs[-1:])[0], -fraction, out=mixed[-1])

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the means."""
        means = {"truth": self.gradient, "inputs": self.inputs, "error": self.error}
        return {name: None if mean is None else mean.clone() for name, mean in means.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "BiasCorrection":
        """Return the correction whose `state_dict` this was; it takes over the tensors."""
        correction = cls()
        correction.gradient, correction.inputs, correction.error = state["truth"], state["inputs"], state["error"]
        return correction


def usable_correction(corrections: Mapping[int, BiasCorrection], site: Site) -> BiasCorrection | None:
    """Return the site's bias correction if it has seen a batch, so that there is something to subtract."""
    correction = corrections.get(site.index)
    return correction if correction is not None and correction.inputs is not None else None


def correction_states(state: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the states of the bias corrections in a source's state, by site.

    Those without a true gradient are left out: for a sharded weight each process adds its own shard later. Older checkpoints
    have running means of the errors of predictions, with nothing to subtract.
    """
    if "references" in state:
        return {index: correction for index, correction in state["references"].items() if "truth" in correction}
    return {index: {"truth": bias, "inputs": None, "error": None} for index, bias in state["lacks"].items()}


# Prediction of a site's weight gradient.


class SiteRegression:
    """The regression of one site: learns from its output gradients, predicts its weight gradient.

    If a site's maps are longer than `side` positions, patterns and the inputs of recent batches are averaged over blocks. The
    inputs of the batch whose weight gradient is taken are not. With `side` 0 nothing is averaged.
    """

    def __init__(self, site: Site, regression: RunningRegression, channels_last: bool, side: int = 0) -> None:
        self.site = site
        self.regression = regression
        self.channels_last = channels_last  # that of the output gradients, whose rows then are views
        self.side = side

    @classmethod
    def fresh(cls, site: Site, moments: Moments, gradient: Tensor, side: int = 0) -> "SiteRegression":
        """Return a regression without data, for output gradients of the shape and memory format of `gradient`."""
        last = is_channels_last(gradient)
        return cls(site, RunningRegression(moments, pooled_rows(site, gradient[:1], last, side).shape[1]), last, side)

    def learn(self, rows: FeatureRows, gradient: Tensor, scale: float, call: Hashable = None) -> None:
        """Add a call's features and output gradient, which is `scale` times too large (a loss scaler's)."""
        outputs = pooled_rows(self.site, gradient, self.channels_last, self.side)
        self._check_size(outputs.shape[1])
        self.regression.add(rows, outputs, 1 / scale, call)

    def weight_gradient(
        self, inputs: Tensor, rows: FeatureRows, shape: Size, correction: BiasCorrection | None = None
    ) -> Tensor:
        """Return the weight gradient of a call with `inputs` and an output of `shape`, less that of recent BP batches."""
        mixed = MixedInputs(self, inputs, shape)
        mixed.add(inputs, rows)
        return mixed.weight_gradient(rows, correction)

    def patterns(self, rows: FeatureRows, recent_mean: Tensor | None, shape: Size) -> Tensor:
        """Return the K + 1 patterns, or K + 2 with `recent_mean`, as output gradients of `shape`; predictions are mixtures."""
        blocks = blocks_for(self.site, shape, self.side)
        small_shape = pooled_shape(shape, blocks)
        self._check_size(shape[-1] if self.site.rule.kind == "linear" else small_shape[1:].numel())
        _, patterns = self.regression.mixture(rows, recent_mean)
        small = from_rows(self.site, patterns, small_shape, self.channels_last)
        return repeated(small, blocks, shape)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the regression, the memory format of its patterns, and the length of averaged maps."""
        return {"channels_last": self.channels_last, "side": self.side, **self.regression.state_dict()}

    @classmethod
    def from_state(cls, site: Site, state: dict[str, Any], moments: Moments) -> "SiteRegression":
        """Return the regression whose `state_dict` this was; in older checkpoints no maps were averaged."""
        regression = RunningRegression.from_state(state, moments)
        return cls(site, regression, state["channels_last"], state.get("side", 0))

    def _check_size(self, outputs: int) -> None:
        if outputs != self.regression.outputs:
            raise ModelError(
                f"the output of site '{self.site.name}' had {self.regression.outputs} numbers per sample and now has "
                f"{outputs}: feedback needs inputs of one size."
            )


class MixedInputs:
    """The K + 1 mixed inputs of a call of a site, summed over its micro-batches, and the weight gradient taken from them.

    `inputs` is the first micro-batch's input, for its sizes and memory format; `shape` has the sizes of its output.
    """

    def __init__(self, fit: SiteRegression, inputs: Tensor, shape: Size) -> None:
        self.fit = fit
        self.parts: list[FeatureRows] = []
        self._shape, self._input_shape = shape, inputs.shape
        self._channels_last = is_channels_last(inputs)
        self._mixed: Tensor | None = None  # (K + 2, inputs): the last row is for a bias correction

    @property
    def mixed(self) -> Tensor:
        """The mixed inputs `(K + 1, inputs)`; the last one is the sum of all inputs."""
        assert self._mixed is not None, "something was added"
        return self._mixed[:-1]

    @torch.no_grad()
    def add(self, inputs: Tensor, rows: FeatureRows) -> None:
        """Add a micro-batch: its inputs, and the features of its rows."""
        self.parts.append(rows)
        weights, _ = rows.around_mean_of(self.parts[0]).mixture(self.fit.regression.moments)
        numbers = as_rows(self.fit.site, inputs.detach(), self._channels_last).to(weights.dtype)
        if self._mixed is not None:
            self._mixed[:-1] += weighted_sums(weights, numbers)
            return
        self._mixed = numbers.new_empty(len(weights) + 1, numbers.shape[1])
        weighted_sums(weights, numbers, out=self._mixed[:-1])
        self._mixed[-1].zero_()

    def join_micro_batches(self, join: Callable[[Sequence[FeatureRows]], FeatureRows]) -> FeatureRows:
        """Take the deviations from the mean of all micro-batches; return the features of the whole call, from `join`."""
        if len(self.parts) > 1:
            whole = join(self.parts)
            self.centre(whole.exact_mean)
            self.parts = [whole]
        return self.parts[0]

    @torch.no_grad()
    def centre(self, mean: Tensor) -> None:
        """Take the features' deviations from `mean` `(1, K)`, no longer from the mean of the first micro-batch."""
        offset = self.parts[0].exact_mean - mean
        self.mixed[:-1].addmm_(self.fit.regression.moments.solve(offset).T, self.mixed[-1:])

    @torch.no_grad()
    def weight_gradient(
        self, rows: FeatureRows, correction: BiasCorrection | None = None, *, local_only: bool = False
    ) -> Tensor:
        """Return the weight gradient, less that of recent BP batches; `rows` are the features of the whole call.

        With `local_only`, return only the rows of a sharded weight that this process holds.
        """
        fit, site, mixed = self.fit, self.fit.site, self._mixed
        assert mixed is not None, "something was added"
        gradients = fit.patterns(rows, None if correction is None else correction.error, self._shape)
        if correction is None:
            mixed = mixed[:-1]
        else:
            blocks = blocks_for(site, self._input_shape, fit.side)
            correction.subtract(
                mixed, fit.regression.moments.inverse, rows.fraction, self._repeated if blocks else None
            )
        samples = from_rows(site, mixed, self._input_shape, self._channels_last)
        if self._channels_last and not local_only and suits_im2col(site, mixed, self._shape):
            return im2col_weight_gradient(site, samples, gradients)
        return weight_gradient(site, samples, gradients, local_only=local_only)

    def _repeated(self, rows: Tensor) -> Tensor:
        """Expand rows of inputs that were averaged over blocks to all positions."""
        site, shape, last = self.fit.site, self._input_shape, self._channels_last
        blocks = blocks_for(site, shape, self.fit.side)
        small = from_rows(site, rows, pooled_shape(shape, blocks), last)
        return as_rows(site, repeated(small, blocks, shape), last)


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether `(N, C, ...)` is stored as `(N, ..., C)`."""
    return tensor.dim() > 2 and not tensor.is_contiguous() and tensor.movedim(1, -1).is_contiguous()


def as_rows(site: Site, tensor: Tensor, channels_last: bool) -> Tensor:
    """Return a layer's input or output (or a gradient) as rows: a sample's whole map, or a position of a linear layer."""
    if site.rule.kind == "linear":
        return tensor.reshape(-1, tensor.shape[-1])
    return (tensor.movedim(1, -1) if channels_last else tensor).reshape(len(tensor), -1)


def from_rows(site: Site, rows: Tensor, shape: Size, channels_last: bool) -> Tensor:
    """Return rows as a tensor of `shape`; only the number of samples (or positions) may differ from it."""
    if site.rule.kind == "linear":
        return rows
    if channels_last:
        return rows.view(len(rows), *shape[2:], shape[1]).movedim(-1, 1)
    return rows.view(len(rows), *shape[1:])


def pooled_rows(site: Site, tensor: Tensor, channels_last: bool, side: int) -> Tensor:
    """Return a layer's input or output (or a gradient) as rows, its maps averaged to at most `side` positions an axis."""
    return as_rows(site, pooled(tensor, blocks_for(site, tensor.shape, side)), channels_last)


# The two products that take most of feedback's time. For its shapes they are faster on a CPU than torch's own.

BLOCK_ROWS = 16
"""How many long rows `weighted_sums` adds at a time."""
LONG_ONE_THREAD, LONG_THREADS = 2048, 8192
"""Numbers from which a row counts as long, with one thread and with several (measured): threads have a cost of their own."""
IM2COL_POSITIONS = 64
"""Positions of an output up to which im2col is faster than a convolution's own backward, on a CPU."""


def weighted_sums(weights: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `weights @ rows`, in `out` if it is given.

    The sizes of maps are often powers of two. All rows then begin in the same set of the CPU's cache, which holds about eight
    lines, so that a hundred rows evict each other. Adding long rows a few at a time takes half the time.
    """
    threads = torch.get_num_threads()
    long = rows.shape[1] >= (LONG_ONE_THREAD if threads == 1 else LONG_THREADS)
    if len(rows) <= BLOCK_ROWS or not long or rows.device.type != "cpu":
        return torch.mm(weights, rows, out=out)
    if threads > 1 and rows.shape[1] % threads == 0:
        sums = _sums_by_thread(weights, rows, threads)
        return sums if out is None else out.copy_(sums)
    sums = torch.mm(weights[:, :BLOCK_ROWS], rows[:BLOCK_ROWS], out=out)
    for block in _later_blocks(rows):
        sums.addmm_(weights[:, block], rows[block])
    return sums


def _sums_by_thread(weights: Tensor, rows: Tensor, threads: int) -> Tensor:
    """Return the product, each thread with its own columns: two threads that share every block are hardly faster than one."""
    parts = rows.unflatten(1, (threads, -1)).transpose(0, 1)
    weights = weights.expand(threads, -1, -1)
    sums = torch.bmm(weights[..., :BLOCK_ROWS], parts[:, :BLOCK_ROWS])
    for block in _later_blocks(rows):
        sums.baddbmm_(weights[..., block], parts[:, block])
    return sums.transpose(0, 1).flatten(1)


def _later_blocks(rows: Tensor) -> list[slice]:
    return [slice(first, first + BLOCK_ROWS) for first in range(BLOCK_ROWS, len(rows), BLOCK_ROWS)]


def suits_im2col(site: Site, inputs: Tensor, outputs: Size) -> bool:
    """Return whether `im2col_weight_gradient` supports a layer and is the faster way for these `inputs` and output sizes."""
    module: Any = site.module
    planar = site.rule.kind != "linear" and site.weight.dim() == 4 and not module.transposed and module.groups == 1
    return planar and outputs[2:].numel() <= IM2COL_POSITIONS and inputs.device.type == "cpu"


def im2col_weight_gradient(site: Site, inputs: Tensor, output_gradient: Tensor) -> Tensor:
    """Return a 2D convolution's weight gradient as one product: output gradients times all patches of the inputs.

    `inputs` are channels-last in memory. The patches are first an overlapping view; `reshape` makes the one copy.
    """
    module: Any = site.module
    inputs, geometry = padded(module, inputs.to(site.weight.dtype))
    (down, across), (rows, columns) = geometry.padding, output_gradient.shape[2:]
    maps = F.pad(inputs.movedim(1, -1), (0, 0, across, across, down, down)).contiguous()
    samples, _, width, channels = maps.shape
    row, sample = width * channels, maps[0].numel()
    steps = [step * size for step, size in zip(geometry.stride, (row, channels), strict=True)]
    taps = [step * size for step, size in zip(geometry.dilation, (row, channels), strict=True)]
    patches = maps.as_strided((samples, rows, columns, *module.kernel_size, channels), (sample, *steps, *taps, 1))
    gradients = output_gradient.to(site.weight.dtype).movedim(1, 0).flatten(1)
    product = gradients @ patches.reshape(gradients.shape[1], -1)
    return product.view(-1, *module.kernel_size, channels).movedim(-1, 1)

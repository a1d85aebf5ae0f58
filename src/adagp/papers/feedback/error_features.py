"""Features of a model's output and of the error there, and which of their rows belongs to which row of a site's output.

The rows of a site are its samples, or the positions of a linear layer over sequences. A linear layer takes `(samples,
positions, numbers)` as well as `(positions, samples, numbers)`; `SampleAxes` finds out which.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from torch import Size, Tensor

from adagp.errors import ModelError
from adagp.layers.sites import SAY_SAMPLE_AXIS, Site
from adagp.sources.base import ModelCall, gradient_hooks_off


class ErrorFeatures:
    """Turns output errors into at most `most` features per row; larger errors are projected at random.

    A random projection keeps inner products in expectation. An error `(N, T, V)` is one of sequences: V is projected.
    Other errors are flattened, samples first. If the model has several outputs, those are used that the loss of a BP batch
    has depended on.

    With `classes` there are as many features again: the softmax of the outputs (`class_features`), projected likewise.
    """

    def __init__(self, most: int, seed: int, *, classes: bool = False) -> None:
        self.most = most
        self.seed = seed
        self.classes = classes
        self.outputs: list[int] = []
        self._projection: Tensor | None = None

    def note_outputs(self, call: ModelCall) -> int | None:
        """Use the outputs that the loss of a BP batch depends on; return the first new one if others were used before."""
        present = [index for index, error in enumerate(call.errors) if error is not None]
        new = [index for index in present if index not in self.outputs]
        known, self.outputs = bool(self.outputs), sorted({*self.outputs, *new})
        return new[0] if known and new else None

    def count(self, outputs: Sequence[Size]) -> int:
        """Return how many features the errors at outputs of these sizes have."""
        alike = all(len(size) == 3 and size[:2] == outputs[0][:2] for size in outputs)
        width = sum(size[-1] if alike else size[1:].numel() for size in outputs)
        return min(self.most, width) * (2 if self.classes else 1)

    def of_call(self, call: ModelCall) -> Tensor:
        """Return the features of the errors at the outputs of `call` that are used, as `of_several` does."""
        present = [index for index, error in enumerate(call.errors) if error is not None]
        self.outputs = self.outputs or present
        first = call.errors[present[0]]
        assert first is not None, "a call without an error has no features"
        errors = []
        for index in self.outputs:
            error = call.errors[index]
            errors.append(first.new_zeros(call.shapes[index]) if error is None else error)
        return self.of_several(errors, [call.outputs[index] for index in self.outputs] if self.classes else ())

    def of_several(self, errors: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Tensor:
        """Return the features of the errors at several outputs, `(N, features)`, or `(N, T, features)` of sequences."""
        if any(len(error) != len(errors[0]) for error in errors):
            raise ModelError(
                "the outputs that the loss depends on differ in their number of samples: "
                f"{', '.join(str(tuple(error.shape)) for error in errors)}. Name the one to use: adagp.attach(output=...)."
            )
        error = _side_by_side([error.detach().float() for error in errors])
        if not self.classes:
            return self._projected(error)
        softmax = _side_by_side([_rows(output.detach().float()).softmax(-1) for output in outputs])
        return torch.cat([self._projected(error), self._projected(class_features(softmax, error))], dim=-1)

    def _projected(self, rows: Tensor) -> Tensor:
        width = rows.shape[-1]
        if width <= self.most:
            return rows
        if self._projection is None or self._projection.shape[0] != width:
            generator = torch.Generator().manual_seed(self.seed)
            signs = torch.randint(0, 2, (width, self.most), generator=generator) * 2 - 1
            self._projection = (signs / self.most**0.5).to(rows)
        return rows @ self._projection


def class_features(softmax: Tensor, error: Tensor) -> Tensor:
    """Return s * softmax of each row, where the error of cross-entropy is s * (softmax - label).

    Error and softmax together span the label without reading it. The factor s is 1 over the number of samples for a mean loss.
    It makes error and softmax equally large, also if the loss is a sum or is divided by the number of micro-batches. Only the
    label's entry of an error is negative; at all others the error is s * softmax. So s is the sum of the positive errors over
    the sum of the softmax at the same places. A row without error, such as a padded position, has no features.
    """
    positive = error > 0
    scale = (error * positive).sum() / (softmax * positive).sum().clamp(min=torch.finfo(softmax.dtype).tiny)
    return softmax * (scale * error.ne(0).any(-1, keepdim=True))


def _rows(tensor: Tensor) -> Tensor:
    """Return `(N, numbers)`, or `(N, T, numbers)` of sequences."""
    return tensor[:, None] if tensor.dim() == 1 else tensor if tensor.dim() == 3 else tensor.flatten(1)


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """Return the rows of several tensors as one; those of sequences stay by position if all have the same positions."""
    if len(tensors) == 1:
        return _rows(tensors[0])
    alike = all(tensor.dim() == 3 and tensor.shape[:2] == tensors[0].shape[:2] for tensor in tensors)
    return torch.cat(list(tensors) if alike else [tensor.flatten(1) for tensor in tensors], dim=-1)


def rows_for(site: Site, shape: Size, features: Tensor, axis: int = 0) -> Tensor:
    """Return the features `(rows, features)` of each row of a site's output, which has `shape`.

    A convolution, or a linear layer without a sequence, has a row per sample. A linear layer over a sequence has a row per
    position: with the features of the same position, if the model's output has as many; else with those of its sample.
    Samples, which are first in the features, are counted on `axis` of the site's output.
    """
    width = features.shape[-1]
    if site.rule.kind == "linear" and len(shape) == 3 and features.dim() == 3 and shape[1 - axis] == features.shape[1]:
        return (features.transpose(0, 1) if axis else features).reshape(-1, width)
    samples = features.sum(1) if features.dim() == 3 else features
    if site.rule.kind != "linear" or len(shape) == 2:
        return samples
    broadcast = [1] * (len(shape) - 1)
    broadcast[axis] = len(samples)
    return samples.view(*broadcast, width).expand(*shape[:-1], width).reshape(-1, width)


def is_other_sequence(site: Site, shape: Size, features: Size) -> bool:
    """Return whether a site is over another sequence than the model's output, as in an encoder; both with positions first."""
    if site.sequence_first is False or site.rule.kind != "linear" or len(shape) != 3 or len(features) != 3:
        return False
    return shape[0] != features[0] and shape[1] == features[1]


PROBED_SAMPLES = (1, 0, 2)
"""The samples to probe, in this order, until one decides. Sample 0 is not the first: if the model reads only position 0, as
classifiers of sequences do, the gradient of sample 0 is in row 0 and in column 0, whichever axis counts the samples."""


class SampleAxes:
    """Finds the axis of each site's output that counts the samples, which are the first axis of the model's output.

    If exactly one axis has that size, the sizes decide. Otherwise autograd does: a sample's output depends on no other sample,
    so the gradient of one sample of the model's output with respect to the site's output is zero for all other samples. This
    gradient is taken once for a site, in the first BP batch that needs it: `keep` the outputs of sites in a forward call, then
    `settle`.
    """

    def __init__(self) -> None:
        self._axes: dict[int, int] = {}
        self._probed: set[int] = set()
        self._waiting: list[tuple[Site, Tensor]] = []

    def keep(self, site: Site, output: Tensor) -> None:
        """Keep the output of a site until the model's outputs are known, if its axis is not known yet."""
        if site.index in self._axes or site.index in self._probed or site.rule.kind != "linear":
            return
        if output.dim() > 2 and output.requires_grad and not torch.compiler.is_compiling():
            self._waiting.append((site, output))

    def settle(self, outputs: Sequence[Tensor]) -> None:
        """Probe the sites that were kept, given the model's outputs with their graph."""
        waiting, self._waiting = self._waiting, []
        for output in outputs:
            probed = [(site, values) for site, values in waiting if is_ambiguous(values.shape, output.shape)]
            if output.requires_grad:
                self._probe(probed, output)
                self._probed.update(site.index for site, _ in probed)

    def of(self, site: Site, shape: Size, output: Size) -> int:
        """Return the axis of a site's output of `shape` that is the first one of the model's `output`.

        Raises ModelError if no axis has its size, or if several have and nothing decides between them.
        """
        _check_batched(site, shape)
        axes = candidates(site, shape, output[0])
        _check_positions_apart(site, shape, output, axes)
        known = self._axes.get(site.index)
        if not axes or known not in (None, *axes):
            raise ModelError(
                f"site '{site.name}' was called with {shape[0]} samples, but the model's output has {output[0]}: "
                "the output's error cannot be assigned to them. Exclude the site."
            )
        if known is not None:
            return known
        if site.rule.kind != "linear" or not is_ambiguous(shape, output):
            if output[0] > 1 and len(shape) > 2:
                self._axes[site.index] = axes[0]  # for a later batch whose sizes are ambiguous
            return axes[0]
        if site.sequence_first is not None and int(site.sequence_first) in axes:
            return int(site.sequence_first)
        raise ModelError(
            f"the output of site '{site.name}' has the sizes {tuple(shape)}, the model's {tuple(output)}: adagp "
            f"cannot tell which axis counts the samples. {SAY_SAMPLE_AXIS}"
        )

    def drop(self) -> None:
        """Forget the outputs that were kept of this batch."""
        self._waiting = []

    def state_dict(self) -> dict[int, int]:
        """Return the axes by the index of the site."""
        return dict(self._axes)

    def load_state_dict(self, state: Mapping[int, int]) -> None:
        """Restore what `state_dict` returned."""
        self._axes = dict(state)

    def _probe(self, sites: Sequence[tuple[Site, Tensor]], output: Tensor) -> None:
        # Samples may be second in the model's output as well.
        axes = (0, 1) if output.dim() == 3 and output.shape[0] == output.shape[1] else (0,)
        for sample, axis in product(PROBED_SAMPLES, axes):
            undecided = [(site, kept) for site, kept in sites if site.index not in self._axes]
            if undecided and sample < output.shape[axis]:
                self._probe_sample(undecided, output, axis, sample)

    def _probe_sample(self, sites: Sequence[tuple[Site, Tensor]], output: Tensor, axis: int, sample: int) -> None:
        """Set the axis of each site for which the gradient of one sample, along `axis` of the model's output, decides it."""
        for (site, kept), gradient in zip(sites, _gradients(output, axis, sample, sites), strict=True):
            decided = None if gradient is None else _sample_axis(gradient, output.shape[axis], sample)
            if decided is not None and (axis == 0 or kept.dim() == 3):
                self._axes[site.index] = decided if axis == 0 else 1 - decided


def _check_batched(site: Site, shape: Size) -> None:
    if len(shape) < (2 if site.rule.kind == "linear" else site.weight.dim()):
        raise ModelError(
            f"site '{site.name}' was called with a single sample, without an axis that counts samples (its output has the "
            f"sizes {tuple(shape)}): feedback needs that axis. Give the model a batch of one: inputs[None]."
        )


def _check_positions_apart(site: Site, shape: Size, output: Size, axes: Sequence[int]) -> None:
    if not axes and site.rule.kind == "linear" and len(shape) > 2 and shape[:-1].numel() == output[0]:
        raise ModelError(
            f"the output of site '{site.name}' has the sizes {tuple(shape)}, the model's {tuple(output[:1])}: samples and "
            f"positions were joined. Name the layer that computes the model's output, before that is reshaped: if it is "
            f"this one, adagp.attach(output='{site.name}')."
        )


def candidates(site: Site, shape: Size, samples: int) -> list[int]:
    """Return the axes of a site's output that could count `samples`: of convolutions, only the first one."""
    if site.rule.kind != "linear":
        return [0] if shape[0] == samples and len(shape) == site.weight.dim() else []
    return [axis for axis, size in enumerate(shape[:-1]) if size == samples]


def is_ambiguous(shape: Size, output: Size) -> bool:
    """Return whether the sizes leave open which axis of a linear layer's output is the first one of the model's."""
    if len(shape) < 3 or output[0] == 1:
        return False
    return sum(size == output[0] for size in shape[:-1]) > 1 or (len(output) == 3 and output[0] == output[1])


def _gradients(output: Tensor, axis: int, sample: int, sites: Sequence[tuple[Site, Tensor]]) -> Sequence[Tensor | None]:
    """Return the gradients of one sample of `output`, weighted so that they do not add up to 0 behind a softmax."""
    part = output.select(axis, sample)
    weights = torch.arange(part.numel(), device=part.device).cos().to(part.dtype).view(part.shape)
    with gradient_hooks_off():
        return torch.autograd.grad(part, [kept for _, kept in sites], weights, retain_graph=True, allow_unused=True)


def _sample_axis(gradient: Tensor, samples: int, sample: int) -> int | None:
    """Return the axis along which `gradient` is nonzero only at index `sample`; None for several axes, or none.

    Batch normalization leaks some of it into other samples: little, if there are more than a few samples.
    """
    energy = gradient.detach().double().square()
    axes = [axis for axis in range(energy.dim() - 1) if energy.shape[axis] == samples]
    if not axes:
        return None
    energies = sorted(((float(energy.select(axis, sample).sum()), axis) for axis in axes), reverse=True)
    total, best = float(energy.sum()), energies[0]
    second = energies[1][0] if len(energies) > 1 else 0.0
    exactly = best[0] > (1 - 1e-9) * total >= second
    nearly = samples > 3 and best[0] > 0.6 * total and second < 0.5 * best[0]
    return best[1] if exactly or nearly else None

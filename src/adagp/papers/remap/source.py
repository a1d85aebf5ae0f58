"""Tensor re-mapping: a predictor of fixed size, whose one vector is repeated over each weight tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor, nn

from adagp.core.plan import Step
from adagp.errors import ModelError, OptionError
from adagp.layers.sites import Site
from adagp.layers.summaries import pool_maximum
from adagp.layers.weights import norms
from adagp.sources.base import BatchContext, Rounds, RunningNorms, on_gradient
from adagp.sources.demand import Demand, TrialCall, chain_macs, kept_inputs, weight_gradient_macs
from adagp.sources.learned import LearnedSource, LearningOptions
from adagp.sources.local import Kept, check_not_recomputed, weight_gradient


def remap(vector: Tensor, count: int) -> Tensor:
    """Return `count` numbers: whole copies of `vector`, the rest filled with its last value.

    A tensor smaller than the vector takes the vector's first `count` numbers: no whole copy fits, and a constant gradient would
    be useless.
    """
    size = vector.numel()
    copies, rest = divmod(count, size)
    if copies == 0:
        return vector[:count]
    return torch.cat([vector.repeat(copies), vector[-1:].expand(rest)])


class RemapNetwork(nn.Module):
    """Four convolutions with batch norm, and a fully connected layer to `outputs` numbers: one vector for each layer.

    The published network averages the vectors of all samples after the fully connected layer. Averaging the features before
    it gives the same vector, as the layer is linear, at a fraction (one over the number of samples) of the work.

    The fully connected layer starts at zero: an untrained predictor predicts no gradient, not noise.
    """

    def __init__(self, outputs: int = 10_000, grid: int = 4, channels: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (1, channels, channels, channels):
            layers += [nn.Conv2d(inputs, channels, kernel_size=3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.readout = nn.Linear(channels * grid * grid, outputs)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, summaries: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Return a flat tensor of `size` numbers for each site from its summary `(rows, 1, grid, grid)`."""
        vectors = self.readout(torch.stack([self.features(summary).mean(0) for summary in summaries]))
        return [remap(vector, size) for vector, size in zip(vectors, sizes, strict=True)]


class RemappedSource(LearnedSource):
    """Predicts one vector of `outputs` numbers per layer and repeats it over the layer's weight."""

    def __init__(self, options: LearningOptions | None = None, outputs: int = 10_000, channels: int = 64) -> None:
        super().__init__(options or LearningOptions(plateau=True))
        if outputs < 1:
            raise OptionError(f"the re-mapping predictor has {outputs} outputs; it must have 1 or more.")
        self.outputs = outputs
        self.channels = channels
        self._unpooled: dict[tuple[Site, Size], tuple[Tensor, int]] = {}

    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a network whose size does not depend on the model's."""
        return RemapNetwork(self.outputs, self.options.grid, self.channels)

    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return a flat tensor for each site."""
        flat: list[Tensor] = self.network(summaries, [site.weight.numel() for site in sites])
        return flat

    def pool(self, samples: Tensor) -> Tensor:
        """Keep the largest value of each cell of the grid."""
        return pool_maximum(samples, self.options.grid)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Average over the processes before pooling, for sites whose maps have one size in all of them."""
        self._pool_waiting()
        sizes = self._map_sizes(sites)
        yield [sizes]
        same = _with_one_size(sites, sizes)
        seen = [self._unpooled.get(key, (None, 0)) for key in same]
        counts = sizes.new_tensor([float(count) for _, count in seen])
        sums = [
            sizes.new_zeros(shape) if total is None else total
            for (_, shape), (total, _) in zip(same, seen, strict=True)
        ]
        yield [counts, *sums]
        for key, total, count in zip(same, sums, counts.tolist(), strict=True):
            self._unpooled[key] = total, int(count)
        yield from super().join(sites)

    def _map_sizes(self, sites: Sequence[Site]) -> Tensor:
        """Return for each site 1, whether its maps have several sizes here, and the height, the width and the squares of both
        for the first size; zeros for a site without maps. `_with_one_size` reads the sum over the processes."""
        sizes = torch.zeros(len(sites), 6, device=sites[0].weight.device)
        for row, site in zip(sizes, sites, strict=True):
            shapes = [shape for known, shape in self._unpooled if known is site]
            for _, height, width in shapes[:1]:
                row += row.new_tensor([1, len(shapes) > 1, height, width, height**2, width**2])
        return sizes

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop what was seen of `sites` alone."""
        super().drop(sites)
        for key in [key for key in self._unpooled if key[0] in sites]:
            del self._unpooled[key]

    def forget(self) -> None:
        """Drop what was seen of this batch."""
        super().forget()
        self._unpooled.clear()

    def _add(self, site: Site, samples: Tensor, weight: int) -> None:
        """Add a call's mean over samples to the batch's. The maximum is taken of the mean: a mean of maxima would differ."""
        total, count = self._unpooled.get((site, samples.shape), (0.0, 0))
        self._unpooled[site, samples.shape] = total + weight * samples, count + weight

    def _summarize_all(self) -> None:
        super()._summarize_all()
        for (site, _), (total, count) in self._unpooled.items():
            super()._add(site, total / count, count)
        self._unpooled.clear()


def _with_one_size(sites: Sequence[Site], sizes: Tensor) -> list[tuple[Site, Size]]:
    """Return the sites whose maps have one size in all processes, and the shape of these maps."""
    return [
        (site, Size((site.rows, int(height / count), int(width / count))))
        for site, (count, several, height, width, heights, widths) in zip(sites, sizes.tolist(), strict=True)
        # Equal numbers alone have a sum whose square is their count times the sum of their squares.
        if count and not several and (count * heights, count * widths) == (height**2, width**2)
    ]


class ProgramSource(RemappedSource):
    """What the published program does, not what the text says. It serves every batch after the warm-up.

    Its GP phase still calls `loss.backward()`: all parameters get their true gradients, and only weights of the model's direct
    children get a prediction added (of VGG and MobileNet none, as these are inside containers). The predictor does not learn
    there. Four such epochs come first, then one that trains the predictor and three more that do not, repeatedly. The
    predictor sees the outputs of linear layers as one picture of the whole batch, not averaged over it.
    """

    needs_backward = True
    traceable = False  # it hooks gradients
    first_epochs, period = 4, 4

    def __init__(self, options: LearningOptions | None = None, outputs: int = 10_000, channels: int = 64) -> None:
        super().__init__(options, outputs, channels)
        self._exact: dict[Site, Tensor] = {}
        self._pictures: dict[Site, list[Tensor]] = {}
        self._context = BatchContext(Step(0, 0))
        self._first_epoch: int | None = None

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Raise on layers at whose output no gradient is seen; build the network."""
        check_not_recomputed("remap_program", sites)
        super().bind(sites, norms)

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:
        """Raise on a layer at whose output no gradient is seen."""
        check_not_recomputed("remap_program", [call.site])

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return the predictor's memory and work, and those of the backward pass, which GP batches have here, too."""
        exact = chain_macs(calls) + weight_gradient_macs(calls)
        return super().demand(calls, outputs) + Demand(gp_bytes=kept_inputs(calls), gp_macs=exact)

    def begin(self, context: BatchContext) -> None:
        """Keep the batch's place, from the first epoch on that it serves."""
        self._context = context
        if context.replaced and self._first_epoch is None:
            self._first_epoch = context.step.epoch

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:  # type: ignore[override]
        """Keep the picture of the output, and take the exact weight gradient in the backward pass."""
        if site.rule.kind == "linear":
            picture = output.detach().float().reshape(1, -1, output.shape[-1])
            self._pictures.setdefault(site, []).append(picture.clone())  # the next layer may change it in place
        else:
            super().watch(site, inputs, output)
        if site not in self._context.replaced:
            return None
        stored, scale = Kept(site, inputs), self._context.scale

        def receive(gradient: Tensor) -> None:
            exact = weight_gradient(site, stored.get(), gradient) / scale
            self._exact[site] = self._exact[site] + exact if site in self._exact else exact

        return on_gradient(output, receive)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Raise: the published program runs in one process."""
        raise ModelError("method 'remap_program' follows a program for one process; it cannot train in several.")

    @property
    def _teaches(self) -> bool:
        """Whether the epoch is one of the published program's that train the predictor."""
        after = self._context.step.epoch - (self._first_epoch or 0) - self.first_epochs
        return after >= 0 and after % self.period == 0

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the true gradients; those of direct children of the model with the prediction added."""
        if not self._exact:  # a batch by backprop, whose predictions are measured
            return super().produce(sites)
        seen = [site for site in sites if site in self._exact]
        if self._teaches:
            self.observe(seen, [self._exact[site] for site in seen])
        else:
            self._add_predictions([site for site in seen if "." not in site.name])
        return [self._exact.get(site) for site in sites]

    def _add_predictions(self, children: Sequence[Site]) -> None:
        predictions = super().produce(children) if children else []
        for site, gradient in zip(children, predictions, strict=True):
            if gradient is not None:
                self._exact[site] = self._exact[site] + gradient

    def sizes(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norms of the gradients that were given."""
        return norms(gradients)

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._exact.clear()
        self._pictures.clear()

    def _summarize_all(self) -> None:
        """Join the pictures of micro-batches into that of the batch first."""
        for site, pictures in self._pictures.items():
            self._add(site, torch.cat(pictures, 1), 1)
        self._pictures.clear()
        super()._summarize_all()

    def state_dict(self) -> dict[str, Any]:
        """Return the predictor and the first epoch that was served."""
        return super().state_dict() | {"first_epoch": self._first_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._first_epoch = state["first_epoch"]
        super().load_state_dict({name: value for name, value in state.items() if name != "first_epoch"})

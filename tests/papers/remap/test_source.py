import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

import adagp
from adagp.errors import ModelError, OptionError
from adagp.layers.sites import Site
from adagp.papers.remap.source import ProgramSource, RemapNetwork, RemappedSource, remap
from adagp.sources import LearnedSource, LearningOptions, default_source


def remap_by_loops(vector: list[float], count: int) -> list[float]:
    """Write whole copies of `vector` one number at a time, then its last value; or its beginning if no copy fits."""
    if count < len(vector):
        return [vector[place] for place in range(count)]
    filled: list[float] = []
    while len(filled) + len(vector) <= count:
        for value in vector:
            filled.append(value)  # noqa: PERF402  # slow on purpose
    while len(filled) < count:
        filled.append(vector[-1])
    return filled


@given(st.integers(1, 12), st.integers(1, 60))
@example(size=5, count=3)
@example(size=5, count=5)
@example(size=5, count=15)
@example(size=5, count=17)
@example(size=1, count=4)
def test_equals_loops(size: int, count: int) -> None:
    vector = torch.arange(1.0, size + 1)
    assert remap(vector, count).tolist() == remap_by_loops(vector.tolist(), count)


def test_gradients_reach_the_vector() -> None:
    vector = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    remap(vector, 8).sum().backward()
    assert vector.grad is not None
    assert vector.grad.tolist() == [2.0, 2.0, 4.0]  # two copies, and the last value twice more


def small_network() -> RemapNetwork:
    network = RemapNetwork(outputs=11, grid=2, channels=5)
    torch.nn.init.normal_(network.readout.weight)
    torch.nn.init.normal_(network.readout.bias)
    return network


@pytest.mark.parametrize("training", [True, False])
def test_equals_the_published_order_of_mean_and_fully_connected_layer(training: bool) -> None:
    """The paper: features, fully connected layer for every sample, then the mean over samples."""
    torch.manual_seed(1)
    network = small_network().train(training)
    summaries, sizes = [torch.randn(rows, 1, 2, 2) for rows in (3, 7, 2)], [30, 11, 4]
    published = []
    for summary, size in zip(summaries, sizes, strict=True):
        vector = network.readout(network.features(summary)).mean(0)
        published.append(remap_by_loops(vector.tolist(), size))
    for found, expected in zip(network(summaries, sizes), published, strict=True):
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_has_the_published_layers() -> None:
    network = RemapNetwork()
    kinds = [type(layer).__name__ for layer in network.features]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU"] * 4 + ["Flatten"]
    assert [layer.out_channels for layer in network.features if isinstance(layer, torch.nn.Conv2d)] == [64] * 4
    assert (network.readout.in_features, network.readout.out_features) == (64 * 4 * 4, 10_000)


def test_an_untrained_network_predicts_nothing() -> None:
    assert not torch.cat(RemapNetwork(9, 2, 3)([torch.randn(4, 1, 2, 2)], [20])).any()


def test_produces_copies_of_one_vector(
    sites: tuple[Site, ...], bound: Callable[[LearnedSource], LearnedSource], watch: Callable[..., list[Tensor]]
) -> None:
    """Batch mean, 2x2 maxima of each channel, the network, the mean over channels, repeated over the weight."""
    source = bound(RemappedSource(LearningOptions(grid=2), outputs=20, channels=3))
    outputs = watch(source, sites, seed=0)
    network = source.network
    assert isinstance(network, RemapNetwork)
    network.eval()
    for site, output, produced in zip(sites, outputs, source.produce(sites), strict=True):
        assert produced is not None
        assert produced.shape == site.weight.shape
        vectors = []
        for row in range(site.rows):
            mean = output[:, row].mean(0)
            cells = [mean] * 4 if mean.dim() == 0 else [mean[:3, :3], mean[:3, 3:], mean[3:, :3], mean[3:, 3:]]
            picture = torch.stack([cell.max() for cell in cells]).view(2, 2)
            vectors.append(network.readout(network.features(picture[None, None]))[0])
        vector = torch.stack(vectors).mean(0).tolist()
        whole = site.weight.numel() // 20
        by_hand = vector * whole + vector[-1:] * (site.weight.numel() - 20 * whole)
        torch.testing.assert_close(produced.flatten(), torch.tensor(by_hand))


def test_the_network_does_not_grow_with_the_model(sites: tuple[Site, ...]) -> None:
    source = RemappedSource(outputs=30)
    sizes = {sum(one.numel() for one in source.build_network(some).parameters()) for some in (sites, sites[:1])}
    assert len(sizes) == 1


def test_is_registered_and_learns_with_the_papers_scheduler() -> None:
    source = default_source("remapped")
    assert isinstance(source, RemappedSource)
    assert source.learns
    assert source.options == LearningOptions(plateau=True)
    assert source.outputs == 10_000


def test_outputs_are_checked() -> None:
    with pytest.raises(OptionError) as caught:
        RemappedSource(outputs=0)
    assert str(caught.value) == "the re-mapping predictor has 0 outputs; it must have 1 or more."


def test_the_published_program_is_for_one_process() -> None:
    with pytest.raises(ModelError) as caught:
        ProgramSource().join([])
    assert str(caught.value) == (
        "method 'remap_program' follows a program for one process; it cannot train in several."
    )


def test_the_published_program_trains_by_backprop_in_its_gp_epochs() -> None:
    """Its predictions reach only weighted children of the model itself; a VGG's layers are inside containers."""
    torch.manual_seed(0)
    inside = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Sequential(nn.Linear(5, 3)))
    direct = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    inputs, targets = torch.randn(8, 6), torch.randint(3, (8,))
    for model, predicted in ((inside, False), (direct, True)):
        oracle = copy.deepcopy(model)
        source = ProgramSource(outputs=10)
        trainer = adagp.attach(
            model,
            torch.optim.SGD(model.parameters(), lr=0.0),
            length=adagp.Epochs(9, 1),
            schedule="sites=all; first=allowed; source=remap_program",
            sources={"remap_program": source},
        )
        nn.init.normal_(source.network.readout.bias)  # type: ignore[union-attr, arg-type]  # it predicts something
        torch.nn.functional.cross_entropy(oracle(inputs), targets).backward()
        taught: list[bool] = []
        for _ in range(9):
            before = [parameter.clone() for parameter in source.network.parameters()]
            with trainer.batch() as batch:
                batch.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
                for (name, exact), given in zip(oracle.named_parameters(), model.parameters(), strict=True):
                    assert given.grad is not None
                    assert exact.grad is not None
                    is_exact = torch.allclose(given.grad, exact.grad, atol=1e-6)
                    learning = len(taught) in (4, 8)
                    assert is_exact == (not predicted or learning or name.endswith("bias")), (name, len(taught))
                batch.step()
            after = source.network.parameters()
            taught.append(any(not torch.equal(one, other) for one, other in zip(before, after, strict=True)))
        assert [epoch for epoch, learns in enumerate(taught) if learns] == [4, 8]

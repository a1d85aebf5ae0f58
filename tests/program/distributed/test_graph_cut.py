"""Models with shortcuts across cuts, in stages that know their neighbours alone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp.engine.hooks import Listeners, ModelHooks
from adagp.errors import ModelError
from adagp.layers.sites import Site, survey
from adagp.models.transformer import Transformer
from adagp.models.yolo import yolov3_small
from adagp.program.distributed.graph_cut import cut_traced, split_names
from adagp.program.distributed.placement import check_not_tied, shared_parameters
from adagp.program.distributed.stages import ModelStage


class Dense(nn.Module):
    """Every layer sees all outputs before it; tokens are needed again at the end; one layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Linear(4 * (place + 1), 4) for place in range(3))
        self.norm = nn.BatchNorm1d(4)
        self.twice = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs = [self.embedding(tokens)]
        for layer in self.layers:
            outputs.append(layer(torch.cat(outputs, -1)).relu())
        last = self.norm(self.twice(self.twice(outputs[-1])) + outputs[0])
        found: Tensor = self.head(last * (tokens > 2)[:, None])
        return found


class Tied(nn.Module):
    """Its first and last layer have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.third.weight = self.first.weight

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.third(self.second(self.first(value)))
        return found


class Recurring(nn.Module):
    """Its first layer is called again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.first(self.second(self.first(value)))
        return found


class Seer:
    """Notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Tensor, Tensor]] = []

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        self.seen.append((site.name, inputs[0].detach().clone(), output.detach().clone()))


def staged(model: nn.Module, sample: Tensor, names: Sequence[str]) -> list[ModelStage]:
    sites = survey(model)
    return cut_traced(model, sites, (sample,), names)


def run(stages: Sequence[ModelStage], sample: Tensor) -> Tensor:
    values: tuple[Tensor, ...] = (sample,)
    for stage in stages:
        assert [(one.shape, one.dtype) for one in values] == [(one.shape, one.dtype) for one in stage.inputs]
        values = stage.forward(values)
        assert [(one.shape, one.dtype) for one in values] == [(one.shape, one.dtype) for one in stage.outputs]
    return values[0]


def test_stages_compute_what_the_model_does_with_its_own_weights_and_sites() -> None:
    torch.manual_seed(0)
    model, sample = Dense(), torch.randint(0, 7, (6,))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    sites = survey(model)
    hooks = ModelHooks(model, sites.sites)
    cut = cut_traced(model, sites, (sample,), ["layers.1", "norm", "head"])
    stages = [stage.bound(sites, hooks) for stage in cut]
    assert "forward" not in vars(model.head)
    assert {id(one) for one in model.parameters()} == {id(one) for stage in stages for one in stage.parameters}
    names = [[site.name for site in stage.sites] for stage in stages]
    assert names == [["layers.0"], ["layers.1", "layers.2", "twice"], [], ["head"]]
    sights: list[Seer] = [Seer(), Seer()]
    gradients, outputs, states = [], [], []
    ways: list[Callable[[Tensor], Tensor]] = [model, lambda value: run(stages, value)]
    for seer, forward in zip(sights, ways, strict=True):
        model.load_state_dict(start)
        with hooks.active(Listeners({site: [seer] for site in sites.sites}, everywhere=True)):
            output = forward(sample)
        output.square().sum().backward()
        outputs.append(output)
        gradients.append([one.grad for one in model.parameters()])
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        model.zero_grad(set_to_none=True)
    assert torch.equal(*outputs)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert all(torch.equal(states[0][name], states[1][name]) for name in start), "running statistics too"
    assert len(sights[0].seen) == 6
    for (name, value, output), (same, inputs, found) in zip(sights[0].seen, sights[1].seen, strict=True):
        assert name == same
        assert torch.equal(value, inputs)
        assert torch.equal(output, found)


def test_a_weight_of_several_stages_is_the_same_in_all() -> None:
    model = Tied()
    stages = staged(model, torch.randn(2, 4), ["second", "third"])
    assert shared_parameters(stages) == {(0, 2): [model.first.weight]}
    with pytest.raises(ModelError) as raised:
        check_not_tied(model, stages)
    assert str(raised.value) == (
        "weight 'first.weight' is used in the stages 0 and 2: with fsdp each of them would shard it by itself. Cut elsewhere "
        "(--split), or use data instead of fsdp."
    )


def test_blocks_are_cut_into_equal_work() -> None:
    torch.manual_seed(0)
    model, sample = Dense(), torch.randint(0, 7, (6,))
    assert split_names(model, survey(model), sample, 3) == ["layers.2", "twice"]
    inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))
    assert split_names(inner, survey(inner), torch.randn(2, 4), 3) == ["0.1", "1"]


def test_more_stages_than_blocks_are_rejected() -> None:
    model = Dense()
    with pytest.raises(ModelError) as raised:
        split_names(model, survey(model), torch.randint(0, 7, (6,)), 9)
    assert str(raised.value) == (
        "the model can be cut into 5 stages at most, one for each block that has a layer with predicted gradients; "
        "the pipeline has 9."
    )


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (
            Dense,
            ["layer"],
            "there is no module 'layer' in Dense to cut at; it has embedding, layers, norm, twice, head, ...",
        ),
        (
            Dense,
            ["embedding"],
            "cut at embedding, Dense has 1 stages, not 2: one of the modules is not called, is called several times, or has "
            "nothing before it.",
        ),
        (
            Dense,
            ["twice"],
            "cut at twice, Dense has 3 stages, not 2: one of the modules is not called, is called several times, or has "
            "nothing before it.",
        ),
        (
            Recurring,
            ["second"],
            "layer 'first' is called in the stages 0 and 1: each would see only part of its calls, and predict a "
            "different gradient. "
            "Cut elsewhere (--split), or use --parallel data.",
        ),
    ],
)
def test_models_that_cannot_be_cut_are_rejected(model: type[nn.Module], names: list[str], message: str) -> None:
    sample = torch.randint(0, 7, (6,)) if model is Dense else torch.randn(2, 4)
    with pytest.raises(ModelError) as raised:
        staged(model(), sample, names)
    assert str(raised.value) == message


def shapes_of(stages: Sequence[ModelStage]) -> list[tuple[list[torch.Size], list[torch.Size]]]:
    return [([one.shape for one in stage.inputs], [one.shape for one in stage.outputs]) for stage in stages]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("build", "sample", "names"),
    [
        (Dense, (torch.randint(0, 7, (6,)),), ["layers.1", "norm", "head"]),
        (
            lambda: Transformer(20, 8, 16, layers=1),
            (torch.randint(0, 20, (3, 5)), torch.randint(0, 20, (3, 7))),
            ["decoder.0", "decoder.0.feed_forward"],
        ),
        (lambda: yolov3_small(2, 0.25), (torch.randn(2, 3, 32, 32),), ["coarse.0", "heads.0"]),
    ],
)
def test_cuts_are_described_by_meta_tensors(
    build: Callable[[], nn.Module], sample: tuple[Tensor, ...], names: list[str]
) -> None:
    """So on a device that is not here: shapes and types do not depend on where the model is."""
    model = build()
    stages = cut_traced(model, survey(model), sample, names)
    values, real = sample, []
    for stage in stages:
        inputs, values = values, stage.forward(values)
        real.append(([one.shape for one in inputs], [one.shape for one in values]))
        assert [one.dtype for one in values] == [one.dtype for one in stage.outputs]
    with torch.device("meta"):
        abroad = build()
    far = cut_traced(abroad, survey(abroad), tuple(one.to("meta") for one in sample), names)
    assert shapes_of(far) == shapes_of(stages) == real
    assert [[one.dtype for one in stage.outputs] for stage in far] == [
        [one.dtype for one in stage.outputs] for stage in stages
    ]
    assert all(one.is_meta for stage in far for one in stage.forward([value.to("meta") for value in stage.inputs]))

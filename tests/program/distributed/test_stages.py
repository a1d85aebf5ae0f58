import pytest
import torch
from torch import nn

from adagp.errors import ModelError
from adagp.layers.sites import survey
from adagp.models.build import build_model
from adagp.program.distributed.pipeline import release
from adagp.program.distributed.stages import chain, cut, most_stages


class Crossing(nn.Module):
    """Its modules, one after the other, are not what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(value) + self.first(value)
        return out


@pytest.mark.parametrize("name", ["digits_cnn", "vgg11_bn", "resnet14", "two_layer_cnn"])
def test_models_as_chains(name: str) -> None:
    image = (1, 8, 8) if name == "digits_cnn" else (3, 32, 32)
    model = build_model(name, classes=10, image=image, width=0.25).eval()
    sample = torch.randn(2, *image)
    modules, _ = chain(model, sample)
    assert len(modules) > 3
    assert not model.training
    with torch.no_grad():
        assert torch.equal(nn.Sequential(*modules)(sample), model(sample))


def test_a_model_that_is_no_chain_has_no_stages() -> None:
    crossing, sequential = Crossing(), small()
    assert most_stages(crossing, survey(crossing), torch.randn(2, 4)) == 0
    assert most_stages(sequential, survey(sequential), torch.randn(2, 1, 8, 8)) == 2


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def test_stages_begin_at_sites_and_have_their_shapes() -> None:
    model = small()
    first, second = cut(model, survey(model), torch.zeros(5, 1, 8, 8), 2)
    assert [site.name for site in first.sites] == ["1"]
    assert [site.name for site in second.sites] == ["5"]
    assert ([one.shape for one in first.inputs], [one.shape for one in first.outputs]) == ([(5, 1, 8, 8)], [(5, 64)])
    assert ([one.shape for one in second.inputs], [one.shape for one in second.outputs]) == ([(5, 64)], [(5, 3)])
    assert len(first.parameters) == 4
    assert len(first.buffers) == 2
    assert model.training
    assert torch.equal(model[2].running_mean, torch.zeros(4))  # type: ignore[arg-type]  # a buffer


def test_work_is_balanced() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 24))
    stages = cut(model, survey(model), torch.zeros(2, 8), 2)
    assert [len(stage.sites) for stage in stages] == [3, 1]


def test_too_many_stages_are_rejected() -> None:
    model = small()
    with pytest.raises(ModelError) as raised:
        cut(model, survey(model), torch.zeros(5, 1, 8, 8), 3)
    assert str(raised.value) == (
        "the model can be cut into 2 stages at most, one for each module of its chain that has a layer with predicted "
        "gradients; the pipeline has 3."
    )


def test_released_weights_keep_only_their_shape() -> None:
    model = nn.Linear(100, 100)
    release(model.parameters())
    assert model.weight.shape == (100, 100)
    assert model.weight.untyped_storage().nbytes() == 4

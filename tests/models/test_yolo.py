import pytest
import torch
from torch import nn

from adagp.layers.sites import survey
from adagp.models import build_model
from adagp.models.registry import DETECTION, MODELS
from adagp.models.yolo import DARKNET53, Darknet, yolov3, yolov3_small


def parameters(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def running_statistics(model: nn.Module) -> int:
    return sum(one.numel() for name, one in model.named_buffers() if name.endswith(("running_mean", "running_var")))


def test_yolov3_has_as_many_numbers_as_the_published_weights() -> None:
    # yolov3.weights has 248,007,048 bytes (AlexeyAB/darknet, issue 1910): a header of 20, then 4 a number, the running
    # statistics of batch norm among them. Without those it is the 61.9 million that papers state.
    with torch.device("meta"):
        model = yolov3(classes=80)
    assert parameters(model) + running_statistics(model) == (248_007_048 - 20) // 4
    assert parameters(model) == 61_949_149
    assert sum(isinstance(layer, nn.Conv2d) for layer in model.modules()) == 75


def test_darknet53_has_as_many_parameters_as_timms_classifier() -> None:
    # timm's darknet53 for 1000 classes has 41,609,928 parameters; its last layer is 1024 x 1000 with a bias.
    with torch.device("meta"):
        backbone = Darknet(32, DARKNET53)
    assert parameters(backbone) == 41_609_928 - 1_025_000


@pytest.mark.parametrize(("classes", "size", "width"), [(20, 64, 0.25), (3, 96, 0.5), (2, 32, 1.0)])
def test_answers_come_at_three_scales_finest_first(classes: int, size: int, width: float) -> None:
    answers = yolov3_small(classes, width)(torch.zeros(2, 3, size, size))
    assert [tuple(one.shape) for one in answers] == [
        (2, 3, size // stride, size // stride, 5 + classes) for stride in (8, 16, 32)
    ]


def test_numbers_of_an_answer_belong_to_one_anchor_and_cell() -> None:
    model = yolov3_small(classes=4, width=0.25).eval()
    bias = model.get_parameter("heads.1.answers.bias")
    weight = model.get_parameter("heads.1.answers.weight")
    with torch.no_grad():
        weight.zero_()
        bias.copy_(torch.arange(27.0))
    answer = model(torch.zeros(1, 3, 64, 64))[1]
    assert answer[0, 2, 3, 1].tolist() == list(range(18, 27))


def test_objects_are_rare_at_first() -> None:
    for head in yolov3_small(classes=20, width=0.25).get_submodule("heads").children():
        bias = head.get_parameter("answers.bias").view(3, 25)
        torch.testing.assert_close(bias[:, 4].sigmoid(), torch.full((3,), 0.01))
        assert (bias[:, 5:].abs() < 1).all()


def test_width_scales_every_hidden_layer_and_keeps_channels_even() -> None:
    def channels(width: float) -> list[int]:
        layers = yolov3_small(20, width).modules()
        return [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d) and layer.bias is None]

    assert channels(0.5) == [count // 2 for count in channels(1.0)]
    assert min(channels(0.01)) == 1
    assert yolov3_small(20, 0.3)(torch.zeros(2, 3, 32, 32))[2].shape == (2, 3, 1, 1, 25)


def test_every_convolution_is_a_site() -> None:
    model = yolov3_small(20, 0.25)
    sites = survey(model).sites
    assert len(sites) == sum(isinstance(layer, nn.Conv2d) for layer in model.modules()) == 39
    assert sites[-1].name == "heads.2.answers"


def test_models_are_registered_for_detection() -> None:
    assert [name for name in MODELS if MODELS[name].task == DETECTION] == ["yolov3", "yolov3_small"]
    model = build_model("yolov3_small", classes=20, image=(3, 64, 64), width=0.25, task=DETECTION)
    assert parameters(model) == parameters(yolov3_small(20, 0.25))

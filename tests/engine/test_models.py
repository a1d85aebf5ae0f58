"""Every image model trains: a BP batch changes what it should, a GP batch the sites' weights and nothing else."""

import pytest
import torch
import torch.nn.functional as F

import adagp
from adagp.models import IMAGES, MODELS, build_model
from adagp.schedules import Ladder, Rung, WarmUp

pytestmark = pytest.mark.medium

NARROW = {
    "inception_v3": 1 / 16,
    "inception_v4": 1 / 32,
    "mobilenet_v2": 0.25,
    "digits_cnn": 0.25,
    "two_layer_cnn": 0.25,
}
PICTURE = {"digits_cnn": (1, 8, 8)}
GUARD_LIMIT = {"duplex": 1e9}
"""Its blocks begin at zero, so that the layers before have no gradient in the first batch: any other is large beside that."""


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].task == IMAGES])
def test_a_bp_and_a_gp_batch(name: str) -> None:
    torch.manual_seed(0)
    image = PICTURE.get(name, (3, 32, 32))
    model = build_model(name, classes=4, image=image, width=NARROW.get(name, 1 / 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trainer = adagp.attach(
        model,
        optimizer,
        length=adagp.Epochs(9, 2),
        schedule=WarmUp(Ladder((Rung(1, 0),)), epochs=1),
        engine=adagp.EngineOptions(guard=adagp.Guard(GUARD_LIMIT[name]) if name in GUARD_LIMIT else adagp.Guard()),
    )
    inputs, targets = torch.randn(4, *image), torch.tensor([0, 1, 2, 3])
    weights = {f"{site.name}.weight" for site in trainer.survey.sites}
    assert len(weights) >= 4

    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    for _ in range(2):  # the first batch of a net that ends in dropout may leave a weight alone
        trainer.step(inputs, targets, F.cross_entropy)
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert weights <= changed

    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    result = trainer.step(inputs, targets, F.cross_entropy)
    assert result.phase is adagp.Phase.GP
    assert not result.guarded
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert changed == weights

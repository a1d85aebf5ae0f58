"""The duplex model: a backbone that nothing changes, a branch that learns, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adagp
from adagp.errors import ModelError, OptionError
from adagp.layers.sites import survey
from adagp.models.build import build_model
from adagp.papers.camel.duplex import DuplexOptions, build_duplex, find_stages

IMAGE = (3, 16, 16)


def built(seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return build_duplex(10, IMAGE, DuplexOptions(**{"channels": 4, "blocks": 2, **options}))


def test_stages_of_a_backbone_end_where_the_maps_get_smaller() -> None:
    found = find_stages(build_model("resnet20", classes=10), (3, 32, 32))
    assert found == [("layer1.2.relu", 16), ("layer2.2.relu", 32), ("layer3.2.relu", 64)]


@pytest.mark.parametrize("method", ["bp", "adagp"])
def test_training_leaves_the_backbone_alone(method: str) -> None:
    model = built()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    schedule: dict[str, Any] = {} if method == "bp" else {"schedule": "1:1", "warmup": 0}
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    trainer = adagp.attach(model, optimizer, method=adagp.NamedMethod(method), length=adagp.Epochs(1, 4), **schedule)
    model.train()
    for _ in range(4):
        trainer.step(torch.randn(4, *IMAGE), torch.randint(10, (4,)), nn.functional.cross_entropy)
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved
    assert all(name.startswith("branch.") for name in moved)
    assert all(one.grad is None for name, one in model.named_parameters() if name.startswith("backbone."))
    assert all(site.name.startswith("branch.") for site in survey(model).sites)
    assert len(survey(model).sites) == 1 + len(find_stages(model.get_submodule("backbone"), IMAGE)) + 2 * 4 + 1


def attach_to(model: nn.Module, method: str, **options: Any) -> adagp.Trainer:
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    return adagp.attach(model, optimizer, method=adagp.NamedMethod(method), length=adagp.Epochs(2, 4), **options)


HOOKING = ["feedback", "feedback_replay", "dni", "dni_decoupled", "topk", "fa", "dfa", "remap_program", "control"]
"""The methods that need the gradients at the outputs of layers."""


@pytest.mark.parametrize("method", HOOKING)
def test_a_method_that_needs_gradients_at_outputs_is_rejected_before_any_batch(method: str) -> None:
    source = {"feedback_replay": "feedback", "control": "feedback", "dni_decoupled": "dni"}.get(method, method)
    with pytest.raises(ModelError) as caught:
        attach_to(built(), method)
    assert str(caught.value) == (
        f"source '{source}' needs the gradients at the outputs of layers, which 'branch.chain' (ReversibleChain) does not "
        "have: it computes its layers again in the backward pass. Let it store the activations (recompute=False, on the "
        "command line --no-recompute), train by bp or adagp, or exclude its layers."
    )


@pytest.mark.parametrize("options", [{"recompute": False}, {"exclude": ["branch.chain"]}])
def test_what_the_message_says_helps(options: dict[str, Any]) -> None:
    exclude = options.pop("exclude", [])
    model = built(**options)
    trainer = attach_to(model, "feedback", exclude=exclude, schedule="1:1", warmup=0)
    for _ in range(4):
        trainer.step(torch.randn(4, *IMAGE), torch.randint(10, (4,)), nn.functional.cross_entropy)


def test_validate_says_so_once_and_excludes_the_chain() -> None:
    model = built()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    found = adagp.validate(model, optimizer, method="feedback", sample=torch.randn(4, *IMAGE))
    assert len(found.problems) == 1
    assert "'branch.chain' (ReversibleChain)" in found.problems[0]
    assert all(name.startswith("branch.chain.") for name in found.fixes["exclude"])
    assert (
        adagp.validate(model, optimizer, method="feedback", sample=torch.randn(4, *IMAGE), **found.fixes).problems == ()
    )


def test_a_block_starts_as_the_identity() -> None:
    model = built()
    weights = [one for name, one in model.named_parameters() if name.endswith("layers.2.weight")]
    assert len(weights) == 2
    assert not any(one.any() for one in weights)


def test_weights_of_another_run(tmp_path: Path) -> None:
    torch.manual_seed(5)
    backbone = build_model("resnet20", classes=7, image=IMAGE)
    torch.save(backbone.state_dict(), tmp_path / "model.pt")
    model = built(weights=str(tmp_path / "model.pt"))
    own = model.get_submodule("backbone").state_dict()
    assert all(torch.equal(own[name], one) for name, one in backbone.state_dict().items())
    assert model(torch.randn(2, *IMAGE)).shape == (2, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backbone_width": 0.5, "weights": "model.pt"},
            "the weights in 'model.pt' do not fit the backbone 'resnet20' of width 0.5: 'conv1.weight' is 16x3x3x3 in the "
            "file, and 8x3x3x3 in the model.",
        ),
        (
            {"backbone": "resnet14", "weights": "model.pt"},
            "the weights in 'model.pt' do not fit the backbone 'resnet14' of width 1: 'layer1.2.conv1.weight' is "
            "16x16x3x3 in the file, and not there in the model.",
        ),
        ({"weights": "nothing.pt"}, "there is no file of weights at 'nothing.pt'."),
        ({"weights": "list.pt"}, "'list.pt' holds no state_dict: a table of tensors by name, as a run's model.pt."),
        (
            {"backbone": "none", "trained": "all"},
            "with --backbone none only the branch is left and trained: leave out --backbone-weights and --trained.",
        ),
    ],
)
def test_what_does_not_fit(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(build_model("resnet20", classes=10, image=IMAGE).state_dict(), "model.pt")
    torch.save([1, 2], "list.pt")
    with pytest.raises(OptionError) as raised:
        built(**options)
    assert str(raised.value) == message


def test_a_file_that_is_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("text")
    with pytest.raises(OptionError, match=r"^cannot read the weights '.*text\.pt': "):
        built(weights=str(tmp_path / "text.pt"))


def test_code_is_no_backbone() -> None:
    """A run folder names its backbone; what it names must not be imported."""
    with pytest.raises(OptionError, match=r"^unknown backbone 'os:system'\. Choose from: "):
        built(backbone="os:system")


@pytest.mark.parametrize(
    ("options", "learning"),
    [({"trained": "classifier"}, 1), ({"trained": "all"}, 21), ({"backbone": "none"}, 10)],
)
def test_controls(options: dict[str, Any], learning: int) -> None:
    model = built(**options).train()
    assert model(torch.randn(2, *IMAGE)).shape == (2, 10)
    assert len(survey(model).sites) == learning
    statistics = [name for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d) and layer.training]
    assert bool(statistics) == (options.get("trained") == "all")

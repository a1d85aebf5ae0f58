"""Programs of torch.export are read to the same layers that tracing the model gives, and nothing in them is run."""

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp.errors import DataError
from adagp.tracing.exported_program import ALLOWED, _check_whole_numbers, _function, load_exported_program
from adagp.tracing.tracer import trace


class Mixed(nn.Module):
    """Convolutions, normalisation, a recurrent layer, attention, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.head.weight
        self.experts = nn.Parameter(torch.zeros(3, 8, 4))

    def forward(self, images: Tensor) -> Any:
        features = self.up(torch.relu(self.norm(self.stem(images))))
        tokens, _ = self.lstm(features.flatten(2).transpose(1, 2)[:, :5])
        tokens, _ = self.attention(tokens, tokens, tokens)
        return torch.einsum("btd,edf->btef", self.tied(self.head(tokens)), self.experts)


def save(model: nn.Module, path: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about recurrent layers
        torch.export.save(torch.export.export(model, (torch.zeros(4, 3, 8, 8),), **options), path)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(Mixed().eval(), tmp_path_factory.mktemp("programs") / "mixed.pt2")


@pytest.mark.medium
def test_the_layers_are_those_of_the_traced_model(program: Path) -> None:
    found, traced = load_exported_program(program, (3, 8, 8)), trace(Mixed(), (3, 8, 8), batch=4)
    assert found.array_layers == traced.array_layers
    assert (found.name, found.weights, found.macs) == ("mixed", traced.weights, traced.macs)


def test_a_batch_may_be_left_open(tmp_path: Path) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(192, 5)

        def forward(self, images: Tensor) -> Any:
            return self.linear(images.reshape(images.shape[0], 192)).view(images.shape[0], 5)

    path = save(Small(), tmp_path / "open.pt2", dynamic_shapes=({0: torch.export.Dim("n")},))
    assert load_exported_program(path).array_layers == trace(Small(), (3, 8, 8)).array_layers


def edited(source: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """Write the program again with another graph."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("models/model.json"):
                document = json.loads(content)
                change(document)
                content = json.dumps(document).encode()
            new.writestr(name, content)
    return target


def rename(target: str) -> Callable[[Any], None]:
    return lambda document: document["graph_module"]["graph"]["nodes"][0].update(target=target)


@pytest.mark.parametrize(
    "target", ["torch.ops.aten.from_file.default", "os.system", "torch.ops.mine.op.default", "torch.ops.aten.no.no"]
)
def test_only_operations_of_torch_are_run(target: str, program: Path, tmp_path: Path) -> None:
    path = edited(program, tmp_path / "foreign.pt2", rename(target))
    with pytest.raises(DataError) as raised:
        load_exported_program(path)
    assert str(raised.value) == f"{path}: its operation {target} is none of torch's own that run on shapes."


def test_what_is_no_program_is_rejected(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.pt2"
    with pytest.raises(DataError, match=r"^there is no file .*x\.pt2\.$"):
        load_exported_program(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(DataError, match=r"x\.pt2 is not a torch\.export program: File is not a zip file\.$"):
        load_exported_program(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(DataError, match=r"x\.pt2 is not a torch\.export program: there is no graph in it\.$"):
        load_exported_program(path)
    path.write_bytes(program.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"x\.pt2 is not a torch\.export program: "):
        load_exported_program(path)
    edited(program, path, lambda document: document["graph_module"].pop("signature"))
    with pytest.raises(DataError, match=r"x\.pt2 is damaged, or of another version of torch: KeyError: 'signature'\.$"):
        load_exported_program(path)


def test_another_input_is_rejected(program: Path) -> None:
    with pytest.raises(DataError) as raised:
        load_exported_program(program, (3, 9, 9))
    assert str(raised.value) == f"{program} was exported for samples of 3x8x8, not 3x9x9; export it again for others."


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.ljust.str",
        "torch.ops.aten._cudnn_rnn.default",
        "torch.ops.aten.__class__.default",
        "torch.ops.aten.linear",
        "torch.ops.prims.add.default",
        "os.system",
    ],
)
def test_operations_that_are_not_in_the_list(target: str) -> None:
    with pytest.raises(DataError) as caught:
        _function(target)
    assert str(caught.value) == f"its operation {target} is none of torch's own that run on shapes."


def test_all_operations_of_the_list_are_torchs() -> None:
    missing = [name for name in ALLOWED if not hasattr(torch.ops.aten, name)]
    assert missing == []


def test_arguments_out_of_proportion() -> None:
    for value in (2**63, [2**70], "a" * 65, [[1] * 100_001]):
        with pytest.raises(DataError):
            _check_whole_numbers("torch.ops.aten.zeros.default", value)
    _check_whole_numbers("torch.ops.aten.slice.Tensor", [0, 2**63 - 1, None, "none", [1.5, True]])

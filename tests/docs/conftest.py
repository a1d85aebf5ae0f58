"""A folder as the documents' readers have it: data sets, runs, models of their own; all of them tiny."""

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import WriteDevkit
from torch import nn

import adagp
from adagp.cli import main
from adagp.core.methods import METHODS
from adagp.core.registry import _providers
from adagp.hw import DATAFLOWS

ROOT = Path(__file__).parents[2]
OWN_MODEL = """
from torch import nn


def build(classes=10, **_):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes))
"""
RUNS = {
    "sparse": "--method bp --keep 0.5 --epochs 4 --lr 0.1 --momentum 0",
}
"""Runs that documents go on with without having made them: trained here once, on the digits, up to the accuracy asked for."""
SENTENCES = [
    (f"{one} dogs run to {two} men .", f"{one} hunde laufen zu {two} leuten .") for one in range(9) for two in range(9)
]


@pytest.fixture(scope="session")
def reader_template(tmp_path_factory: pytest.TempPathFactory, run_writer: Any) -> Path:
    """Return the folder that every document's reader gets a copy of."""
    root = tmp_path_factory.mktemp("reader") / "template"
    data = root / "data"
    data.mkdir(parents=True)
    for name, size, classes in (
        ("cifar10", 32, 10),
        ("cifar100", 32, 100),
        ("imagenette", 64, 10),
        ("tinyimagenet100", 64, 100),
    ):
        write_pictures(data / f"{name}.npz", size, classes)
    write_texts(data / "multi30k")
    write_onnx(root / "net.onnx")
    (root / "my").mkdir()
    (root / "my" / "models.py").write_text(OWN_MODEL)
    write = run_writer(root / "runs")
    for seed in range(2):
        write(f"bp-{seed}", method="bp", seed=seed)
        write(f"adagp-{seed}", seed=seed)
    for name, options in RUNS.items():
        with pytest.raises(SystemExit) as ended:
            main(["train", *options.split(), "--out", str(root / "runs" / name)])
        assert ended.value.code == 0
    return root


def write_pictures(path: Path, size: int, classes: int) -> None:
    """Write a data set of a few pictures."""
    draw = np.random.default_rng(0)
    sets: dict[str, Any] = {}
    for name, count in (("train", 128), ("test", classes)):
        sets[f"x_{name}"] = draw.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
        sets[f"y_{name}"] = np.arange(count, dtype=np.int64) % classes
    np.savez(path, **sets)


def write_texts(folder: Path) -> None:
    """Write a few pairs of sentences as Multi30k has them."""
    from adagp.data.translation import PARTS

    folder.mkdir()
    for part in PARTS.values():
        for place, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text("".join(f"{pair[place]}\n" for pair in SENTENCES))


def write_onnx(path: Path) -> None:
    """Write a model of one product."""
    from onnx import TensorProto, helper, numpy_helper, save

    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 12])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = numpy_helper.from_array(np.zeros((12, 5), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "graph", [given], [result], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


@pytest.fixture
def reader(reader_template: Path, tmp_path: Path, write_devkit: WriteDevkit, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a reader's own folder, which is the current one."""
    folder = tmp_path / "reader"
    shutil.copytree(reader_template, folder)
    shutil.copytree(ROOT / "examples", folder / "examples", dirs_exist_ok=True)
    thing = [("dog", (5, 5, 40, 40), False)]
    write_devkit({f"train-{number}": thing for number in range(32)}, {"val": thing}).rename(
        folder / "data" / "VOCdevkit"
    )
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a document registers."""
    for registry in (METHODS, DATAFLOWS):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    monkeypatch.setattr(
        "adagp.core.registry._providers", defaultdict(list, {kind: list(names) for kind, names in _providers.items()})
    )


@pytest.fixture
def own_objects(tmp_path: Path) -> dict[str, Any]:
    """Return what some documents call your own: a model, an optimizer, a loader, a loss, a folder."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    loader = [(torch.randn(8, 1, 4, 4), torch.randint(0, 3, (8,))) for _ in range(2)]
    return {
        "adagp": adagp,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loader": loader,
        "inputs": loader[0][0],
        "targets": loader[0][1],
        "loss_fn": nn.functional.cross_entropy,
        "folder": tmp_path,
    }

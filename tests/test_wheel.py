"""The wheel, installed where nothing but its own dependencies is: what is inside, what works, how what is missing is told."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import adagp

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
INSIDE = (
    "adagp/py.typed",
    "adagp/data/digits.npz",
    "adagp/data/DIGITS.md",
    "adagp/data/persuasion.txt",
    "adagp/data/PERSUASION.md",
    "adagp/hw/energy_table.csv",
    "adagp/program/report/templates/page.html.jinja",
    "adagp/papers/adagp/published.toml",
    "adagp/rtl/harness.cpp",
)
TOLD = {
    "plot {run}": "figures need matplotlib, which is not installed: pip install '.[plot]'.",
    "report {run}": "a report needs jinja2 and vl-convert-python; install them: pip install '.[report]'.",
    "train --model timm:resnet18": "torchvision is needed here and is not installed: pip install '.[models]'.",
    "train --model torchvision:resnet18": "torchvision is needed here and is not installed: pip install '.[models]'.",
    "train --model hf:config.json": "transformers is needed here and is not installed: pip install '.[hf]'.",
    "train --log tensorboard": "--log tensorboard needs tensorboard, which is not installed: pip install '.[tensorboard]'.",
    "train --log wandb": "--log wandb needs wandb, which is not installed: pip install '.[wandb]'.",
    "train --log mlflow": "--log mlflow needs mlflow, which is not installed: pip install '.[mlflow]'.",
    "simulate net.onnx": "ONNX files need onnx, which is not installed: pip install '.[onnx]'.",
    "rtl generate --out chip": (
        "the hardware is written in Amaranth, which is not installed. Install it with: pip install '.[rtl]'."
    ),
    "train --dataset imagenette --data-dir data --image-size 8": (
        "pictures are read by Pillow, which is not installed: pip install '.[detect]'."
    ),
}
"""Commands that need an extra, and what each says without it."""
ASK = """
import contextlib, io, json, sys
from adagp.cli import main

told = []
for line in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        try:
            main(line.split())
        except SystemExit as ended:
            told.append([ended.code, text.getvalue()])
for name in ("lightning", "transformers", "accelerate"):
    try:
        __import__(f"adagp.integrations.{name}")
    except Exception as error:
        told.append([type(error).__name__, str(error)])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this source, built without a network."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out, ROOT)
    (found,) = out.glob("adagp-*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path) -> Path:
    """Return the programs of an environment that has the wheel and what it requires without extras, by links to ours."""
    folder = wheel.parent / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        about = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = re.findall("^Requires-Dist: (.*)$", archive.read(about).decode(), re.MULTILINE)
    for one in required(lines, {}).values():
        tops = {path.parts[0] for path in one.files or [] if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (site / top).symlink_to(Path(str(one.locate_file(top))))
    run(sys.executable, "-m", "pip", "--quiet", "--python", interpreter, "install", "--no-deps", "--no-index", wheel)
    return folder / "bin"


def required(lines: list[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return the distributions that are required, without extras, and those that they require."""
    for line in lines:
        one = Requirement(line)
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found[one.name] = distribution(one.name)
            required(found[one.name].requires or [], found)
    return found


def run(*words: str | Path, folder: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_package_data_is_included(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = (name for name in names if name.endswith("/METADATA"))
        text = archive.read(about).decode()
    assert set(INSIDE) <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "tools", "examples", "benchmarks"))]
    assert "Provides-Extra: all" in text
    for minor in (11, 12, 13):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in text


def test_it_works_without_extras_and_errors_name_them(clean: Path, tmp_path: Path) -> None:
    assert run(clean / "adagp", "--version", folder=tmp_path).startswith(f"adagp {adagp.__version__} (")
    where = run(clean / "python", "-c", "import adagp; print(adagp.__file__)", folder=tmp_path)
    assert where.startswith(str(clean.parent))
    short = ("--epochs", "2", "--width", "0.25", "--method", "feedback", "--out", "run", "--json")
    summary = json.loads(run(clean / "adagp", "train", *short, folder=tmp_path))
    assert summary["test_accuracy"] > 0.3
    picture = tmp_path / "data" / "imagenette2" / "train" / "n01440764" / "one.jpg"
    for split in ("train", "val"):
        (picture.parents[2] / split / "n01440764").mkdir(parents=True)
        (picture.parents[2] / split / "n01440764" / "one.jpg").touch()
    (tmp_path / "net.onnx").touch()
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    asked = [line.format(run="run") for line in TOLD]
    told = json.loads(run(clean / "python", "-c", ASK, json.dumps(asked), folder=tmp_path))
    expected = [[2, f"error: {text}\n"] for text in TOLD.values()]
    expected += [
        [
            "UsageError",
            f"adagp.integrations.{name} needs {name}, which is not installed: pip install '.[{name}]'.",
        ]
        for name in ("lightning", "transformers", "accelerate")
    ]
    assert told == expected

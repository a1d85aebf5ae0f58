"""What all tests share."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import adagp

torch.set_num_threads(1)  # the tests run in several processes; small tensors gain nothing from threads
settings.register_profile("steady", deadline=None, derandomize=True)  # the same examples on any machine, slow or not
settings.load_profile("steady")

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def python() -> Python:
    """Return a function that runs a fresh interpreter, which finds the adagp under test, and returns how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    return run


Thing = tuple[str, tuple[float, float, float, float], bool]
"""Class, box (xmin, ymin, xmax, ymax; VOC's pixels, from 1), and whether it is difficult."""
WriteDevkit = Callable[..., Path]


def annotation(size: tuple[int, int], things: Sequence[Thing]) -> str:
    """Return VOC's XML for a picture of `size` (width, height)."""
    objects = "".join(
        f"<object><name>{kind}</name><difficult>{int(difficult)}</difficult><bndbox><xmin>{box[0]}</xmin>"
        f"<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
        for kind, box, difficult in things
    )
    width, height = size
    return f"<annotation><size><width>{width}</width><height>{height}</height></size>{objects}</annotation>"


@pytest.fixture
def write_devkit(tmp_path: Path) -> WriteDevkit:
    """Return a function that writes a devkit of small pictures below tmp_path, and returns its folder.

    `train` and `val` give the things in each picture by its name; a thing is painted as a rectangle in its class's colour.
    """
    from PIL import Image, ImageDraw

    def write(
        train: Mapping[str, Sequence[Thing]], val: Mapping[str, Sequence[Thing]], size: tuple[int, int] = (64, 48)
    ) -> Path:
        root = tmp_path / "VOCdevkit" / "VOC2012"
        for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for split, pictures in (("train", train), ("val", val)):
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in pictures))
            for name, things in pictures.items():
                (root / "Annotations" / f"{name}.xml").write_text(annotation(size, things))
                picture = Image.new("RGB", size, (30, 60, 90))
                for kind, (left, top, right, bottom), _ in things:
                    colour = tuple(ord(letter) * 2 % 256 for letter in kind[:3])
                    ImageDraw.Draw(picture).rectangle((left - 1, top - 1, right - 1, bottom - 1), fill=colour)
                picture.save(root / "JPEGImages" / f"{name}.jpg", quality=95)
        return root.parent

    return write

"""What importing and building load, seen from a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

import adagp.models

pytestmark = pytest.mark.medium

SOURCE = Path(adagp.models.__file__).parents[2]
HEAVY = "print(sorted({'PIL', 'timm', 'torch', 'torchvision'} & set(sys.modules)))"


def run(code: str) -> str:
    start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); "
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import adagp.models", "[]"),
        ("from adagp.data import load_images; load_images('digits')", "[]"),
        (
            "from adagp.models import build_model; build_model('digits_cnn', classes=2, image=(1, 8, 8))",
            "['torch']",
        ),
    ],
)
def test_only_what_is_needed_is_imported(code: str, loaded: str) -> None:
    assert run(f"{code}; {HEAVY}") == loaded


def test_torchvision_models_do_not_import_timm() -> None:
    code = "from adagp.models import build_model; build_model('resnet14', classes=2); "
    assert run(code + "print('torchvision' in sys.modules, 'timm' in sys.modules)") == "True False"

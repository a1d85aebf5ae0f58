"""Run folders written by hand, without training."""

from pathlib import Path
from typing import Any

import pytest

from adagp.report.page import write_report


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory, run_writer: Any) -> Path:
    """Return a folder with runs of three methods, three seeds each."""
    root = tmp_path_factory.mktemp("report") / "study"
    write = run_writer(root)
    for seed in range(3):
        write(f"bp-{seed}", method="bp", seed=seed, best=0.9 + 0.01 * seed)
        write(f"adagp-{seed}", seed=seed, best=0.85 + 0.02 * seed)
        write(f"remap-{seed}", method="remap", seed=seed, best=0.8 + 0.01 * seed)
    return root


@pytest.fixture(scope="session")
def study_page(study: Path) -> Path:
    """Return the page about the study."""
    out = study.parent / "report.html"
    assert write_report([study], out) == 9
    return out

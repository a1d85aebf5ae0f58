"""What README says of installing is what the package says of itself, in the order in which a newcomer needs it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_CONTRIBUTORS = {"dev", "docs"}
WORDS = ("site", "BP batch, GP batch", "ladder")


def test_every_extra_is_documented() -> None:
    table = [line for line in README.splitlines() if line.startswith("| `")]
    for extra in PROJECT["optional-dependencies"].keys() - FOR_CONTRIBUTORS:
        assert any(f"`{extra}`" in line.split("|")[1] for line in table), extra


def test_required_versions_are_documented() -> None:
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in README
    (torch,) = (one for one in PROJECT["dependencies"] if one.startswith("torch"))
    assert f"PyTorch {torch.removeprefix('torch>=')} or newer" in README


def test_the_virtual_environment_is_activated_before_adagp_runs() -> None:
    called = re.search(r"^adagp ", README, re.MULTILINE)
    assert called is not None
    assert README.index("make demo") < README.index("source .venv/bin/activate") < called.start()


def test_project_terms_are_explained() -> None:
    glossary = README.partition("\n## Words\n")[2].partition("\n## ")[0]
    for word in WORDS:
        assert re.search(rf"^\| {word} \| \w", glossary, re.MULTILINE), word

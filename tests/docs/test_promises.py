"""Every promise names its test."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPICS = (
    *("cache of hardware builds", "Liberty file", "Waveforms", "configuration of transformers", "ONNX files"),
    *("exported programs", "folders of loggers", "CPU threads"),
)


def test_every_promise_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 25
    wrong = []
    for promise, tests in rows:
        names = re.findall(r"`(tests/[\w/]+\.py)`", tests)
        modules = [f"{name.replace('.', '/')}.py" for name in re.findall(r"`python -m (tests[\w.]+)", tests)]
        if "the same" not in tests and (not names or not all((ROOT / name).is_file() for name in (*names, *modules))):
            wrong.append(promise)
    assert wrong == []
    assert [topic for topic in TOPICS if not any(topic in promise for promise, _ in rows)] == []


def test_the_security_page_points_to_the_tests() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    assert "[docs/reliability.md](docs/reliability.md) names the tests" in text

"""A finished comparison, read from its folder and shown in a notebook."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.program.compare.test_tables import document, record

from adagp.errors import RunError
from adagp.program.compare.finished import read_comparison


def write(folder: Path, content: Any) -> Path:
    (folder / "report.json").write_text(json.dumps(content))
    return folder


def test_tables_as_text_and_as_html(tmp_path: Path) -> None:
    found = read_comparison(write(tmp_path, document()))
    assert str(found).startswith("# net on cifar10: bp, a|b\n\n## net on cifar10, equal batches: 600 each\n")
    page = found._repr_html_()
    assert page.count("<table>") == len(found.sheets) == 5
    assert '<td style="text-align: right">70.00 ± 1.00</td>' in page


def test_names_of_methods_and_reasons_are_escaped(tmp_path: Path) -> None:
    methods = {"bp": record(0.7), "<img src=x>": record(0.6)}
    failed = [{"name": "<b>", "reason": "<i>&", "log": ""}]
    hostile = document(model="<script>", regimes={"batches": {"methods": methods}}, failed=failed)
    page = read_comparison(write(tmp_path, hostile))._repr_html_()
    assert re.findall(r"<(?:script|img|b|i)\b", page) == []
    assert "&lt;script&gt; on cifar10" in page
    assert "&lt;img src=x&gt;" in page
    assert "failed: &lt;b&gt;: &lt;i&gt;&amp;" in page


def test_what_is_no_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError) as missing:
        read_comparison(tmp_path / "nowhere")
    assert str(missing.value) == f"'{tmp_path / 'nowhere'}' holds no finished comparison: it has no report.json."
    wrong_ones: list[Any] = [[], {}, {"regimes": 3}, document(regimes={"batches": {"methods": {"bp": {}}}})]
    for content in wrong_ones:
        with pytest.raises(RunError) as wrong:
            read_comparison(write(tmp_path, content))
        assert str(wrong.value) == f"'{tmp_path}' holds a report.json that is not the report of a comparison."

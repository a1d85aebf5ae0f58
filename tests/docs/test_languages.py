"""Every code block says what it is written in, and its commands are such as a shell can read."""

from pathlib import Path

import pytest
from tests.docs.blocks import DOCUMENTS, LANGUAGES, Block, blocks, commands, of_language


def test_every_block_has_a_language() -> None:
    unknown = [block.place for document in DOCUMENTS for block in blocks(document) if block.language not in LANGUAGES]
    assert unknown == [], f"begin each block with ``` and one of {', '.join(LANGUAGES)}"


def test_shell_blocks_have_commands(tmp_path: Path) -> None:
    shell = [block for document in DOCUMENTS for block in of_language(document, "sh")]
    assert [block.place for block in shell if not commands(block, tmp_path)] == []


def test_an_unknown_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="curl: No such file or directory|curl: command not found"):
        commands(Block("a document", 1, "sh", "curl https://example.org\n"), tmp_path)
    with pytest.raises(AssertionError, match="unbound variable"):
        commands(Block("a document", 1, "sh", "adagp train $O\n"), tmp_path)
    assert commands(Block("a", 1, "sh", "for one in a 'b c'; do adagp x $one \"\" \\\n  y; done # z\n"), tmp_path) == [
        ["adagp", "x", "a", "", "y"],
        ["adagp", "x", "b", "c", "", "y"],
    ]

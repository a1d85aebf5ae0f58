"""The code blocks of the documents, and the commands of their shell blocks as a shell understands them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md")
DOCUMENTS = (*PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
LANGUAGES = ("python", "sh", "toml", "text")
"""Blocks of Python and shell are run; `toml` is read; `text` is what a program prints, or a formula."""
PROGRAMS = ("adagp", "torchrun", "make", "pip", "python", "python3", "git", "source", "cd")
"""What a document may call. A shell block with anything else fails: nothing else is there."""
SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "host[1-2]"}
"""What a job of SLURM finds in its environment; its programs are below, as far as documents call them."""
RECORD = "\n".join(
    [
        'record() { printf \'%s\\0\' "$#" "$@" >>"$RECORDED"; }',
        *(f'{name}() {{ record {name} "$@"; }}' for name in PROGRAMS),
        'srun() { "$@"; }',  # on one node
        "scontrol() { printf 'host1\\nhost2\\n'; }",
        "head() { read -r line; printf '%s\\n' \"$line\"; }",
        "PATH=",
    ]
)


@dataclass(frozen=True)
class Block:
    """A block of a document; `line` is the first line of its code, counted from 1."""

    document: str
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.document}:{self.line}"


def blocks(document: str) -> list[Block]:
    """Return all code blocks of a document, indented ones too: these have no language."""
    text = (ROOT / document).read_text("utf-8")
    found = []
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            fenced = token.type == "fence"
            found.append(
                Block(document, token.map[0] + 1 + fenced, token.info.strip() if fenced else "", token.content)
            )
    return found


def of_language(document: str, language: str) -> list[Block]:
    """Return the blocks of a document in one language."""
    return [block for block in blocks(document) if block.language == language]


def commands(block: Block, folder: Path) -> list[list[str]]:
    """Return the words of every command that bash would run for a shell block, with loops and variables carried out."""
    recorded = folder / "recorded"
    recorded.write_bytes(b"")
    ended = subprocess.run(
        ["bash", "-eu", "-c", f"{RECORD}\n{block.code}"],
        cwd=folder,
        env={"RECORDED": str(recorded), **SLURM},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), f"{block.place}: {ended.stderr}"
    left = recorded.read_text("utf-8").split("\0")[:-1]
    found = []
    while left:
        count = int(left.pop(0))
        found.append(left[:count])
        del left[:count]
    return found

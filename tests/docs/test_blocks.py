"""Every code block of the README and of docs/ is run, in order, in a folder such as a reader has.

What is too long is stopped where its work begins, and what cannot run here is parsed: `stopping.py` lists it with the reasons.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from types import CodeType, ModuleType
from typing import Any, NoReturn

import pytest
import torch
from packaging.requirements import Requirement
from tests.conftest import epoch_row
from tests.docs.blocks import DOCUMENTS, ROOT, Block, commands, of_language
from tests.docs.stopping import PARSED, PYTHON, STOPPED, WORK, reason
from tests.marks import slow
from tests.program.compare.test_worth import document as worth_document

from adagp.cli import main
from adagp.program.compare.worth import Price, worth_record
from adagp.program.run.metrics import ACCURACY
from adagp.program.train.loop import Loop
from adagp.program.train.session import Session

pytestmark = pytest.mark.medium

OF_YOUR_OWN = (
    "README.md",
    "docs/loop.md",
    "docs/training.md",
    "docs/methods/fast.md",
    "docs/methods/control.md",
    "docs/guides/processes.md",
)
"""Documents whose blocks of Python begin with a model of yours; all others must be complete in themselves."""
LONG = (
    "docs/guides/source.md",
    "docs/guides/add-a-paper.md",
    "docs/guides/choose.md",
    "docs/guides/accelerator.md",
    "docs/guides/many-chips.md",
    "docs/methods/feedback.md",
    "docs/methods/remap_program.md",
    "docs/rtl.md",
    "docs/cheat-sheet.md",
    "docs/training.md",
    "docs/measured/campaign/README.md",
)
"""Documents whose commands take five seconds or more; those of the README take as long, but are what people try first."""
Words = Sequence[str]
Carry = Callable[[Words], None]


class WorkBegins(BaseException):
    """Raised where the work of a command would begin; no handler of errors catches it."""


def with_language(language: str) -> list[str]:
    return [document for document in DOCUMENTS if of_language(document, language)]


def test_toml_blocks_parse() -> None:
    for document in DOCUMENTS:
        for block in of_language(document, "toml"):
            tomllib.loads(block.code)


@pytest.mark.usefixtures("own_registries", "reader")
@pytest.mark.parametrize("document", with_language("python"))
def test_python_blocks_run(document: str, own_objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_document")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where a method of the document's own is looked for
    vars(module).update(own_objects if document in OF_YOUR_OWN else {})
    codes = [compile_block(block) for block in of_language(document, "python")]
    if document in PYTHON:
        place, name, _ = PYTHON[document]
        monkeypatch.setattr(import_module(place), name, begin)
    with pytest.raises(WorkBegins) if document in PYTHON else nullcontext():
        for code in codes:
            exec(code, vars(module))
    if "log" in vars(module):
        module.log.on_end()  # the document says so in words


def compile_block(block: Block) -> CodeType:
    """Compile a block such that an error names the document's line."""
    return compile("\n" * (block.line - 1) + block.code, str(ROOT / block.document), "exec")


@pytest.mark.parametrize("document", [slow(name) if name in LONG else name for name in with_language("sh")])
def test_shell_blocks_run(document: str, reader: Path, tmp_path: Path, carry: Carry) -> None:
    for block in of_language(document, "sh"):
        for words in commands(block, tmp_path):
            try:
                carry(words)
            except (AssertionError, pytest.fail.Exception) as failure:
                pytest.fail(f"{block.place}: {' '.join(words)}\n{failure}")


@pytest.fixture
def carry(
    reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], python: Callable[..., Any]
) -> Carry:
    """Return a function that does what a command of a document says, as far as it may go."""
    monkeypatch.setattr(sys, "path", [str(reader), *sys.path])
    monkeypatch.setenv("ADAGP_CACHE", str(reader / "cache"))

    def run(words: Words) -> None:
        program, *rest = words
        if program == "adagp" and "--plugin" in rest:  # which would register its things in the process of the tests
            ended = python("-m", "adagp", *rest)
            assert ended.returncode == 0, ended.stderr
        elif program == "adagp":
            run_adagp(rest, monkeypatch, capsys)
        elif program == "torchrun":
            torchrun(rest)
        else:
            OTHERS[program](rest)

    return run


def run_adagp(words: Words, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Call the program; to the end, up to its work, or to the end of its parser."""
    if reason(PARSED, ["adagp", *words]):
        parse(words)
        return
    stopped = reason(STOPPED, ["adagp", *words])
    with monkeypatch.context() as patches:
        patches.setattr(sys, "argv", ["adagp", *words])
        for place, name in WORK if stopped else ():
            module, _, kind = place.partition(":")
            owner: Any = import_module(module)
            patches.setattr(getattr(owner, kind) if kind else owner, name, begin_training if kind else begin)
        capsys.readouterr()
        with pytest.raises((SystemExit, WorkBegins)) as ended:
            main()
    if isinstance(ended.value, WorkBegins):
        leave_a_comparison(words)
        return
    assert not stopped, "it ended before its work began:\n" + capsys.readouterr().err
    assert isinstance(ended.value, SystemExit)
    assert ended.value.code == 0, capsys.readouterr().err


def begin(*_: Any, **__: Any) -> NoReturn:
    raise WorkBegins


def begin_training(session: Session, loop: Loop, *_: Any) -> NoReturn:
    """Stop before the first batch, and leave the run as the commands after it expect it: finished."""
    folder, config = loop.folder, session.config
    torch.save(loop.trainer.model.state_dict(), folder.path / "model.pt")
    folder.write_rows([epoch_row(epoch, config, ACCURACY, 0.9, 0.1) for epoch in range(config.epochs)])
    folder.write_json("summary.json", {"method": config.method, "test_accuracy": 0.9})
    folder.release()
    raise WorkBegins


def leave_a_comparison(words: Words) -> None:
    """Leave what `adagp worth` reads, where a comparison with a curve was stopped before its first process."""
    if words[0] == "compare" and "--curve" in words:
        folder = Path(words[list(words).index("--out") + 1])
        rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = worth_record(
            worth_document(), ACCURACY, {"feedback": {"accelerator": Price(0.3, 0.02, None, "max,ws,12x15")}}
        )
        named = {
            "model": "net",
            "dataset": "digits",
            "methods": ["bp", "feedback"],
            "regimes": {"batches": {"methods": {}}},
        }
        (folder / "report.json").write_text(json.dumps({"worth": found, **named}))


def parse(words: Words) -> None:
    """Let the program's parser read a command line, and check each option by its own declaration."""
    import typer

    from adagp.cli import make_app

    command, left = typer.main.get_command(make_app()), list(words)
    while hasattr(command, "commands"):
        command = command.commands[left.pop(0)]
    command.make_context("adagp", left)


def torchrun(words: Words) -> None:
    """Read a command line of torchrun by its own parser, and what it starts by ours."""
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(list(words))
    assert given.module
    assert given.training_script == "adagp"
    assert reason(PARSED, ["torchrun", *words])
    parse(given.training_script_args)


def make(words: Words) -> None:
    """Look for the targets in the Makefile: what they do is what continuous integration does."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


def pip(words: Words) -> None:
    """Read the requirements, and look for the extras among those that there are."""
    assert words[0] == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    known = set(project["optional-dependencies"])
    for word in words[1:]:
        if not word.startswith("-"):
            wanted = Requirement(f"adagp{word[1:]}" if word.startswith(".") else word)
            assert wanted.name != "adagp" or wanted.extras <= known, f"unknown extras: {wanted.extras - known}"


def python(words: Words) -> None:
    """Look for the module or the file that is to be run; examples and benchmarks have tests of their own."""
    if words[0] == "-m":
        assert find_spec(words[1]) is not None
        if words[1] == "pip":
            pip(words[2:])
    else:
        assert (ROOT / words[0]).is_file()


def nothing(words: Words) -> None:
    """Moves about, or makes ready the reader's own shell: there is nothing of ours to try."""
    assert words


OTHERS: dict[str, Callable[[Words], None]] = {
    "make": make,
    "pip": pip,
    "python": python,
    "python3": python,
    "git": nothing,
    "source": nothing,
    "cd": nothing,
}


@pytest.mark.parametrize("table", [STOPPED, PARSED], ids=["stopped", "parsed"])
def test_every_listed_exception_is_used(table: dict[str, str], tmp_path: Path) -> None:
    found = [
        words for document in DOCUMENTS for block in of_language(document, "sh") for words in commands(block, tmp_path)
    ]
    lines = [" ".join(words) for words in found]
    assert [pattern for pattern in table if not any(re.match(pattern, line) for line in lines)] == []

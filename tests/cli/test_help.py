import inspect
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import adagp
from adagp.cli import COMMANDS, app, load_command, make_app
from adagp.cli.options import EXAMPLES, USUAL
from adagp.program.run import TrainConfig

PROGRAM: Any = typer.main.get_command(app)
ALL_COMMANDS = PROGRAM.commands | {f"rtl {name}": one for name, one in PROGRAM.commands["rtl"].commands.items()}


@pytest.mark.medium
@pytest.mark.parametrize("words", [["--help"], ["methods"], ["no-such-command"]])
def test_a_command_loads_only_what_it_needs(python: Callable[..., Any], words: list[str]) -> None:
    heavy = ("torch", "torchvision", "timm", "matplotlib", "numpy", "adagp.hw", "adagp.rtl", "adagp.cli.train")
    needed = ("adagp.hw",) if words == ["methods"] else ()
    program = (
        "import atexit, sys; from adagp.cli import main; "
        f"atexit.register(lambda: print('loaded:', *(name for name in {heavy!r} if name in sys.modules))); main({words!r})"
    )
    ended = python("-c", program)
    assert "Traceback" not in ended.stderr
    assert ended.stdout.splitlines()[-1].split()[1:] == list(needed)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "rtl"])
def test_the_list_of_commands_has_the_help_of_their_functions(name: str) -> None:
    command, _ = load_command(name)
    assert inspect.getdoc(command) == COMMANDS[name].help


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_answers(arguments: list[str]) -> None:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0
    assert "Usage: " in ended.output


def test_every_option_of_a_run_can_be_given() -> None:
    output = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", "--help-all"]).output
    for name in TrainConfig().as_dict():
        assert f"--{name.replace('_', '-')} " in output


@pytest.mark.parametrize("name", USUAL)
def test_short_help_has_the_usual_options_and_examples(name: str) -> None:
    short, whole = (command_line(name, flag, columns=80) for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) < 80 < len(whole.splitlines())
    assert f"adagp {EXAMPLES[name][0].split()[1]}" in short.partition("Examples:")[2]
    known = {parameter.name: parameter for parameter in PROGRAM.commands[name].params}
    assert 10 <= len(USUAL[name]) <= 12
    for option in USUAL[name]:
        assert known[option].hidden is False
        assert known[option].opts[0] in short or known[option].param_type_name == "argument"
    assert "--help-all" in short


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_of_the_help_are_read(line: str) -> None:
    _, name, *words = line.split()
    if name == "rtl":
        name, *words = f"rtl {words[0]}", *words[1:]
    ALL_COMMANDS[name].make_context(name, words)


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted({*ALL_COMMANDS, ""} - {"rtl"}))
def test_help_fits_80_columns_with_no_name_cut(name: str) -> None:
    for flag in ("--help", "--help-all") if name in USUAL else ("--help",):
        written = command_line(*name.split(), flag, columns=80)
        assert "…" not in written
        assert max(map(len, written.splitlines())) <= 80
    text = " ".join(written.replace("│", " ").split())
    for example in EXAMPLES.get(name, ["Begin with: adagp demo."]):
        assert example in text
    for parameter in ALL_COMMANDS[name].params if name else ():
        flags = [*parameter.opts, *(parameter.secondary_opts if parameter.default is not False else ())]
        assert parameter.param_type_name == "argument" or all(flag in text for flag in flags)


def test_every_command_is_there() -> None:
    assert list(PROGRAM.commands) == list(COMMANDS)
    listed: Any = typer.main.get_command(make_app([]))
    assert list(listed.commands) == list(COMMANDS)
    for name, command in listed.commands.items():
        assert command.get_short_help_str() == PROGRAM.commands[name].get_short_help_str()


@pytest.mark.parametrize("name", sorted(ALL_COMMANDS))
def test_every_option_has_a_line_of_help_and_shows_its_default(name: str) -> None:
    command = ALL_COMMANDS[name]
    context = typer.Context(command, info_name=name)
    assert command.help
    for parameter in command.params:
        if parameter.name == "help":
            continue
        _, text = parameter.get_help_record(context) or ("", "")
        assert text.partition("  [")[0].strip().endswith("."), f"{name} {parameter.name} says nothing of itself"
        if parameter.param_type_name == "option" and not parameter.required:
            assert "[default: " in text, f"{name} {parameter.name} does not show its default"


def test_train_and_compare_share_the_options_of_runs() -> None:
    train, compare = (
        {parameter.name: parameter for parameter in PROGRAM.commands[name].params} for name in ("train", "compare")
    )
    shared = [name for name, parameter in TrainConfig.__dataclass_fields__.items() if name in compare and name in train]
    assert {"dataset", "model", "lr", "batch_size", "optimizer", "ratio"} <= set(shared)
    for name in shared:
        assert train[name].help == compare[name].help
        assert train[name].opts == compare[name].opts


def command_line(*words: str, columns: int = 100) -> str:
    ended = CliRunner(env={"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}).invoke(app, list(words))
    assert ended.exit_code == 0
    return ended.output


@pytest.mark.medium
@pytest.mark.parametrize("name", ["", *sorted(ALL_COMMANDS)])
def test_a_flag_shows_no_type_and_h_is_help(name: str) -> None:
    text = command_line(*name.split(), "--help")
    assert text == command_line(*name.split(), "-h")
    assert "bool" not in text
    assert "BOOLEAN" not in text


def test_the_version() -> None:
    found = re.fullmatch(r"adagp (\S+) \(torch (\S+), Python (\S+)\)\n", command_line("--version"))
    assert found is not None
    assert found[1] == adagp.__version__
    assert found[2].split("+")[0] == metadata.version("torch").split("+")[0]


def completed(line: str) -> list[str]:
    """Return what bash would be offered for the last word of a command line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_ADAGP_COMPLETE": "complete_bash"}
    ended = CliRunner(env=words).invoke(app, [], prog_name="adagp")
    assert ended.exit_code == 0
    return ended.output.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("adagp re", ["report", "reproduce"]),
        ("adagp train --warmup", ["--warmup", "--warmup-batches"]),
        ("adagp train --method feedb", ["feedback", "feedback_replay"]),
        ("adagp compare --methods bp,sk", ["bp,skip"]),
        ("adagp train --optimizer ada", ["adam", "adamw"]),
        ("adagp models vgg13", ["vgg13", "vgg13_bn"]),
        ("adagp simulate six", ["six_conv_vgg", "six_conv_vgg_gap"]),
        ("adagp simulate vgg13 --dataset cifar", ["cifar10", "cifar100"]),
        ("adagp reproduce adagp-figure17", ["adagp-figure17"]),
    ],
)
def test_the_shell_completes_names(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        *(
            (name, "--batch-size")
            for name in ("train", "compare", "simulate", "sweep", "explore", "pipeline", "rtl run")
        ),
        *((name, "--image-size") for name in ("train", "compare", "simulate", "explore", "pipeline", "models")),
    ],
)
def test_the_same_things_have_the_same_names(name: str, flag: str) -> None:
    """Other ways to write them may be there besides."""
    assert [one for one in ALL_COMMANDS[name].params if one.opts[0] == flag]
    for one in ALL_COMMANDS[name].params:
        assert flag.replace("-size", "") not in one.opts or flag in one.opts

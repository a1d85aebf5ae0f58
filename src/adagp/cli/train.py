"""`adagp train`: one training run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli.options import DataFolder, Download, Json
from adagp.core.options import Option, option, switch
from adagp.errors import OptionError, RunError
from adagp.program.loggers import require_loggers
from adagp.program.run import RunFolder, TrainConfig
from adagp.program.run.config import CODE, PARALLEL, help_text, known_options, read_toml
from adagp.program.run.folder import to_json, unused_path
from adagp.program.run.record import MOST_THREADS

if TYPE_CHECKING:
    from adagp.program.train.loop import Loop
    from adagp.program.train.session import Session

_RUN = "Run"


def more_options(command: str) -> Sequence[Option]:
    """Return the options of a run, including those of all methods."""
    return [replace(option, help=help_text(option)) for option in known_options().values()]


def train(
    overrides: dict[str, Any],
    data_dir: DataFolder = None,
    download: Download = False,
    out: Annotated[Path | None, option("Run folder.", panel=_RUN, unset="a new one in runs/")] = None,
    resume: Annotated[Path | None, option("Continue the run in this folder.", panel=_RUN, unset="none")] = None,
    force: Annotated[bool, switch("--force", "Overwrite the run in --out.", panel=_RUN)] = False,
    config: Annotated[
        Path | None,
        option("Read options from a TOML file; the command line takes precedence.", panel=_RUN, unset="none"),
    ] = None,
    threads: Annotated[
        int | None,
        option(
            "CPU threads.",
            panel=_RUN,
            unset="torch's choice; on --resume the recorded number",
            low=1,
            high=MOST_THREADS,
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float, option("Write a checkpoint after every epoch, and at least every N seconds.", panel=_RUN, low=0)
    ] = 60.0,
    timeout: Annotated[
        float,
        option(
            "Stop a parallel run if a process does not answer for this many seconds.",
            panel=PARALLEL,
            low=1,
            high=86_400,
            allowed="1 to 86400 seconds",
        ),
    ] = 300.0,
    trust: Annotated[
        bool, switch("--trust", "Allow the user code that is named in the folder of --resume to run.", panel=_RUN)
    ] = False,
    log: Annotated[
        str | None,
        option(
            "Loggers, separated by commas: tensorboard, csv, wandb (offline), mlflow (files).", panel=_RUN, unset="none"
        ),
    ] = None,
    tensorboard: Annotated[bool, switch("--tensorboard", "Same as --log tensorboard.", panel=_RUN)] = False,
    as_json: Json = False,
) -> None:
    """Train a model with predicted gradients, or with plain backprop for comparison."""
    if config is not None:
        overrides = read_toml(config) | overrides
    _check_options(overrides, out, resume, force=force, trust=trust)
    loggers = list(dict.fromkeys((log.split(",") if log else []) + (["tensorboard"] if tensorboard else [])))
    if loggers:
        require_loggers(loggers)
    environment: dict[str, Any] = {"data_dir": data_dir, "download": download, "threads": threads}
    environment |= {"checkpoint_seconds": checkpoint_seconds, "timeout": timeout}
    if resume is None:
        begin = partial(_start, TrainConfig.from_dict(overrides, "command line"), environment, out, force)
    else:
        begin = partial(_resume, RunFolder.open(resume), overrides, environment, trust)
    from adagp.cli.terminal import busy

    with busy("loading torch…") as say:
        from adagp.cli.progress import run_with_progress

        say("preparing the run…")
        session, loop = begin()

    summary = run_with_progress(session, loop, log=loggers)
    if as_json and summary:
        typer.echo(to_json(summary, indent=2))


def _check_options(
    overrides: Mapping[str, Any], out: Path | None, resume: Path | None, *, force: bool, trust: bool
) -> None:
    if resume is not None:
        if out is not None or force:
            raise OptionError("--resume continues in the run's folder; leave out --out and --force.")
    elif "epochs" in overrides and "batches" in overrides:
        raise OptionError("--epochs and --batches both set the length of the run; give one of them.")
    elif trust:
        raise OptionError("--trust needs --resume: it allows the user code that is named in the run folder to run.")


def _start(options: TrainConfig, environment: dict[str, Any], out: Path | None, force: bool) -> "tuple[Session, Loop]":
    name = f"{options.dataset}-{options.model}-{options.method}-s{options.seed}".replace("/", "_").replace(":", "_")
    session = _session(options, environment)
    folder = session.agreed_folder(out or unused_path(Path("runs") / name))
    return session, session.resume(folder) if restarted(folder) else session.start(folder, force=force)


def restarted(folder: Path) -> bool:
    """Return whether torchrun restarted this run after a process died; it then continues from its checkpoint."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if not count.isdecimal():
        raise OptionError(
            f"the environment variable TORCHELASTIC_RESTART_COUNT is '{count}'; it must be a whole number."
        )
    return int(count) > 0 and RunFolder(folder).begun


def _session(options: TrainConfig, environment: dict[str, Any]) -> "Session":
    if options.parallel == "none":
        from adagp.program.train.session import Session

        return Session(options, **{name: value for name, value in environment.items() if name != "timeout"})
    from adagp.program.distributed.session import ParallelSession

    return ParallelSession(options, **environment)


def _resume(
    folder: RunFolder, overrides: dict[str, Any], environment: dict[str, Any], trust: bool
) -> "tuple[Session, Loop]":
    from adagp.program.train.session import read_config

    saved, saved_data_dir = read_config(folder, [str(overrides.get(option)) for option in CODE], trust=trust)
    check_unchanged(saved, overrides, folder.path)
    environment["data_dir"] = environment["data_dir"] or saved_data_dir
    session = _session(saved, environment)
    return session, session.resume(folder.path)


def check_unchanged(saved: TrainConfig, overrides: dict[str, Any], path: Path) -> None:
    """Check that a run is resumed with the options that it was started with."""
    previous = saved.as_dict()
    changed = [
        f"{name} (was {previous.get(name)}, now {new})" for name, new in overrides.items() if previous.get(name) != new
    ]
    if changed:
        raise RunError(
            f"the run in '{path}' was started with other options: {', '.join(changed)}. "
            "Resume it without them, or start a new run with --out."
        )

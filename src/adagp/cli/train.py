"""`adagp train`: one training run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.errors import OptionError, RunError
from adagp.run import METHODS, RunFolder, TrainConfig
from adagp.run.config import read_toml
from adagp.run.folder import to_json, unused_path

if TYPE_CHECKING:
    from adagp.train.loop import Loop
    from adagp.train.session import Session

_TRAINING, _PREDICTOR, _PARALLEL, _RUN = "Training", "Prediction", "Several processes", "Run"


def train(
    dataset: Annotated[
        str | None, typer.Option(help="Data set (digits is built in).", rich_help_panel=_TRAINING)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name, or package.module:function.", rich_help_panel=_TRAINING)
    ] = None,
    width: Annotated[
        float | None, typer.Option(help="Factor on the model's channels.", rich_help_panel=_TRAINING)
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(help="Height and width in pixels that pictures are brought to.", rich_help_panel=_TRAINING),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(METHODS)}.", rich_help_panel=_TRAINING)
    ] = None,
    epochs: Annotated[int | None, typer.Option(rich_help_panel=_TRAINING)] = None,
    batches: Annotated[
        int | None, typer.Option(help="Length of the run in batches, instead of epochs.", rich_help_panel=_TRAINING)
    ] = None,
    batch_size: Annotated[int | None, typer.Option(rich_help_panel=_TRAINING)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the model.", rich_help_panel=_TRAINING)] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adam or adamw.", rich_help_panel=_TRAINING)] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.", rich_help_panel=_TRAINING)] = None,
    weight_decay: Annotated[float | None, typer.Option(rich_help_panel=_TRAINING)] = None,
    lr_scheduler: Annotated[
        str | None, typer.Option(help="plateau, multistep, cosine, linear or none.", rich_help_panel=_TRAINING)
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share of the target spread over all classes.", rich_help_panel=_TRAINING)
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Word pieces to learn (translation).", rich_help_panel=_TRAINING)
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Hypotheses of beam search for BLEU (translation).", rich_help_panel=_TRAINING)
    ] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=_TRAINING)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...", rich_help_panel=_TRAINING)] = None,
    compile: Annotated[  # noqa: A002  # the option's name
        bool | None,
        typer.Option("--compile", help="Compile the model with torch.compile.", rich_help_panel=_TRAINING),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(help="Under torchrun: data, or pipeline:gpipe, :dapple or :chimera.", rich_help_panel=_PARALLEL),
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Parts of a batch in a pipeline.", rich_help_panel=_PARALLEL)
    ] = None,
    check_every: Annotated[
        int | None,
        typer.Option(help="Compare the processes' copies every N batches; 0: never.", rich_help_panel=_PARALLEL),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Epochs of backprop before the first prediction.", rich_help_panel=_PREDICTOR)
    ] = None,
    warmup_batches: Annotated[
        int | None, typer.Option(help="The same in batches, for short runs.", rich_help_panel=_PREDICTOR)
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option(
            help="The schedule: ladder, paper, K:M (GP to BP batches), rungs such as 4:1x4,2:1x8,1:1, epochs:K:M, "
            "approx:1 (2, 3, 2-layer), adaptive, or clauses such as 'sites=every 2nd conv; batches=every 2nd'.",
            rich_help_panel=_PREDICTOR,
        ),
    ] = None,
    predictor_lr: Annotated[float | None, typer.Option(rich_help_panel=_PREDICTOR)] = None,
    predictor_parts: Annotated[
        int | None,
        typer.Option(
            help="Learn from one of so many parts of each layer's rows in a BP batch.", rich_help_panel=_PREDICTOR
        ),
    ] = None,
    predictor_scheduler: Annotated[
        str | None, typer.Option(help="multistep, plateau or none.", rich_help_panel=_PREDICTOR)
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Divide targets by a running scale of each site.",
            rich_help_panel=_PREDICTOR,
        ),
    ] = None,
    hold_norm: Annotated[
        bool | None,
        typer.Option(
            "--hold-norm", help="Give predictions the true gradient's running norm.", rich_help_panel=_PREDICTOR
        ),
    ] = None,
    guard_limit: Annotated[
        float | None,
        typer.Option(help="Refuse predictions over this many times the usual norm.", rich_help_panel=_PREDICTOR),
    ] = None,
    topk: Annotated[
        int | None, typer.Option(help="Positions that method topk keeps.", rich_help_panel=_PREDICTOR)
    ] = None,
    published_scale: Annotated[
        bool | None,
        typer.Option(
            "--published-scale", help="Divide topk by the batch size, as printed.", rich_help_panel=_PREDICTOR
        ),
    ] = None,
    average: Annotated[
        int | None, typer.Option(help="True gradients in the mean of method average.", rich_help_panel=_PREDICTOR)
    ] = None,
    remap_outputs: Annotated[
        int | None, typer.Option(help="Numbers that method remap predicts for a layer.", rich_help_panel=_PREDICTOR)
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(help="Numbers of the output's error that feedback uses at most.", rich_help_panel=_PREDICTOR),
    ] = None,
    metrics_every: Annotated[
        int | None,
        typer.Option(help="Sample predictor quality every N BP batches; 0: never.", rich_help_panel=_PREDICTOR),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are.", rich_help_panel=_RUN)] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch a missing data set.", rich_help_panel=_RUN)
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; a new one in runs/ by default.", rich_help_panel=_RUN)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this folder.", rich_help_panel=_RUN)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the run that --out holds.", rich_help_panel=_RUN)
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Options from a TOML file; the command line wins.", rich_help_panel=_RUN)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Processor threads, torch's choice if left out.", rich_help_panel=_RUN)
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Checkpoint at least this often, besides each epoch.", rich_help_panel=_RUN)
    ] = 60.0,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Scalars for TensorBoard in the run folder, as it goes.", rich_help_panel=_RUN
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Train a model; with predicted gradients, or by plain backprop for comparison."""
    not_options = {
        "data_dir",
        "download",
        "out",
        "resume",
        "force",
        "config",
        "threads",
        "checkpoint_seconds",
        "tensorboard",
        "as_json",
    }
    given = {name: value for name, value in locals().items() if value is not None and name not in not_options}
    given.pop("not_options", None)
    if config is not None:
        given = read_toml(config) | given
    if "epochs" in given and "batches" in given and resume is None:
        raise OptionError("--epochs and --batches both say how long the run is; give one of them.")
    if resume is not None and (out is not None or force):
        raise OptionError("--resume goes on in the run's own folder; it takes neither --out nor --force.")
    if threads is not None and threads < 1:
        raise OptionError(f"--threads is {threads}; it must be 1 or more.")
    if tensorboard:
        from adagp.train.tensorboard import require_tensorboard

        require_tensorboard()
    place = {"data_dir": data_dir, "download": download, "threads": threads, "checkpoint_seconds": checkpoint_seconds}
    if resume:
        session, loop = _resume(resume, given, place)
    else:
        session, loop = _start(given, place, out, force)
    from adagp.cli.progress import carry_out

    summary = carry_out(session, loop, tensorboard=tensorboard)
    if as_json and summary:
        typer.echo(to_json(summary, indent=2))


def _start(given: dict[str, Any], place: dict[str, Any], out: Path | None, force: bool) -> "tuple[Session, Loop]":
    options = TrainConfig.from_dict(given, "command line")
    name = f"{options.dataset}-{options.model}-{options.method}-s{options.seed}".replace("/", "_").replace(":", "_")
    folder = out or unused_path(Path("runs") / name)
    session = _session(options, place)
    return session, session.resume(folder) if restarted(folder) else session.start(folder, force=force)


def restarted(folder: Path) -> bool:
    """Tell whether torchrun has begun this run anew after a process died: then it goes on from its checkpoint."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and RunFolder(folder).checkpoint.is_file()


def _session(options: TrainConfig, place: dict[str, Any]) -> "Session":
    """Return the run, in this process or in several."""
    if options.parallel == "none":
        from adagp.train.session import Session

        return Session(options, **place)
    from adagp.distributed.session import ParallelSession

    return ParallelSession(options, **place)


def _resume(path: Path, given: dict[str, Any], place: dict[str, Any]) -> "tuple[Session, Loop]":
    folder = RunFolder.open(path)
    from adagp.train.session import read_config

    saved, saved_place = read_config(folder)
    refuse_changes(saved, given, path)
    place["data_dir"] = place["data_dir"] or saved_place
    session = _session(saved, place)
    return session, session.resume(path)


def refuse_changes(saved: TrainConfig, given: dict[str, Any], path: Path) -> None:
    """Refuse to go on with a run under other options than it was begun with."""
    before = saved.as_dict()
    changed = [f"{name} (was {before[name]}, now {value})" for name, value in given.items() if before[name] != value]
    if changed:
        raise RunError(
            f"the run in '{path}' was begun with other options: {', '.join(changed)}. "
            "Resume it without them, or start a new run with --out."
        )

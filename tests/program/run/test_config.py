"""What suits a data set takes the place of the general defaults, and only where nothing is given."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from adagp.cli import app
from adagp.core.methods import METHODS
from adagp.errors import OptionError, RunError
from adagp.program.run.config import (
    DATASET_DEFAULTS,
    HIGHEST_SEED,
    TrainConfig,
    check_same_run,
    check_trusted_code,
    read_toml,
)
from adagp.schedules import BackpropOnly, EpochAlternation, Ladder, Rung, WarmUp


def test_the_defaults_are_the_papers() -> None:
    config = TrainConfig(method="adagp")
    assert (config.optimizer, config.lr, config.lr_scheduler) == ("sgd", 1e-3, "plateau")
    own = {"predictor_lr": 1e-4, "predictor_scheduler": "multistep", "predictor_parts": 1}
    assert config.own_options == {**own, "normalize": False, "hold_norm": False, "keep": None}
    assert TrainConfig(method="remap").own_options["predictor_scheduler"] == "plateau"
    assert TrainConfig(method="adagp", epochs=90).schedule() == WarmUp(Ladder(), epochs=10)
    assert TrainConfig(epochs=45, method="remap").schedule() == WarmUp(EpochAlternation(Rung(3, 1)), epochs=5)
    assert TrainConfig(method="bp").schedule() == BackpropOnly()
    assert TrainConfig(method="bp", ratio="bp").schedule() == BackpropOnly()


def test_the_source_follows_the_method() -> None:
    assert TrainConfig(method="remap", ratio="3:1", warmup=2).schedule() == WarmUp(
        Ladder((Rung(3, 1),), "remapped"), epochs=2
    )
    assert TrainConfig(method="adagp", ratio="epochs:1:2", warmup=2).schedule() == WarmUp(
        EpochAlternation(Rung(1, 2), "predicted"), epochs=2
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "adapg"},
            f"unknown method 'adapg'. Did you mean 'adagp'? Choose from: {', '.join(sorted(METHODS))}.",
        ),
        ({"optimizer": "SDG"}, "unknown optimizer 'SDG'. Did you mean 'sgd'? Choose from: adam, adamw, sgd."),
        (
            {"lr_scheduler": "step"},
            "unknown lr scheduler 'step'. Did you mean 'multistep'? Choose from: cosine, exponential, linear, multistep, "
            "none, plateau.",
        ),
        (
            {"method": "adagp", "predictor_scheduler": "cos"},
            "unknown predictor scheduler 'cos'. Choose from: multistep, none, plateau.",
        ),
        ({"epochs": 0}, "--epochs is 0; it must be 1 or more."),
        ({"batches": 0}, "--batches is 0; it must be 1 or more."),
        ({"warmup_batches": -1}, "--warmup-batches is -1; it must be 0 or more."),
        (
            {"warmup": 1, "warmup_batches": 9},
            "--warmup and --warmup-batches both set the warm-up; give one of them.",
        ),
        (
            {"method": "bp", "warmup_batches": 9},
            "method 'bp' predicts nothing: it takes no --ratio and no --warmup.",
        ),
        ({"batch_size": 0}, "--batch-size is 0; it must be 1 or more."),
        ({"momentum": -0.1}, "--momentum is -0.1; it must be 0 or more."),
        ({"weight_decay": -1.0}, "--weight-decay is -1.0; it must be 0 or more."),
        ({"seed": -1}, "--seed is -1; it must be 0 or more."),
        ({"seed": 2**63}, "--seed is 9223372036854775808; it must be at most 9223372036854775807."),
        ({"metrics_every": -1}, "--metrics-every is -1; it must be 0 (never) or more."),
        ({"lr": 0.0}, "--lr is 0.0; it must be above 0."),
        ({"lr": float("nan")}, "--lr is nan; it must be a finite number."),
        ({"method": "adagp", "predictor_lr": -1.0}, "--predictor-lr is -1.0; it must be above 0."),
        ({"method": "adagp", "predictor_parts": 0}, "--predictor-parts is 0; it must be 1 or more."),
        ({"width": 0.0}, "--width is 0.0; it must be above 0."),
        ({"guard_limit": 0.0}, "--guard-limit is 0.0; it must be above 0."),
        ({"guard_limit": float("inf")}, "--guard-limit is inf; it must be a finite number."),
        ({"method": "bp", "ratio": "4:1"}, "method 'bp' predicts nothing: it takes no --ratio and no --warmup."),
        ({"method": "bp", "warmup": 0}, "method 'bp' predicts nothing: it takes no --ratio and no --warmup."),
        (
            {"method": "topk", "ratio": "sites=every conv from 2nd; source=zero"},
            "method 'topk' takes gradients from the source 'topk', but the schedule names 'zero'. "
            "Give the schedule the same source, or choose the method that goes with it.",
        ),
        (
            {"ratio": "0:0"},
            "ratio 0:0 is not allowed: K:M needs whole numbers of at least 0 that are not both 0, "
            "for example 4:1 (four GP batches, then one BP batch).",
        ),
        (
            {"epochs": 3, "warmup": 3},
            "warm-up of 3 epochs does not fit a run of 3: nothing would be predicted. "
            "Give a warm-up of 0 to 2, or more epochs.",
        ),
    ],
)
def test_wrong_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        TrainConfig.from_dict(options, "test")
    assert str(caught.value) == message


def test_values_by_name_come_back() -> None:
    config = TrainConfig(epochs=7, ratio="2:1", own_options={"features": 8})
    assert TrainConfig.from_dict(config.as_dict(), "here") == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": "3"}, "here: option 'epochs' is '3'; it must be of type int."),
        ({"epochs": True}, "here: option 'epochs' is True; it must be of type int."),
        ({"epochs": 2.0}, "here: option 'epochs' is 2.0; it must be of type int."),
        ({"normalize": 1}, "here: option 'normalize' is 1; it must be of type bool."),
        ({"warmup": "x"}, "here: option 'warmup' is 'x'; it must be of type int or nothing."),
        ({"lr": None}, "here: option 'lr' is None; it must be of type float."),
    ],
)
def test_wrong_types_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        TrainConfig.from_dict(values, "here")
    assert str(caught.value) == message


def test_unknown_names_are_rejected_with_the_nearest() -> None:
    with pytest.raises(OptionError) as caught:
        TrainConfig.from_dict({"epoch": 3}, "here")
    assert str(caught.value).startswith(
        "here: unknown option 'epoch'. Did you mean 'epochs'? Choose from: augment, average, "
    )


def test_a_whole_number_is_a_float_too() -> None:
    assert TrainConfig.from_dict({"lr": 1}, "here").lr == 1


def parsed(command: str) -> TrainConfig:
    """Return the configuration that the command line makes of a command, without running it."""
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("adagp", "train")
    group = typer.main.get_command(app)
    train = group.commands["train"]  # type: ignore[attr-defined]  # it is a group
    context = train.make_context("train", arguments)
    own = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name).name == "COMMANDLINE"
    }
    return TrainConfig.from_dict(own, "command line")


POSITIVE = st.floats(1e-12, 1e6, exclude_min=True)
CONFIGS = st.builds(
    TrainConfig,
    dataset=st.sampled_from(["digits", "cifar10", "my data/it's.npz"]),
    model=st.sampled_from(["digits_cnn", "own.module:function"]),
    method=st.sampled_from(["adagp", "remap"]),
    epochs=st.integers(30, 99),
    warmup=st.none() | st.integers(0, 20),
    ratio=st.sampled_from([None, "ladder", "paper", "3:1", "4:1x4,2:1x8,1:1", "epochs:3:1"]),
    batch_size=st.integers(1, 512),
    lr=POSITIVE,
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
    momentum=POSITIVE | st.just(0.0),
    weight_decay=POSITIVE | st.just(0.0),
    lr_scheduler=st.sampled_from(["plateau", "multistep", "cosine", "linear", "none"]),
    lr_warmup=st.floats(0, 1),
    guard_limit=POSITIVE,
    width=st.floats(1e-12, 1000, exclude_min=True),
    seed=st.integers(0, HIGHEST_SEED),
    metrics_every=st.integers(0, 100),
    device=st.sampled_from(["cpu", "cuda:1"]),
    own_options=st.fixed_dictionaries(
        {
            "predictor_lr": POSITIVE,
            "predictor_scheduler": st.sampled_from(["multistep", "plateau", "none"]),
            "normalize": st.booleans(),
            "hold_norm": st.booleans(),
        }
    ),
)


@pytest.mark.medium
@given(CONFIGS)
def test_the_command_repeats_the_run(config: TrainConfig) -> None:
    assert parsed(config.command()) == config


def test_batches_are_as_many_epochs_as_they_need() -> None:
    config = TrainConfig(batches=600, warmup_batches=60, ratio="1:1")
    assert [config.fit(per_epoch).epochs for per_epoch in (391, 300, 600, 1000)] == [2, 2, 1, 1]
    assert parsed(config.fit(391).command()).fit(391) == config.fit(391)
    assert config.schedule(391) == WarmUp(Ladder((Rung(1, 1),), "feedback"), batches=60, batches_per_epoch=391)
    assert TrainConfig(batches=50, warmup=30).fit(1).epochs == 50
    assert TrainConfig(epochs=7).fit(3) == TrainConfig(epochs=7)


def test_the_command_names_only_what_is_not_default() -> None:
    assert TrainConfig().command() == "adagp train"
    config = TrainConfig(lr=0.1, own_options={"features": 8}, dataset="my set.npz")
    assert config.command() == "adagp train --dataset 'my set.npz' --lr 0.1 --features 8"


def test_a_warm_up_takes_at_most_half_of_a_short_run() -> None:
    """One epoch of two is half; of one and a bit it would be nearly all, and nothing would be known of the method."""
    assert TrainConfig(batches=87).fit(44).warmup_batches == 10
    assert TrainConfig(batches=88).fit(44).warmup_batches is None
    assert TrainConfig(batches=50, warmup=1).fit(44).warmup_batches is None


def test_a_single_epoch_is_warmed_up_by_a_share_of_its_batches() -> None:
    """`adagp train --epochs 1` is everybody's first try."""
    for method in ("feedback", "adagp", "skip", "remap"):
        fitted = TrainConfig(method=method, epochs=1).fit(44)
        assert (fitted.epochs, fitted.warmup_batches) == (1, 5)
        assert parsed(fitted.command()).fit(44) == fitted
    with pytest.raises(OptionError, match="warm-up of 1 epoch does not fit a run of 1"):
        TrainConfig(epochs=1, warmup=1)


def test_an_unrecorded_method_is_that_of_old_runs() -> None:
    """Checkpoints written before methods were recorded were trained with ADA-GP."""
    now = {"options": TrainConfig(method="adagp").as_dict(), "data": {}}
    old = {name: value for name, value in now["options"].items() if name != "method"}
    check_same_run({"options": old}, now, Path("runs/old"))
    with pytest.raises(RunError, match=r"method \(was adagp, now feedback\)"):
        check_same_run({"options": old}, {"options": TrainConfig().as_dict(), "data": {}}, Path("runs/old"))


def test_batches_of_less_than_an_epoch_are_warmed_up_by_a_share_of_them() -> None:
    assert TrainConfig(batches=20).fit(44).warmup_batches == 2
    assert TrainConfig(batches=2).fit(44).warmup_batches == 1
    assert TrainConfig(batches=1).fit(44).warmup_batches == 0
    fitted = TrainConfig(batches=20).fit(44)
    assert fitted.schedule(44) == WarmUp(Ladder((Rung(1, 1),), "feedback"), batches=2, batches_per_epoch=44)
    assert fitted.fit(44) == fitted
    for own in ({"warmup_batches": 5}, {"ratio": "bp"}, {"method": "bp"}, {"method": "zero"}):
        config = TrainConfig(batches=20, **own)
        assert config.fit(44).warmup_batches == config.warmup_batches
    assert TrainConfig(batches=90).fit(44).warmup_batches is None, "three epochs have room for one of warm-up"


def test_a_data_set_brings_its_defaults() -> None:
    config = TrainConfig.from_dict({"dataset": "multi30k"}, "test")
    assert {name: getattr(config, name) for name in DATASET_DEFAULTS["multi30k"]} == DATASET_DEFAULTS["multi30k"]
    assert config.command() == "adagp train --dataset multi30k"


def test_given_options_win() -> None:
    config = TrainConfig.from_dict({"dataset": "multi30k", "lr": 0.5, "optimizer": "sgd", "beam": 2}, "test")
    assert (config.lr, config.optimizer, config.beam) == (0.5, "sgd", 2)
    assert config.command() == "adagp train --dataset multi30k --lr 0.5 --optimizer sgd --beam 2"


def test_general_defaults_can_be_asked_for() -> None:
    config = TrainConfig.from_dict({"dataset": "multi30k", "label_smoothing": 0.0}, "test")
    assert config.label_smoothing == 0.0
    assert config.command() == "adagp train --dataset multi30k --label-smoothing 0.0"


def test_other_data_sets_keep_the_general_defaults() -> None:
    assert TrainConfig.from_dict({}, "test") == TrainConfig()
    assert TrainConfig().command() == "adagp train"


def test_a_saved_configuration_is_taken_as_it_is() -> None:
    saved = TrainConfig(dataset="multi30k", model="transformer", lr=1e-4)
    assert TrainConfig.from_dict(saved.as_dict(), "test") == saved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, "--label-smoothing is 1.0; it must be 0 or more and below 1."),
        ({"label_smoothing": -0.1}, "--label-smoothing is -0.1; it must be 0 or more and below 1."),
        ({"beam": 0}, "--beam is 0; it must be 1 (greedy) to 1000."),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError) as error:
        TrainConfig.from_dict(options, "test")
    assert str(error.value) == message


def toml(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_toml_names_take_hyphens_and_underscores(tmp_path: Path) -> None:
    path = toml(tmp_path, 'batch-size = 8\nweight_decay = 0.5\nnormalize = true\nratio = "2:1"\n')
    assert read_toml(path) == {"batch_size": 8, "weight_decay": 0.5, "normalize": True, "ratio": "2:1"}


def test_toml_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        read_toml(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"cannot read the configuration file '{tmp_path / 'none.toml'}': No such file or directory."
    )
    with pytest.raises(OptionError) as caught:
        read_toml(tmp_path)
    assert str(caught.value) == f"cannot read the configuration file '{tmp_path}': Is a directory."


@pytest.mark.parametrize("text", ["epochs = ", "epochs 3"])
def test_broken_toml_is_rejected(tmp_path: Path, text: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"'{path}' is not valid TOML: ")


def test_toml_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = toml(tmp_path, b"\xff\xfe")
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"cannot read the configuration file '{path}': it is not text."


def test_toml_options_are_checked_with_the_files_name(tmp_path: Path) -> None:
    path = toml(tmp_path, 'epochs = "three"')
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}: option 'epochs' is 'three'; it must be of type int."
    path = toml(tmp_path, "[train]\nepochs = 3")
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: unknown option 'train'. ")


def test_an_option_twice_in_toml_is_rejected(tmp_path: Path) -> None:
    path = toml(tmp_path, "batch-size = 8\nbatch_size = 9")
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}: option 'batch_size' is given twice, with hyphens and with underscores."


def test_options_of_models_and_hooks_stand_next_to_all_others() -> None:
    values = {"model": "duplex", "branch": 2, "keep": 0.1, "keep_rule": "magnitude"}
    config = TrainConfig.from_dict(values, "test")
    assert {name: config.as_dict()[name] for name in values} == values
    assert config.own_options["stream"] == "float"
    assert config.command() == "adagp train --model duplex --branch 2 --keep 0.1 --keep-rule magnitude"
    assert TrainConfig.from_dict(config.as_dict(), "test") == config


def test_configurations_that_list_options_of_models_and_hooks_not_in_use_still_load() -> None:
    older = {**TrainConfig().as_dict(), "backbone": "resnet20", "branch": 6, "keep": None, "keep_decay": 0.9}
    assert TrainConfig.from_dict(older, "test", foreign="drop") == TrainConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "duplex", "stream": "int"}, "unknown stream 'int'. Choose from: bfp, fixed, float."),
        ({"model": "duplex", "branch": 0}, "--branch is 0; it must be 1 or more."),
        ({"branch": 2}, "model 'digits_cnn' has no option --branch; it belongs to: duplex."),
        ({"keep_decay": 0.5}, "--keep-decay has no effect without --keep; give --keep as well."),
    ],
)
def test_options_of_models_and_hooks_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        TrainConfig.from_dict(values, "test")
    assert str(error.value) == message


@pytest.mark.parametrize(
    "config",
    [
        {"model": "resnet20", "method": "feedback"},
        {"model": "timm:resnet18"},
        {"model": "torchvision:resnet18"},
        {"model": "torchvision.models:resnet18"},
        {"model": "hf:a/config.json"},
    ],
)
def test_models_of_installed_libraries_are_no_code_of_the_folder(config: dict[str, Any]) -> None:
    check_trusted_code(config, Path("run"))


@pytest.mark.parametrize(
    ("option", "name"),
    [("model", "own:model"), ("model", "hf.own:model"), ("model", "torchvisions:it"), ("method", "timm:Source")],
)
def test_other_code_needs_the_users_word(option: str, name: str) -> None:
    with pytest.raises(RunError) as caught:
        check_trusted_code({option: name}, Path("run"))
    assert str(caught.value) == (
        f"the run in 'run' would run code that it names itself: --{option} {name}. If you trust that code, give "
        f"--{option} {name} as well, or --trust."
    )
    check_trusted_code({option: name}, Path("run"), [name])
    check_trusted_code({option: name}, Path("run"), trust=True)


def test_deep_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(OptionError) as caught:
        read_toml(path)
    assert str(caught.value) == f"'{path}' is not valid TOML: it is nested too deeply."

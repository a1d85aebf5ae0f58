"""Every wrong input: exit code 2, one clear message on standard error, nothing on standard output, nothing written."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagp.cli import plain_warnings, print_error
from adagp.core.methods import METHODS
from adagp.core.precision import precision_forms
from adagp.data import DATASETS
from adagp.errors import AdagpWarning
from adagp.models import MODELS

Program = Callable[..., Any]
DIGITS_TRAIN = DATASETS["digits"].train


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@pytest.fixture
def rejects(program: Program) -> Callable[..., str]:
    """Return a function that calls the program, sees it reject, and returns the message."""

    def files() -> list[Path]:
        return sorted(path for path in Path().rglob("*") if "__pycache__" not in path.parts)  # of imported models

    def run(*arguments: str | Path) -> str:
        before = files()
        ended = program(*arguments)
        assert ended.code == 2
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert files() == before, "nothing was written"
        assert ended.err.startswith("error: ")
        assert ended.err.endswith("\n")
        message: str = ended.err.removeprefix("error: ").removesuffix("\n")
        return message

    return run


Refuses = Callable[..., str]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "--model",
            "digit_cnn",
            f"unknown model 'digit_cnn'. Did you mean 'digits_cnn'? Choose from: {listed(MODELS)}.",
        ),
        (
            "--dataset",
            "digit",
            f"unknown data set 'digit'. Did you mean 'digits'? Choose from: {listed(DATASETS)}.",
        ),
        ("--method", "adapg", f"unknown method 'adapg'. Did you mean 'adagp'? Choose from: {listed(METHODS)}."),
        ("--method", "predicted", f"unknown method 'predicted'. Did you mean 'adagp'? Choose from: {listed(METHODS)}."),
        ("--optimizer", "xyz", "unknown optimizer 'xyz'. Choose from: adam, adamw, sgd."),
        ("--precision", "bfp0", "the precision 'bfp0' has 0 mantissa bits; it must be 1 to 24, or fp32."),
        ("--precision", "int8", f"cannot read the precision 'int8'. Allowed forms: {', '.join(precision_forms())}."),
        ("--keep", "0", "--keep is 0.0; it must be above 0 and at most 1."),
        ("--keep", "1.01", "--keep is 1.01; it must be above 0 and at most 1."),
        ("--stream", "fixed", "model 'digits_cnn' has no option --stream; it belongs to: duplex."),
        ("--keep-rule", "magnitude", "--keep-rule has no effect without --keep; give --keep as well."),
    ],
)
def test_unknown_names(rejects: Refuses, option: str, value: str, message: str) -> None:
    assert rejects("train", option, value) == message


def test_precision_in_what_it_does_not_go_with(rejects: Refuses) -> None:
    assert rejects("train", "--precision", "bfp4", "--parallel", "data") == (
        "--precision bfp4 is for runs in one process: exponents and widths depend on the whole batch, but each process has "
        "only a share of it; leave it out with --parallel data."
    )
    assert rejects("train", "--method", "bp", "--precision", "bfp4", "--compile") == (
        "precision 'bfp4' replaces products while the model runs; it cannot be compiled."
    )
    assert rejects("train", "--method", "bp", "--precision", "layers:2-4@4") == (
        "the precision 'layers:2-4@4' cuts the model after layer 4; it has 4 layers, so that it must be 1 to 3."
    )


@pytest.mark.parametrize("ratio", ["0:0", "-1:2", "4:-1"])
def test_ratios_without_an_alternation(rejects: Refuses, ratio: str) -> None:
    assert rejects("train", "--ratio", ratio) == (
        f"ratio {ratio} is not allowed: K:M needs whole numbers of at least 0 that are not both 0, "
        "for example 4:1 (four GP batches, then one BP batch)."
    )


def test_warm_up_longer_than_the_run(rejects: Refuses) -> None:
    assert rejects("train", "--epochs", "4", "--batches", "50") == (
        "--epochs and --batches both set the length of the run; give one of them."
    )
    assert rejects("train", "--epochs", "4", "--warmup", "5") == (
        "warm-up of 5 epochs does not fit a run of 4: nothing would be predicted. Give a warm-up of 0 to 3, or more epochs."
    )


def test_batch_size_above_the_data_set(rejects: Refuses) -> None:
    size = DIGITS_TRAIN + 1
    assert rejects("train", "--batch-size", str(size)) == (
        f"batch size {size} is larger than the training set of {DIGITS_TRAIN} samples; choose 1 to {DIGITS_TRAIN}."
    )


def test_a_model_that_recomputes_and_a_method_that_needs_gradients_at_outputs(rejects: Refuses) -> None:
    assert rejects("train", "--model", "duplex", "--backbone", "none", "--batches", "20") == (
        "source 'feedback' needs the gradients at the outputs of layers, which 'branch.chain' (ReversibleChain) does not "
        "have: it computes its layers again in the backward pass. Let it store the activations (recompute=False, on the "
        "command line --no-recompute), train by bp or adagp, or exclude its layers."
    )


def test_a_data_set_that_is_not_there(rejects: Refuses) -> None:
    assert rejects("train", "--dataset", "cifar10", "--data-dir", "here") == (
        "data set 'cifar10' is not in here. Provide the file here/cifar10.npz with the arrays "
        "x_train, y_train, x_test, y_test (optionally class_names), or the folder here/cifar-10-batches-py "
        "in its usual layout. Or let --download fetch it."
    )


def arrays(**changes: Any) -> dict[str, Any]:
    """Return a small image set of two classes."""
    images, labels = np.zeros((8, 8, 8), np.uint8), np.arange(8) % 2
    return {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels, **changes}


def test_a_file_that_is_not_there(rejects: Refuses) -> None:
    assert rejects("train", "--dataset", "none.npz") == "none.npz: no such file."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((8, 8, 8), np.float32)}, "x_train has dtype float32; images must be uint8 (0 to 255)."),
        (
            {"y_test": np.zeros(8, np.float64)},
            "y_test has dtype float64; labels must be whole numbers (an integer dtype).",
        ),
        (
            {"x_test": np.zeros((8, 64), np.uint8)},
            "x_test has shape (8, 64); images must be (N, height, width, channels) with 1 or 3 channels, "
            "or (N, height, width) for grey ones.",
        ),
        ({"y_train": np.zeros(7, np.int64)}, "x_train has 8 images but y_train has 7 labels."),
    ],
)
def test_files_with_wrong_arrays(rejects: Refuses, changes: dict[str, Any], message: str) -> None:
    np.savez("set.npz", **arrays(**changes))
    assert rejects("train", "--dataset", "set.npz", "--batch-size", "4") == f"set.npz: {message}"


def test_a_file_with_other_arrays(rejects: Refuses) -> None:
    np.savez("set.npz", x=np.zeros(3), y_train=np.zeros(3))
    assert rejects("train", "--dataset", "set.npz") == (
        "set.npz: x_train, x_test, y_test missing; it holds x, y_train. "
        "Needed: x_train, y_train, x_test, y_test; class_names may be there too."
    )


def test_a_file_that_was_cut_off(rejects: Refuses) -> None:
    np.savez("set.npz", **arrays())
    whole = Path("set.npz").read_bytes()
    Path("set.npz").write_bytes(whole[: len(whole) // 2])
    assert rejects("train", "--dataset", "set.npz") == "set.npz: not a .npz archive, or cut off before its end."


def test_a_model_that_does_not_fit_the_data(rejects: Refuses) -> None:
    Path("own_model.py").write_text("from torch import nn\ndef build():\n    return nn.Flatten()\n")
    assert rejects("train", "--model", "own_model:build") == (
        "'own_model:build' gives scores for 64 classes; the data has 10."
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("sys:exit", "'sys:exit' cannot be built: SystemExit."),
        (
            "builtins:int",
            "'builtins:int' has no readable signature; a model is built by a function.",
        ),
        ("torch:nn", "'torch:nn' is of type module, which cannot be called."),
    ],
)
def test_models_that_are_something_else(rejects: Refuses, model: str, message: str) -> None:
    assert rejects("train", "--model", model) == message


def test_reproductions_on_a_device_that_is_not_there(rejects: Refuses) -> None:
    message = rejects("reproduce", "adagp-figure20", "--device", "meta", "--out", "here")
    assert message == "device 'meta' cannot be used here: it computes nothing. Try cpu."


def test_a_device_that_is_not_there(rejects: Refuses) -> None:
    message = rejects("train", "--device", "teapot")
    assert message.startswith("device 'teapot' cannot be used here: ")
    assert message.endswith(" Try cpu.")


def test_an_output_folder_that_cannot_be_written(rejects: Refuses) -> None:
    Path("file").touch()
    assert rejects("train", "--out", "file/run") == "cannot write the run folder 'file/run': Not a directory."


def test_an_output_folder_of_somebody_else(rejects: Refuses) -> None:
    Path("mine").mkdir()
    Path("mine/letter.txt").touch()
    message = "'mine' holds files that are not a run (letter.txt, ...); give another --out."
    assert rejects("train", "--out", "mine") == message
    assert rejects("train", "--out", "mine", "--force") == message


def test_resume_takes_neither_out_nor_force(rejects: Refuses) -> None:
    for more in (("--out", "other"), ("--force",)):
        assert rejects("train", "--resume", "run", *more) == (
            "--resume continues in the run's folder; leave out --out and --force."
        )


def test_resume_wants_a_run(rejects: Refuses) -> None:
    assert rejects("train", "--resume", "none") == "'none' is not a run folder: it has no config.json."


def test_wrong_configuration_files(rejects: Refuses) -> None:
    assert rejects("train", "--config", "none.toml") == (
        "cannot read the configuration file 'none.toml': No such file or directory."
    )
    Path("run.toml").write_text("epochs = 1.5\n")
    assert rejects("train", "--config", "run.toml") == "run.toml: option 'epochs' is 1.5; it must be of type int."
    Path("run.toml").write_text("out = 'here'\n")
    assert rejects("train", "--config", "run.toml").startswith("run.toml: unknown option 'out'. ")
    Path("run.toml").write_text("method = 'xyz'\n")
    assert rejects("train", "--config", "run.toml") == f"unknown method 'xyz'. Choose from: {listed(METHODS)}."


def test_values_that_are_no_numbers(program: Program) -> None:
    ended = program("train", "--epochs", "three")
    assert ended.code == 2
    assert ended.out == ""
    assert "Invalid value for '--epochs'" in ended.err


def test_options_that_do_not_exist(program: Program) -> None:
    ended = program("train", "--epoch", "3")
    assert ended.code == 2
    assert "No such option: --epoch" in ended.err


@pytest.mark.medium
def test_a_fresh_process_ends_with_code_2_and_one_line(python: Callable[..., Any], tmp_path: Path) -> None:
    ended = python("-m", "adagp", "train", "--method", "xyz", "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == f"error: unknown method 'xyz'. Choose from: {listed(METHODS)}.\n"


def test_a_warning_is_a_sentence_without_the_line_of_code() -> None:
    with plain_warnings():
        assert warnings.formatwarning("too much memory.", AdagpWarning, "source.py", 7) == "warning: too much memory.\n"
        assert "source.py:7: UserWarning" in warnings.formatwarning("of another library", UserWarning, "source.py", 7)


@pytest.mark.parametrize(("value", "colours"), [("", True), ("1", False)])
def test_no_color_is_respected(value: str, colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setattr("typer.echo", lambda text, err: printed.append(text))
    print_error("it went wrong.")
    assert printed == ["\x1b[31merror: it went wrong.\x1b[0m" if colours else "error: it went wrong."]


def test_a_long_error_is_wrapped_between_words_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("typer.echo", lambda text, err: printed.append(text))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    print_error("a sentence that is longer than a line of forty characters.")
    assert printed == ["error: a sentence that is longer than a\nline of forty characters."]

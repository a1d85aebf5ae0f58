import csv
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.errors import AdagpError

NO_BATCHES = {"warmup": 0, "bp": 0, "gp": 0, "guarded": 0}


def call(*arguments: str) -> str:
    """Run a command and return what it prints; errors of ours come through as they are."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def report(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("simulate", *arguments, "--json"))
    return found


def test_a_table_with_every_design() -> None:
    text = call("simulate", "digits_cnn", "--dataset", "digits", "--epochs", "10", "--per-layer")
    for name in ("baseline", "low", "efficient", "max", "layer by layer"):
        assert name in text


def test_json_with_stable_fields() -> None:
    found = report("two_layer_cnn", "--epochs", "9", "--per-layer", "--dataflow", "rs", "--array", "8x8")
    assert list(found["designs"]) == ["baseline", "low", "efficient", "max"]
    assert found["designs"]["max"]["speedup"] > 1
    assert (found["array"], found["dataflow"], found["dataset"], found["epochs"]) == ("8x8", "rs", "cifar10", 9)
    assert found["batches"] == {"warmup": 391, "gp": 1568, "bp": 1560}  # 1:1, as adagp train
    assert len(found["layers"]) == 5


@pytest.mark.parametrize("method", ["feedback", "skip", "replay"])
def test_only_methods_with_the_predictor_are_warned_of_its_weights(method: str) -> None:
    """VGG13's predictor is larger than the buffer; these methods have none."""
    warned = report("vgg13", "--method", "adagp")["failure_signatures"]
    assert any("The predictor's weights take" in text for text in warned)
    assert not any(
        "The predictor's weights" in text for text in report("vgg13", "--method", method)["failure_signatures"]
    )


def test_options_reach_the_model() -> None:
    base = report("two_layer_cnn", "--design", "max")["designs"]
    assert list(base) == ["baseline", "max"]
    slow = report("two_layer_cnn", "--design", "max", "--clock", "100", "--bandwidth", "inf")["designs"]
    assert slow["baseline"]["seconds"] > base["baseline"]["seconds"]
    starved = report("two_layer_cnn", "--design", "max", "--bandwidth", "0.1")["designs"]
    assert starved["baseline"]["cycles"] > base["baseline"]["cycles"]
    zero = report("two_layer_cnn", "--design", "max", "--source", "zero", "--ratio", "1:1")["designs"]
    assert zero["max"]["cycles"] < base["max"]["cycles"]
    small = report("two_layer_cnn", "--node", "22", "--dram", "ddr4", "--optimizer", "adam")["designs"]
    assert small["baseline"]["energy_joules"] < base["baseline"]["energy_joules"]


@pytest.mark.medium
def test_what_papers_leave_open_can_be_chosen() -> None:
    base = report("two_layer_cnn", "--design", "max")["designs"]["baseline"]
    slower = (
        ["--backward", "same-dataflow"],
        ["--buffer-port", "64"],
        ["--accumulator", "4"],
        ["--no-fusion", "--bandwidth", "0.1"],
    )
    for options in slower:
        assert report("two_layer_cnn", "--design", "max", *options)["designs"]["baseline"]["cycles"] > base["cycles"]
    low = ("two_layer_cnn", "--method", "adagp", "--design", "low")
    wide = report(*low, "--predictor", "8x8")["designs"]
    assert wide["low"]["cycles"] > report(*low)["designs"]["low"]["cycles"]
    for width in ("weight", "activation", "gradient", "sum"):
        found = report("two_layer_cnn", "--design", "max", "--word-bits", "32", f"--{width}-bits", "16")["designs"]
        assert found["baseline"]["buffer_bytes"] > base["buffer_bytes"]


def test_layers_have_traffic_stalls_and_joules(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    found = report("two_layer_cnn", "--per-layer", "--buffer-port", "64", "--csv", str(path))
    first = found["layers"][0]
    assert first["stall_cause"] == "buffer port"
    assert first["stall_cycles"] > 0
    assert first["joules"] == pytest.approx(sum(first["energy"].values()))
    assert 0 < first["dram_bytes"] < first["buffer_bytes"]
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [row["name"] for row in found["layers"]]
    assert float(rows[0]["energy.dram"]) == pytest.approx(first["energy"]["dram"])


def test_clock_and_energy_of_a_chip_of_our_own(tmp_path: Path) -> None:
    placed, power = tmp_path / "place.json", tmp_path / "power.json"
    placed.write_text('{"designs": {"baseline": {"megahertz": 50}}}')
    chip = {"megahertz": 10, "modules": {"element": {"watts": 1.6e-3}}}
    about = {"format": "int16", "node_nm": 180, "volts": 1.8, "equal_power_pes": None}
    power.write_text(json.dumps({**about, "designs": {"baseline": chip}}))
    options = ("digits_cnn", "--dataset", "digits", "--design", "baseline")
    found = report(*options, "--from-rtl", str(placed), "--from-rtl", str(power))["designs"]["baseline"]
    assert found["seconds"] == found["cycles"] / 50e6
    assert found["energy"]["clock"] == pytest.approx(found["cycles"] * 180 * 10e-12)  # 160 pJ over 16
    assert report(*options)["designs"]["baseline"]["energy"]["dram"] == found["energy"]["dram"]


def test_an_energy_table_of_your_own(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    text = (files("adagp.hw") / "energy_table.csv").read_text("utf-8").replace(",5.39,,", ",53.9,,")
    own.write_text(text)
    joules = [
        report("two_layer_cnn", *options)["designs"]["baseline"]["energy"]["clock"]
        for options in ([], ["--energy-table", str(own)])
    ]
    assert joules[1] == pytest.approx(10 * joules[0])


@pytest.mark.parametrize("method", ["feedback", "feedback_replay", "control", "dni", "dni_labels", "replay", "average"])
def test_every_source_has_a_cost_in_every_design(method: str) -> None:
    designs = report("two_layer_cnn", "--method", method)["designs"]
    assert designs["max"]["cycles"] <= designs["efficient"]["cycles"] <= designs["low"]["cycles"]
    assert designs["low"]["speedup"] > 0.3


@pytest.mark.medium
def test_a_function_with_an_input_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def tiny(classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(classes)) if classes < 2 else \\\n"
        "        nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    found = report("my_models:tiny", "--input", "1x9x9", "--save-workload", "tiny.json", "--plot", "tiny.svg")
    assert found["macs_per_sample"] == 49 * 36 + 40
    assert (tmp_path / "tiny.svg").stat().st_size > 1000
    assert report("tiny.json") == found


def test_a_language_model_is_simulated_for_its_own_vocabulary_and_the_length_asked_for(tmp_path: Path) -> None:
    width, inner, tokens, heads = 16, 32, 1000, 2
    config = {"model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 1}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": tokens}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    def macs(length: int, vocabulary: int) -> int:
        attention = 2 * length**2 * width  # scores, and their use
        return length * (4 * width**2 + 3 * width * inner + vocabulary * width) + attention

    for options, expected in (
        ((), macs(128, tokens)),
        (("--input", "64"), macs(64, tokens)),
        (("--input", "64", "--classes", "500"), macs(64, 500)),
    ):
        assert report(f"hf:{path}", *options)["macs_per_sample"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["decoder", "--input", "3x32x32"],
            "'decoder' reads text; its input is the length of a sequence, for example --input 512, not 3x32x32.",
        ),
        (
            ["transformer", "--classes", "100"],
            "'transformer' translates sentences of a fixed length; --input and --classes do not apply to it.",
        ),
    ],
)
def test_options_that_a_model_of_text_has_no_use_for_are_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(AdagpError) as raised:
        report(*arguments)
    assert str(raised.value) == message


def test_a_source_that_nobody_knows_is_rejected() -> None:
    with pytest.raises(AdagpError, match=r"^unknown source 'nonsense'\. Did you mean 'noise'\? Choose from: average, "):
        report("two_layer_cnn", "--source", "nonsense", "--ratio", "1:1")


def test_a_run_is_replayed(tmp_path: Path) -> None:
    config = {"model": "digits_cnn", "dataset": "digits", "batch_size": 32, "width": 0.5, "method": "adagp"}
    batches = {"warmup": 10, "bp": 20, "gp": 30, "guarded": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"epoch": 0, "batches": batches}) + "\n")
    found = report(str(tmp_path))
    assert found == report("--from-run", str(tmp_path))
    assert found["batches"] == {"warmup": 10, "bp": 10, "gp": 30}
    assert (found["model"], found["batch"], found["epochs"]) == ("digits_cnn", 32, 1)
    other = report("two_layer_cnn", "--from-run", str(tmp_path), "--input", "3x32x32")
    assert (other["model"], other["batches"]) == ("two_layer_cnn", found["batches"])
    with pytest.raises(AdagpError, match=r"^--epochs is set by the replayed run; leave it out\.$"):
        report("--from-run", str(tmp_path), "--epochs", "3")
    with pytest.raises(AdagpError, match=r"and --from-run name a run; give one of them\.$"):
        report(str(tmp_path), "--from-run", str(tmp_path))


def test_a_run_is_replayed_in_its_own_precisions_up_to_a_target(tmp_path: Path) -> None:
    config = {"model": "digits_cnn", "dataset": "digits", "batch_size": 32, "method": "bp", "precision": "bfp4:g=8"}
    rows = []
    for epoch, (accuracy, bits) in enumerate(((0.5, 2), (0.8, 2), (0.9, 4))):
        sites = {name: {f"share_w{bits}a{bits}g{bits}": 1.0} for name in ("conv1", "conv2", "conv3", "fc")}
        rows.append({"epoch": epoch, "batches": {**NO_BATCHES, "bp": 10}, "test_accuracy": accuracy, "sites": sites})
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ("--from-run", str(tmp_path), "--design", "fast,dense-16,dense-32")
    whole, part = report(*run), report(*run, "--target", "0.8")
    assert (whole["epochs"], part["epochs"], part["batches"]) == (3, 2, {"warmup": 0, "bp": 20})
    cycles = whole["designs"]["fast"]["cycles"], part["designs"]["fast"]["cycles"]
    assert cycles[0] > 1.6 * cycles[1], "the third epoch has more bits"
    assert whole["designs"]["dense-16"]["cycles"] == pytest.approx(1.5 * part["designs"]["dense-16"]["cycles"])
    assert not whole["failure_signatures"]
    with pytest.raises(AdagpError) as raised:
        report(*run, "--target", "0.95")
    assert str(raised.value) == (
        f"the run in '{tmp_path}' does not reach the target of 95.00%: its best accuracy is 90.00%."
    )
    with pytest.raises(AdagpError, match=r"^--target is for a replayed run; give --from-run\.$"):
        report("digits_cnn", "--dataset", "digits", "--target", "0.9")
    with pytest.raises(AdagpError, match=r"^--target is 1\.5; it must be above 0 and at most 1\.$"):
        report(*run, "--target", "1.5")


@pytest.mark.medium
def test_a_replayed_run_has_the_size_of_its_images(write_run: Any) -> None:
    """Also where the model's usual images are larger: imagenette has 64x64 pixels, VGG 224x224."""
    for dataset, size, shape in (
        ("imagenette", None, "3x64x64"),
        ("imagenette", 40, "3x40x40"),
        ("cifar10", 48, "3x48x48"),
    ):
        run = write_run(shape, model="vgg11", width=0.25, dataset=dataset, image_size=size)
        macs = report("vgg11", "--dataset", dataset, "--input", shape, "--width", "0.25")["macs_per_sample"]
        assert report("--from-run", str(run))["macs_per_sample"] == macs
        assert report("--from-run", str(run), "--input", "3x32x32")["macs_per_sample"] < macs


def test_a_run_that_cannot_be_replayed_is_rejected(write_run: Any, tmp_path: Path) -> None:
    run = write_run("one")
    wide = json.dumps(json.loads((run / "config.json").read_text()) | {"width": 1e9})
    for file, content, message in (
        (
            "config.json",
            wide,
            f"the run in '{run}' is damaged: 'width' in config.json is 1000000000.0; it must be at most 1000.",
        ),
        ("config.json", "{}", f"the run in '{run}' has no model in its config.json."),
        (
            "config.json",
            "{",
            f"the run in '{run}' is damaged: config.json cannot be read: it is not JSON (Expecting property name "
            "enclosed in double quotes: line 1 column 2 (char 1)).",
        ),
        ("metrics.jsonl", "", f"the run in '{run}' has no finished epoch yet: there is nothing to replay."),
    ):
        before = (run / file).read_text()
        (run / file).write_text(content)
        with pytest.raises(AdagpError) as raised:
            report("--from-run", str(run))
        assert str(raised.value) == message
        (run / file).write_text(before)
    with pytest.raises(AdagpError, match=f"^'{tmp_path}' is not a run folder: it has no config.json.$"):
        report("--from-run", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--array", "0x5"], "array 0x5 is not allowed: rows and columns must be at least 1, for example 12x15."),
        (["x", "--dataflow", "wss"], "unknown dataflow 'wss'. Did you mean 'ws'? Choose from: is, os, rs, ws."),
        (["x", "--bandwidth", "-2"], "--bandwidth is -2.0; it must be 0.000001 to 1,000,000,000 (gigabytes), or inf."),
        (
            ["x", "--design", "min"],
            "unknown design 'min'. Choose from: baseline, dense-16, dense-32, efficient, equal-area, equal-power, fast, "
            "low, max, max-ideal.",
        ),
        (
            ["x", "--input", "64x64"],
            "cannot read the input shape '64x64'; write CHANNELSxHEIGHTxWIDTH, for example 3x64x64.",
        ),
        (
            ["two_layer_cnn", "--epochs", "0"],
            "--epochs is 0; it must be 1 to 100,000, since they are counted one by one.",
        ),
        (["two_layer_cnn", "--batch", "0"], "--batch-size is 0; it must be 1 or more."),
        (
            [],
            (
                "name a model, package.module:function, a saved workload (.json), an ONNX model (.onnx), a torch.export "
                "program (.pt2), or a run folder."
            ),
        ),
        (["two_layer_cnn", "--plot", "x.doc"], "cannot plot to 'x.doc'; the name must end in .svg, .png, .pdf."),
    ],
)
def test_wrong_options_are_rejected(arguments: list[str], message: str) -> None:
    with pytest.raises(AdagpError) as raised:
        call("simulate", *arguments)
    assert str(raised.value) == message


def test_schedules_by_patterns_are_simulated() -> None:
    arguments = ("two_layer_cnn", "--epochs", "2", "--design", "efficient", "--source", "zero", "--ratio")
    whole = report(*arguments, "1:1", "--warmup", "0")
    for ratio in ("approx:2", "sites=every 2nd conv; batches=every 2nd", "sites=cut 40%; batches=every 2nd from 1st"):
        found = report(*arguments, ratio)
        assert sorted(found["batches"].values()) == sorted(whole["batches"].values())
        assert 1 < found["designs"]["efficient"]["speedup"] < whole["designs"]["efficient"]["speedup"]


@pytest.mark.parametrize("command", [("simulate", "two_layer_cnn"), ("sweep", "--models", "two_layer_cnn")])
@pytest.mark.parametrize("ratio", ["adaptive", "adaptive:2-4"])
def test_an_adaptive_schedule_is_rejected_before_any_work(
    command: tuple[str, ...], ratio: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace(*arguments: object, **options: object) -> None:
        pytest.fail("traced a model")

    monkeypatch.setattr("adagp.tracing.tracer.trace_model", trace)
    with pytest.raises(AdagpError, match=r"^an adaptive schedule decides during the run, .* --from-run RUN\.$"):
        call(*command, "--ratio", ratio)


def test_sweep_writes_a_row_for_each_combination(tmp_path: Path) -> None:
    out, plot = tmp_path / "sweep.csv", tmp_path / "sweep.png"
    names = ["--models", "two_layer_cnn", "--datasets", "cifar10,cifar100", "--dataflows", "ws,rs"]
    call("sweep", *names, "--arrays", "12x15,4x4", "--epochs", "9", "--out", str(out), "--plot", str(plot))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 2 * 2 * 2 * 4
    assert {row["design"] for row in rows} == {"baseline", "low", "efficient", "max"}
    assert all(float(row["speedup"]) >= 1 for row in rows)
    assert plot.stat().st_size > 1000


def test_sweep_rejects_unknown_names_before_it_works() -> None:
    with pytest.raises(AdagpError, match=r"^unknown model 'vgg99'\."):
        call("sweep", "--models", "two_layer_cnn,vgg99")
    with pytest.raises(AdagpError, match=r"^--models is empty; give at least one name\.$"):
        call("sweep", "--models", ",")


def test_other_training_systems_are_modelled_by_themselves() -> None:
    found = report("two_layer_cnn", "--design", "procrustes", "--weight-density", "0.2")
    assert list(found["modelled"]) == ["procrustes"]
    row = found["modelled"]["procrustes"]
    assert 1 < row["notes"]["speed-up over dense on the same array"] < 3 / (2 * 0.2 + 0.5)
    assert row["cycles"] == pytest.approx(row["cycles_per_batch"] * 90 * 391)
    pair = report("duplex", "--design", "camel,camel-sram", "--retention", "45", "--batch", "64")["modelled"]
    assert pair["camel"]["notes"]["refreshes of a datum"] == 0
    assert pair["camel"]["seconds"] < pair["camel-sram"]["seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["vgg13", "--design", "procrustes,max"],
            "--design: 'procrustes' is a training system, 'max' is a design of the accelerator; give only one kind. "
            "Training systems: camel, camel-sram, procrustes.",
        ),
        (
            ["two_layer_cnn", "--design", "camel"],
            "CAMEL's designs are for models with reversible blocks, such as duplex: this one has none.",
        ),
        (
            ["two_layer_cnn", "--design", "procrustes", "--target", "0.9"],
            "--target is for a replayed run; give --from-run.",
        ),
        (
            ["two_layer_cnn", "--design", "procrustes", "--weight-density", "0"],
            "--weight-density is 0.0; it must be above 0 and at most 1.",
        ),
    ],
)
def test_wrong_systems(arguments: list[str], message: str) -> None:
    with pytest.raises(AdagpError) as raised:
        call("simulate", *arguments)
    assert str(raised.value) == message

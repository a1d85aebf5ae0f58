"""`adagp simulate --chips`: tables, JSON and pictures, and what is rejected before any work."""

import json
from pathlib import Path

import pytest
from tests.cli.test_simulate import call, report
from tests.pipe.chips.transformers import gpt2

from adagp.errors import AdagpError

pytestmark = pytest.mark.medium
VGG = ("vgg13", "--batch-size", "1024", "--chips", "64")


@pytest.fixture
def transformer(tmp_path: Path) -> str:
    """Return a file with the layers of a small GPT-2."""
    path = tmp_path / "gpt2.json"
    gpt2(layers=4).save(path)
    return str(path)


def test_all_ways_to_split_a_transformer(transformer: str) -> None:
    options = ("--chips", "16", "--parallel", "data=2,tensor=2,pipeline=4", "--batch-size", "64", "--fabric", "torus")
    found = report(transformer, *options, "--method", "feedback", "--link-bandwidth", "2", "--link-latency", "1")
    assert (found["chips"], found["parallel"], found["fabric"]) == (16, "data=2,tensor=2,pipeline=4", "torus 4x4")
    assert (found["micro_batches"], found["samples_per_micro_batch"], found["schedule"]) == (4, 8, "dapple")
    assert set(found["gp"]["terms"]) == {"compute", "bubble", "tensor", "pipeline", "weights", "gradients", "source"}
    assert found["gp"]["sent_bytes"]["tensor"] < found["bp"]["sent_bytes"]["tensor"]
    assert found["run"]["speedup"] > 0
    text = call("simulate", transformer, *options)
    for words in ("tensor", "bubble", "input gradients", "Memory of the fullest chip", "Cost only, not accuracy"):
        assert words in text


def test_scaling_as_table_and_picture(tmp_path: Path) -> None:
    found = report(
        *VGG, "--method", "adagp", "--scaling", "weak", "--collective", "auto", "--plot", str(tmp_path / "weak.svg")
    )
    assert [row["chips"] for row in found["scaling"]["rows"]] == [1, 2, 4, 8, 16, 32, 64]
    assert "weak scaling" in (tmp_path / "weak.svg").read_text("utf-8")
    text = call("simulate", *VGG, "--method", "bp", "--scaling", "strong", "--plot", str(tmp_path / "bp.png"))
    assert "Strong scaling over copies of the model" in text
    assert (tmp_path / "bp.png").stat().st_size > 1000


def test_overlap_and_buckets_matter() -> None:
    gradients = [
        report(*VGG, "--method", "bp", *more)["backprop"]["terms"]["gradients"]
        for more in ((), ("--bucket", "1"), ("--no-overlap",))
    ]
    assert gradients[1] < gradients[0] <= gradients[2]


def test_links_of_a_hardware_file(tmp_path: Path) -> None:
    """Options come first, then the file, then the defaults of 10 gigabytes per second and 5 microseconds."""
    path = tmp_path / "chip.toml"
    path.write_text("[links]\nbandwidth_gb_s = 25\n")
    for more, expected in (((), (25, 5)), (("--link-bandwidth", "40", "--link-latency", "1"), (40, 1))):
        found = report(*VGG, "--hardware", str(path), *more)
        assert (found["link_gigabytes_per_second"], found["link_microseconds"]) == expected
    assert report(*VGG)["link_gigabytes_per_second"] == 10


def test_the_layers_can_be_saved(tmp_path: Path) -> None:
    call("simulate", *VGG, "--save-workload", str(tmp_path / "vgg.json"))
    assert json.loads((tmp_path / "vgg.json").read_text("utf-8"))["name"] == "vgg13"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--parallel data=2", "--parallel needs --chips."),
        ("--no-overlap", "--no-overlap needs --chips."),
        ("--chips 2 --per-layer", "--per-layer cannot be combined with --chips: it is about a single chip."),
        ("--chips 2 --design low,max", "--design is 'low,max'; with --chips give one design."),
        ("--chips 3", "a batch of 128 samples does not split into 3 equal parts (data=3)."),
        (
            "--chips 2 --parallel tensor=2",
            "tensor=2 splits the linear layers and the attention of Transformers; 'vgg13' has no attention.",
        ),
        (
            "--chips 2 --pipeline-schedule gpipe",
            "--pipeline-schedule is for a pipeline of several stages; give pipeline=... in --parallel.",
        ),
        ("--chips 16 --parallel pipeline=16", "11 layers cannot be cut into 16 stages; give 1 to 11."),
        ("--chips 2 --link-bandwidth 0", "--link-bandwidth is 0.0; it must be 1e-06 or more."),
    ],
)
def test_wrong_options(options: str, words: str) -> None:
    with pytest.raises(AdagpError) as caught:
        call("simulate", "vgg13", *options.split())
    assert str(caught.value) == words

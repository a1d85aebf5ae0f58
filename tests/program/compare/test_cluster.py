"""Data-parallel accelerators: the ring's formula by hand, what overlap hides, and that small batches save little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Linear, Workload
from adagp.pipe.modelled import modelled_costs
from adagp.program.compare.cluster import ClusterCost, ClusterPlatform, Exchange, Rounds, parse_cluster
from adagp.program.compare.modelled_cost import AcceleratorCost, AcceleratorPlatform
from adagp.program.run import TrainConfig

NET = Workload("four layers", tuple(Linear(f"fc{index}", 1, 64, 64) for index in range(4)))
EXCHANGE = Exchange(gradients=65_536, backprop=Rounds(2, 4_000), predicted=Rounds(3, 2_000))
ACCELERATOR = AcceleratorPlatform("efficient")


def run(method: str, **options: object) -> TrainConfig:
    own = {} if method == "bp" else {"ratio": "1:1", "warmup_batches": 2}
    return TrainConfig.from_dict({"method": method, "batches": 12, "batch_size": 64, **own, **options}, "test")


def model(text: str, exchange: Exchange = EXCHANGE) -> ClusterCost:
    return ClusterCost(parse_cluster(text), ACCELERATOR, NET, lambda config: 100, lambda config: exchange)


def test_a_ring_by_hand() -> None:
    """Four devices: 6 messages of a quarter of the bytes."""
    platform = ClusterPlatform(devices=4, link=2.0, latency=5.0)
    assert platform.all_reduce_seconds(1, 8e9) == pytest.approx(6 * (5e-6 + 1.0))
    assert platform.all_reduce_seconds(3, 0) == pytest.approx(6 * 3 * 5e-6)
    assert ClusterPlatform(devices=1).all_reduce_seconds(5, 1e9) == 0


@given(devices=st.integers(1, 64), amount=st.floats(0, 1e9), latency=st.floats(0, 100), link=st.floats(0.01, 100))
def test_a_ring_step_by_step(devices: int, amount: float, latency: float, link: float) -> None:
    """Reduce-scatter and all-gather: each of D - 1 steps sends one of D parts to the next device."""
    total = 0.0
    for _ in ("reduce-scatter", "all-gather"):
        for _ in range(devices - 1):
            total += latency * 1e-6 + (amount / devices) / (link * 1e9)
    platform = ClusterPlatform(devices, link, latency)
    assert platform.all_reduce_seconds(1, amount) == pytest.approx(total)


def test_batches_cost_their_share_and_what_is_exchanged() -> None:
    config = run("feedback")
    share = AcceleratorCost(ACCELERATOR, NET, lambda config: 100)
    alone = {kind.phase: kind.cost for kind in share.batch_costs(run("feedback", batch_size=16))}
    clock = ACCELERATOR.accelerator(config).clock_hz
    ring = parse_cluster("devices=4,link=0.1,latency=5,overlap=no")
    apart = {kind.phase: kind.cost for kind in model(str(ring)).batch_costs(config)}
    assert apart[Phase.GP] == pytest.approx(alone[Phase.GP] + clock * ring.all_reduce_seconds(3, 2_000))
    gradients, summaries = (clock * ring.all_reduce_seconds(*what) for what in ((1, 65_536), (2, 4_000)))
    assert apart[Phase.BP] == pytest.approx(alone[Phase.BP] + gradients + summaries)

    overlapped = {kind.phase: kind.cost for kind in model("devices=4,link=0.1,latency=5").batch_costs(config)}
    backward = modelled_costs(NET, ACCELERATOR.accelerator(config), 1, 16, design="baseline").stages[0].backward
    assert 0 < backward < gradients
    assert overlapped[Phase.BP] == pytest.approx(apart[Phase.BP] - backward)
    assert overlapped[Phase.GP] == apart[Phase.GP]
    quick = {kind.phase: kind.cost for kind in model("devices=4,link=1000,latency=0").batch_costs(config)}
    rest = clock * ClusterPlatform(4, 1000, 0).all_reduce_seconds(2, 4_000)
    assert quick[Phase.BP] == pytest.approx(alone[Phase.BP] + rest), "gradients are hidden altogether"


def test_one_device_is_the_accelerator() -> None:
    plain = AcceleratorCost(ACCELERATOR, NET, lambda config: 100)
    for method in ("bp", "feedback"):
        assert model("devices=1").run_cost(run(method)) == plain.run_cost(run(method))


def test_smaller_batches_save_little_where_steps_are_limited_by_the_exchange() -> None:
    large, half = (model("devices=16,link=0.01,latency=5").run_cost(run("bp", batch_size=size)) for size in (128, 64))
    assert half > 0.9 * large
    large, half = (model("devices=1").run_cost(run("bp", batch_size=size)) for size in (128, 64))
    assert half < 0.65 * large


def test_details() -> None:
    details = model("devices=4,link=0.1").details(run("feedback"))
    assert details["samples_per_device"] == 16
    assert details["exchanged_bytes"] == {"bp": 69_536, "gp": 2_000}
    assert (
        details["compute_cost"]
        < model("devices=4,link=0.1").run_cost(run("feedback"))
        < details["cost_without_overlap"]
    )


def test_text_form() -> None:
    assert parse_cluster("devices=64, link=2.5,latency=1,overlap=no") == ClusterPlatform(64, 2.5, 1.0, overlap=False)
    assert str(parse_cluster("devices=8")) == "devices=8,link=10,latency=5"
    assert str(ClusterPlatform(8, overlap=False)) == "devices=8,link=10,latency=5,overlap=no"
    form = (
        "write for example devices=16,link=10,latency=5 (gigabytes per second, microseconds), and overlap=no for none"
    )
    for text, word in (
        ("devices=0", "devices=0"),
        ("16", "16"),
        ("link=-1", "link=-1"),
        ("link=x", "link=x"),
        ("latency=inf", "latency=inf"),
        ("overlap=maybe", "overlap=maybe"),
        ("devices=2,devices=4", "devices=4"),
    ):
        with pytest.raises(OptionError) as caught:
            parse_cluster(text)
        assert str(caught.value) == f"cannot read '{word}' in --cluster '{text}'; {form}."


def test_what_has_no_cost_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        model("devices=16").run_cost(run("bp", batch_size=40))
    assert str(caught.value) == (
        "--cluster 'devices=16,link=10,latency=5': a batch of 40 samples does not split into 16 equal parts."
    )
    mixed = TrainConfig.from_dict(
        {"method": "zero", "batches": 12, "batch_size": 64, "ratio": "sites=fc1"}, "test", foreign="drop"
    )
    with pytest.raises(OptionError, match="for which there is no cluster cost model; choose a schedule such as 1:1.$"):
        model("devices=4").run_cost(mixed)

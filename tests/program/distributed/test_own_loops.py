"""A user's own loop under DDP and FSDP2: several processes train as one does on the joined batch."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which every optimizer imports: now, not in each fork
import torch.distributed as dist
from benchmarks.collectives import Collectives, count
from tests.marks import slow
from tests.program.distributed.own_loops import (
    Loop,
    data,
    gathered,
    in_processes,
    is_same_everywhere,
    loss_of,
    one_thread,
    schedule_of,
    share,
    small_vgg,
)
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import adagp
from adagp.layers.sites import Site

pytestmark = pytest.mark.medium

Weights = dict[str, Tensor]
BATCHES = 12
TOLERANCE = 1e-5
"""Of weights of order 1 after twelve batches, six of them GP."""
FREE: dict[str, Any] = {"engine": adagp.EngineOptions(guard=adagp.Guard(1e6))}
OPTIONS: dict[str, dict[str, Any]] = {
    "adagp": {"predictor_lr": 1e-2} | FREE,
    "feedback": {"class_features": True} | FREE,
    "zero": FREE,
    "bp": {},
}
"""Predictions large enough to matter, and nothing that the guard rejects."""


def engine_with(method: str, **options: Any) -> dict[str, Any]:
    """Return the engine's options of a method with some changed."""
    return {"engine": replace(OPTIONS[method].get("engine", adagp.EngineOptions()), **options)}


def train(way: str, model: str, method: str, optimizer: str = "sgd", **options: Any) -> tuple[list[str], Weights]:
    loop = Loop(way, model, method, optimizer, **OPTIONS.get(method, FREE) | options)
    loop.train(0, BATCHES)
    return loop.phases, loop.weights()


def train_everywhere(ways: list[str], models: list[str]) -> dict[tuple[str, str, str], tuple[list[str], Weights]]:
    found = {}
    for way in ways:
        for model in models:
            for method in OPTIONS:
                phases, weights = found[way, model, method] = train(way, model, method)
                assert is_same_everywhere(weights), (way, model, method)
                assert is_same_everywhere(phases)
    return found


def difference(one: Weights, other: Weights) -> float:
    assert one.keys() == other.keys()
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("size", "ways", "models"),
    [(2, ["ddp", "fsdp"], ["vgg"]), slow(4, ["ddp", "fsdp", "hsdp"], ["vgg", "transformer"])],
)
def test_several_processes_train_as_one(size: int, ways: list[str], models: list[str], tmp_path: Path) -> None:
    found = in_processes(tmp_path, size, train_everywhere, ways, models)[0]
    with one_thread():
        alone = {(model, method): train("alone", model, method) for model in models for method in OPTIONS}
    for (way, model, method), (phases, weights) in found.items():
        expected, whole = alone[model, method]
        assert phases == expected
        assert difference(weights, whole) < TOLERANCE, (way, model, method)
        assert method == "bp" or phases.count("gp") == 6
    for model in models:
        for method in ("adagp", "feedback"):
            assert difference(alone[model, method][1], alone[model, "zero"][1]) > 100 * TOLERANCE, "predictions matter"


def control_everywhere(ways: list[str]) -> dict[str, Weights]:
    weights = {}
    for way in ways:
        loop = Loop(way, "vgg", "control", **FREE)
        loop.train(0, BATCHES)
        weights[way] = loop.weights()
        assert is_same_everywhere(weights[way]), way
        plain, whole = Loop(way, "vgg", None), Loop(way, "vgg", "control", true_share="1", **FREE)
        for other in (plain, whole):
            other.train(0, BATCHES)
        found = whole.weights()
        assert all(torch.equal(one, found[name]) for name, one in plain.weights().items()), way
    return weights


@pytest.mark.slow
def test_a_split_batch_in_several_processes(tmp_path: Path) -> None:
    """Each splits its own samples. All end with the same weights; with a share of 1 these are those of plain PyTorch."""
    weights = in_processes(tmp_path, 2, control_everywhere, ["ddp", "fsdp"])[0]
    assert difference(weights["ddp"], weights["fsdp"]) < TOLERANCE


def both_loops(ways: dict[str, str]) -> None:
    for way, method in ways.items():
        plain, ours = Loop(way, "vgg", None), Loop(way, "vgg", method)
        for loop in (plain, ours):
            loop.train(0, 3)
        assert set(ours.phases) == {"warmup"}
        weights = ours.weights()
        assert all(torch.equal(one, weights[name]) for name, one in plain.weights().items()), (way, method)


@pytest.mark.slow
def test_bp_batches_are_those_of_the_loop_without_adagp(tmp_path: Path) -> None:
    in_processes(tmp_path, 4, both_loops, {"ddp": "feedback", "fsdp": "adagp", "hsdp": "feedback"})


JOINT = [name for name in adagp.METHODS if name not in ("control", "remap_program")]
"""Methods that train in several processes as in one. `control` draws the samples of each process by themselves;
`remap_program` is rejected (tests/papers/remap)."""


def any_method(way: str, method: str) -> Loop:
    """Train by a method with its own schedule where that is partial: some sites from the source, others by backprop."""
    given = {"schedule": None} if method in ("bp", *PARTIAL) else {"schedule": "2:1", "warmup": "3 batches"}
    loop = Loop(way, "vgg", method, **given)
    loop.train(0, 9)
    return loop


PARTIAL = ("zero", "random", "topk")
OF_SHARES = {"topk", "dni", "dni_labels", "dni_decoupled"}
"""Methods that look at more than means over a share: the largest of its samples, networks of each process's own."""


def all_methods(ways: list[str]) -> dict[tuple[str, str], Weights]:
    found = {}
    for way in ways:
        for method in JOINT:
            loop = any_method(way, method)
            weights = found[way, method] = loop.weights()
            assert is_same_everywhere(weights), (way, method)
            assert is_same_everywhere(loop.phases)
    return found


@pytest.mark.slow
def test_every_method_works_and_most_train_as_one_process_does(tmp_path: Path) -> None:
    found = in_processes(tmp_path, 2, all_methods, ["ddp", "fsdp"])[0]
    with one_thread():
        alone = {method: any_method("alone", method).weights() for method in JOINT}
    assert len(found) == 2 * len(alone)
    for (way, method), weights in found.items():
        if method not in OF_SHARES:
            assert difference(weights, alone[method]) < TOLERANCE, (way, method)


class Alone(adagp.Source):
    """A source of a user's own, which knows nothing of processes; it may go wrong in all but the first."""

    learns = True

    def __init__(self, *, wrong: bool) -> None:
        self.wrong = wrong

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        rank = dist.get_rank()
        return [
            torch.full(site.weight.shape, torch.nan if self.wrong and rank else 1e-3 * (1 + rank)) for site in sites
        ]

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        for site, gradient in zip(sites, gradients, strict=True):
            assert gradient.shape == site.weight.shape
            assert not isinstance(gradient, DTensor)


def sources_of_users(ways: list[str]) -> None:
    for way in ways:
        for wrong in (False, True):
            loop = Loop(way, "vgg", None)
            loop.trainer = adagp.attach(
                loop.model,
                loop.optimizer,
                steps=1000,
                schedule=schedule_of("alone"),
                sources={"alone": Alone(wrong=wrong)},
            )
            loop.train(0, 5)
            assert is_same_everywhere(loop.weights())
            assert loop.phases[3] == ("guarded" if wrong else "gp")
            assert is_same_everywhere(loop.phases)
            if not wrong:  # the mean of 1 and 2 thousandths
                grads = gathered(
                    {name: one.grad for name, one in loop.model.named_parameters() if one.grad is not None}
                )
                assert all(torch.allclose(one, torch.tensor(1.5e-3)) for one in grads.values())
                assert len(grads) == 6


@pytest.mark.slow
def test_sources_of_users_are_averaged_and_the_guard_checks_the_mean(tmp_path: Path) -> None:
    in_processes(tmp_path, 2, sources_of_users, ["ddp", "fsdp"])


def hand_written(
    way: str, method: str, optimizer: str, *, batches: int = BATCHES, compiled: bool = False
) -> tuple[list[float], Weights]:
    """Micro-batches without synchronisation, gradient clipping and, every fourth batch, an evaluation."""
    # The compiler looks at a tensor between two parts of a model that it cannot compile as one (FSDP2's hooks).
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    loop = Loop(
        way,
        "vgg",
        method,
        optimizer,
        **OPTIONS[method] | engine_with(method, compile="eager" if compiled else False),
    )
    assert loop.trainer is not None
    norms = []
    for step in range(batches):
        inputs, targets = (micro_batches(one) for one in data("vgg", step))
        with loop.trainer.batch() as batch:
            for place in range(2):
                with without_synchronisation(loop.model, more=place == 0):
                    loss = loss_of(loop.model(inputs[place]), targets[place]) / 2
                    batch.backward(loss, more=place == 0)
            norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
            norms.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
            batch.step()
        if step % 4 == 1:
            with torch.no_grad():
                loop.model(inputs[0])
    return norms, loop.weights()


def micro_batches(whole: Tensor) -> list[Tensor]:
    """Return this process's two micro-batches; one process alone has in each of them what two would have there."""
    if dist.is_initialized():
        return list(share(whole).chunk(2))
    return [torch.cat(parts) for parts in zip(*(one.chunk(2) for one in whole.chunk(2)), strict=True)]


@contextmanager
def without_synchronisation(model: nn.Module, *, more: bool) -> Iterator[None]:
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not more)
    with model.no_sync() if isinstance(model, DistributedDataParallel) and more else nullcontext():
        yield


Case = tuple[str, str, dict[str, Any]]
CASES: list[Case] = [("adagp", "adam", {}), ("feedback", "adamw", {})]
COMPILED: list[Case] = [("adagp", "sgd", {"batches": 6, "compiled": True})]


def hand_written_loops(ways: list[str], cases: list[Case]) -> list[tuple[str, Case, list[float], Weights]]:
    found = []
    for way in ways:
        for case in cases:
            norms, weights = hand_written(way, *case[:2], **case[2])
            assert is_same_everywhere(weights)
            found.append((way, case, norms, weights))
    return found


@pytest.mark.parametrize("cases", [CASES, slow(COMPILED)], ids=["plain", "compiled"])
def test_micro_batches_clipping_and_evaluations_work_as_in_one_process(cases: list[Case], tmp_path: Path) -> None:
    found = in_processes(tmp_path, 2, hand_written_loops, ["ddp", "fsdp"], cases)[0]
    with one_thread():
        alone = {case[0]: hand_written("alone", *case[:2], **case[2]) for case in cases}
    torch._dynamo.reset()
    for way, case, norms, weights in found:
        assert norms == pytest.approx(alone[case[0]][0], rel=1e-3), (way, case)
        assert difference(weights, alone[case[0]][1]) < TOLERANCE, (way, case)


def resumed(ways: list[str]) -> None:
    for way in ways:
        for method in ("adagp", "feedback", "feedback_replay", "average"):
            unbroken = Loop(way, "vgg", method, engine=adagp.EngineOptions(metrics_every=2))
            unbroken.train(0, 5)
            assert unbroken.trainer is not None
            file = io.BytesIO()
            torch.save(
                [unbroken.trainer.state_dict(), unbroken.model.state_dict(), unbroken.optimizer.state_dict()], file
            )
            unbroken.train(5, 9)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            again = Loop(way, "vgg", method, engine=adagp.EngineOptions(metrics_every=2))
            assert again.trainer is not None
            again.trainer.load_state_dict(saved[0])
            again.model.load_state_dict(saved[1])
            again.optimizer.load_state_dict(saved[2])
            again.train(5, 9)
            found = again.weights()
            assert all(torch.equal(one, found[name]) for name, one in unbroken.weights().items()), (way, method)
            assert unbroken.trainer.read_sites() == again.trainer.read_sites()


@pytest.mark.slow
def test_a_resumed_loop_ends_with_the_same_bits(tmp_path: Path) -> None:
    in_processes(tmp_path, 2, resumed, ["ddp", "fsdp"])


def bytes_by_phase(way: str, method: str) -> dict[str, Collectives]:
    loop = Loop(way, "vgg", method, **OPTIONS[method] | engine_with(method, metrics_every=0))
    found = {}
    for step in range(7):
        sent = count(partial(loop.train, step, step + 1))
        found[loop.phases[-1]] = sent
    return found


def what_is_sent(ways: list[str]) -> dict[tuple[str, str, str], tuple[dict[str, int], dict[str, int]]]:
    return {
        (way, method, phase): (dict(one.sent), dict(one.calls))
        for way in ways
        for method in ("adagp", "feedback")
        for phase, one in bytes_by_phase(way, method).items()
    }


def test_gp_batches_reduce_no_gradients_and_fsdp_gathers_parameters_once(tmp_path: Path) -> None:
    found = in_processes(tmp_path, 2, what_is_sent, ["ddp", "fsdp"])[0]
    model = small_vgg()
    weights = sum(one.numel() for one in model.parameters()) * 4
    summaries = 4 * (16 * (6 + 8 + 12 + 10 + 20 + 3) + 7 + 6)
    """The sites' summaries, 4x4 numbers an output channel, their samples, and which of them were called."""
    for way in ("ddp", "fsdp"):
        for method in ("adagp", "feedback"):
            gp, bp = found[way, method, "gp"][0], found[way, method, "bp"][0]
            assert "gradients reduced" not in gp
            assert bp["gradients reduced"] >= weights
            assert ("parameters gathered" in gp) == (way == "fsdp")
    assert found["ddp", "adagp", "gp"] == ({"seen by sources": summaries}, {"seen by sources": 1})
    assert found["fsdp", "adagp", "gp"][0]["seen by sources"] == summaries + 6 * 4
    assert weights <= found["fsdp", "adagp", "gp"][0]["parameters gathered"] < 1.1 * weights  # padded

"""`adagp train --parallel`, in one process: what it rejects."""

from collections.abc import Callable
from typing import Any


def test_without_torchrun_it_is_told_how(program: Callable[..., Any]) -> None:
    ended = program("train", "--parallel", "data")
    wanted = (
        "error: --parallel needs processes: start them with torchrun --nproc-per-node 4 -m adagp train --parallel ...\n"
    )
    assert (ended.code, ended.err) == (2, wanted)


def test_an_unknown_way_is_answered_with_the_known(program: Callable[..., Any]) -> None:
    ended = program("train", "--parallel", "pipeline:gpip")
    assert ended.code == 2
    assert ended.err == (
        "error: unknown parallel 'pipeline:gpip'. Did you mean 'pipeline:gpipe'? Choose from: data, "
        "data=2,pipeline=4, fsdp, fsdp=2,pipeline=2, none, pipeline:chimera, pipeline:dapple, pipeline:gpipe, "
        "pipeline:interleaved, pipeline:zb-h1, pipeline:zb-v.\n"
    )

"""Benchmarks in several processes of this machine, each with one thread."""

import multiprocessing
import socket
from collections.abc import Callable

import torch


def run_in_processes(work: Callable[[int, int], None], count: int) -> None:
    """Call `work(rank, port)` in as many processes, where `port` is free for their meeting, and wait for them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank, port)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

"""The peak memory of a GP batch against the least there is: a forward without autograd, gradients, optimizer state.

Each is measured in a process of its own: its peak resident memory less that before the model was built. Large tensors get
mappings of their own (`MALLOC_MMAP_THRESHOLD_`), so that freed memory always returns to the system; in the heap it would do so
or not by chance.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from adagp.papers.adagp.source import PredictedSource
from adagp.program.train.session import peak_memory
from adagp.schedules import Ladder, Rung, WarmUp
from benchmarks.measure import Ratio
from benchmarks.subjects import Subject, after


def gp_memory(subject: Subject, at_most: float | None) -> Ratio:
    """Return the ratio for one model."""
    ours, least = gp_bytes(subject), _peak(subject, "plain")
    detail = f"{ours / 2**20:.0f} / {least / 2**20:.0f} MiB"
    return Ratio(f"{subject.name}: peak memory of gp / forward, gradients, state", ours / least, at_most, detail)


def gp_bytes(subject: Subject) -> int:
    """Return the bytes of GP batches at their peak."""
    return _peak(subject, "gp")


def bp_bytes(subject: Subject) -> int:
    """Return the bytes of plain BP batches at their peak."""
    return _peak(subject, "bp")


def _peak(subject: Subject, kind: str) -> int:
    arguments = [subject.model, str(subject.batch), str(subject.width), kind, str(torch.get_num_threads())]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    return int(done.stdout)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _warm_up() -> None:
    """Load what both kinds of batch need of the libraries: their code is in the resident memory once it has run."""
    digits = Subject("digits_cnn", 32)
    digits.plain(backward=True)()
    after(digits.under(WarmUp(Ladder((Rung(1, 0),)), epochs=1)), 4)
    features = torch.ones(512, 65, dtype=torch.double)  # what larger models need besides: norms of wide predictions,
    torch.dot((features.T @ features).view(-1), torch.ones(65 * 65, dtype=torch.double))
    with torch.no_grad():  # and a convolution's answer to a single sample
        nn.Conv2d(3, 32, 3, padding=1)(torch.ones(1, 3, 32, 32))


def main() -> None:
    """Be the process that is measured: print its bytes."""
    model, batch, width, kind, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    subject = Subject(model, int(batch), float(width))
    _warm_up()
    inputs, targets = subject.data()
    before = _resident()
    if kind == "gp":
        trainer = subject.trainer(Ladder((Rung(1, 0),)))
        source = trainer.sources["predicted"]
        assert isinstance(source, PredictedSource)
        for parameter in source.network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        source.learner.step(torch.zeros(()))  # its optimizer has a state after any BP batch
        for _ in range(4):
            trainer.step(inputs, targets, subject.loss)
    else:
        run = subject.plain(backward=kind == "bp")
        for _ in range(4):
            run()
    print(peak_memory(torch.device("cpu")) - before)


if __name__ == "__main__":
    main()

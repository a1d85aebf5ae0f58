"""What a GP batch costs on many chips, over a batch by backprop: `python -m benchmarks.many_chips`.

Data parallel, so that each chip has a share of the batch. Everything is modelled. The tables are those of
docs/guides/many-chips.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from adagp.core.methods import find_method
from adagp.hw import Accelerator, Workload
from adagp.hw.hardware_file import with_preset
from adagp.hw.settings import with_settings
from adagp.papers.feedback.hardware import FeedbackWork
from adagp.pipe.chips import ChipTraining, Fabric, ManyChips, parse_fabric, parse_parallelism
from adagp.pipe.timeline import Link
from adagp.program.workloads import model_workload

SMALL = Accelerator()
LARGE = with_settings(with_preset(Accelerator(), "tpu-v1"), {"word_bits": 16, "bandwidth": 900.0})
CHIPS = {"small": SMALL, "large": LARGE}
"""ADA-GP's 180 PEs at 200 MHz; 256 x 256 PEs at 700 MHz with 900 GB/s of memory."""
FABRICS = {"ring, 10 GB/s, 5 us": ("ring", Link(10e9, 5e-6)), "torus, 100 GB/s, 1 us": ("torus", Link(100e9, 1e-6))}
SIZES = (4, 16, 64)
METHODS = ("adagp", "feedback")


@cache
def workloads() -> dict[str, Workload]:
    """Return the models by name."""
    return {
        "VGG13, 32x32": model_workload("vgg13", "cifar10"),
        "ResNet50, 224x224": model_workload("resnet50", "imagenet"),
        "GPT-2, 1,024 tokens": model_workload("hf:examples/shapes/gpt2.json", "cifar10", (1024,)),
    }


def training(model: str, chip: str, fabric: str, chips: int, batch: int, method: str, zero: int = 0) -> ChipTraining:
    """Return a data-parallel training."""
    kind, link = FABRICS[fabric]
    return ChipTraining(
        workloads()[model],
        CHIPS[chip],
        parse_parallelism(f"data={chips}" + (f",zero={zero}" if zero else ""), chips),
        Fabric(parse_fabric(kind, chips), link),
        batch,
        design="max",
        source=find_method(method).source,
    )


def ratio(each: ChipTraining) -> float:
    """Return a GP batch over a batch by backprop."""
    chips = ManyChips(each)
    return chips.predicted.seconds / chips.backprop.seconds


def price_rows(batch: int) -> Iterator[Sequence[str]]:
    """Yield the price of a GP batch by model, chip and fabric; in brackets without overlap."""
    for model in workloads():
        for chip in CHIPS:
            for fabric in FABRICS:
                cells = []
                for method in METHODS:
                    for size in SIZES:
                        each = training(model, chip, fabric, size, batch, method)
                        cells.append(f"{ratio(each):.2f} ({ratio(replace(each, overlap=False)):.2f})")
                yield model, chip, fabric, *cells


def term_rows(batch: int, chips: int, fabric: str) -> Iterator[Sequence[str]]:
    """Yield where the time goes: compute and exchange of a batch by backprop and of GP batches, in milliseconds."""
    for model in workloads():
        for chip in CHIPS:
            for method in METHODS:
                costs = ManyChips(training(model, chip, fabric, chips, batch, method))
                cells = []
                for each in (costs.backprop, costs.predicted):
                    exchanged = each.seconds - each.terms["compute"]
                    cells += [f"{1e3 * each.terms['compute']:.4g}", f"{1e3 * exchanged:.4g}"]
                yield model, chip, method, *cells, f"{costs.predicted.seconds / costs.backprop.seconds:.2f}"


WITHOUT_SUBTRACTING = FeedbackWork(subtracts=False)
"""The bias correction as one stored gradient: nothing is subtracted from mixed inputs in GP batches."""


def cheaper_rows(batch: int, chips: int, fabric: str) -> Iterator[Sequence[str]]:
    """Yield the price of a GP batch of feedback as it is, and changed."""
    for model in workloads():
        for chip in CHIPS:
            plain = training(model, chip, fabric, chips, batch, "feedback")
            parts = training(model, chip, fabric, chips, batch, "feedback", zero=1)
            changed = (
                plain,
                parts,
                replace(plain, variant=FeedbackWork(features=16)),
                replace(plain, variant=WITHOUT_SUBTRACTING),
            )
            yield model, chip, *(f"{ratio(each):.2f}" for each in changed)


def table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    prices = [f"{method}, {size}" for method in METHODS for size in SIZES]
    for batch in (1024, 4096):
        print(f"\nGP batch over backprop, batch {batch:,}")
        table(("model", "chip", "links", *prices), price_rows(batch))
    slow = next(iter(FABRICS))
    print(f"\nBatch 1,024 on 64 chips, {slow}, milliseconds")
    columns = (
        "model",
        "chip",
        "method",
        "backprop: compute",
        "exchange",
        "GP: compute",
        "exchange",
        "GP / backprop",
    )
    table(columns, term_rows(1024, 64, slow))
    print(f"\nGP batch of feedback over backprop, batch 1,024 on 64 chips, {slow}")
    changes = ("model", "chip", "now", "zero=1", "features=16", "stored correction")
    table(changes, cheaper_rows(1024, 64, slow))

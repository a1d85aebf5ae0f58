"""Which commands of the documents are not carried out to their end in the tests, and why. No other is left out.

They are still given to the program: it parses them, checks every option, reads the data and builds the models, up to the point
where the work itself would begin.
"""

import re
from collections.abc import Sequence

WORK = (
    ("adagp.program.train.session:Session", "run"),
    ("adagp.program.jobs", "get_context"),
    ("adagp.rtl.generate", "Chip"),
    ("adagp.rtl.tiled_products", "DmaChip"),
    ("adagp.rtl.chip", "Chip"),
)
"""Where the work of commands begins: the first batch, the first process, the first chip."""

LONG = "minutes or hours of training; tests/cli and tests/program/tasks train these tasks and resume such runs"
CARD = "the method's own 20 epochs; tests/sources and tests/cli train each method"
JOBS = "many processes, for minutes or hours; tests/cli/test_compare.py and tests/cli/test_reproduce.py run small ones"
TOOLS = "builds hardware for minutes; tests/cli/test_rtl.py and tests/rtl run small ones"

STOPPED: dict[str, str] = {
    r"adagp train .*--dataset (cifar10|multi30k|voc|persuasion)": LONG,
    r"adagp train --method (?!adagp$|feedback$)(?!.*--(epochs|batches))": CARD,
    r"adagp (compare|reproduce \w*-|reproduce all|demo)": JOBS,
    r"adagp rtl (generate|simulate|run|synthesize|place)": TOOLS,
}
"""Up to where work begins: what the command is like, and why."""

PARSED: dict[str, str] = {
    r"torchrun ": "several processes, each with torch; tests/cli/test_parallel.py and tests/distributed run them",
    r"adagp rtl power": "needs OpenSTA and cells, which are Debian's; tests/rtl/test_power.py runs it where they are",
    r"adagp train --device cuda": "there is no GPU where the tests run",
    r"adagp reproduce all --report --records": "concludes every experiment; tests/program/reproduce/test_study.py does some",
}
"""Parsed only, and its options checked."""

PYTHON: dict[str, tuple[str, str, str]] = {
    "docs/distributed.md": (
        "torch.distributed.device_mesh",
        "init_device_mesh",
        "eight GPUs; tests/program/distributed/test_own_loops.py runs such loops on the CPU",
    ),
}
"""Documents whose Python stops: the module and the function where that happens, and what it would need or who runs it."""


def reason(table: dict[str, str], words: Sequence[str]) -> str | None:
    """Return why a command is in a table; None if it is not."""
    return next((why for pattern, why in table.items() if re.match(pattern, " ".join(words))), None)

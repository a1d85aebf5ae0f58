"""Count the source files whose code runs in the main commands: `python -m tools.trace_walks`.

A file counts if one of its functions or methods is called; importing it does not. The counts are those of docs/architecture.md.
`simulate` is the second run of a model: the first one also traces the model, and stores its workload in the user's cache.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

LIMITS = {"GP batch": 15, "train": 55, "compare": 60, "simulate": 35}
"""The most files that each walk may touch."""

GP_BATCH = """
import torch, adagp
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trainer = adagp.attach(model, optimizer, method="adagp", schedule="1:1", warmup=2, steps=8)
loss = torch.nn.CrossEntropyLoss()
def step():
    return trainer.step(torch.randn(8, 1, 8, 8), torch.randint(10, (8,)), loss)
while step().phase != "gp":
    pass
step()
begin()
step()
"""
CALL = "from adagp.cli import main\nbegin()\nmain({words!r})\n"
WALKS = {
    "GP batch": GP_BATCH,
    "train": CALL.format(words=["train", "--method", "adagp", "--epochs", "2", "--warmup", "1", "--out", "run"]),
    "compare": CALL.format(
        words=[
            "compare",
            "--methods",
            "bp,skip@1:1",
            "--seeds",
            "1",
            "--batches",
            "40",
            "--regimes",
            "batches",
            "--out",
            "comparison",
        ]
    ),
    "simulate": CALL.format(words=["simulate", "digits_cnn", "--epochs", "2"]),
}
TRACER = """
import pathlib, sys, threading
import adagp
root = str(pathlib.Path(adagp.__file__).parent)
called = set()
def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(root) or name in called:
        return
    while frame is not None:  # what runs while a module is imported does not count
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return
        frame = frame.f_back
    called.add(name)
def begin():
    threading.setprofile(note)
    sys.setprofile(note)
try:
    {body}
except SystemExit:
    pass
finally:
    sys.setprofile(None)
    names = sorted(name[len(root) + 1 :] for name in called)
    print("\\n".join(names), file=open({result!r}, "w"))
"""


def touched(name: str) -> list[str]:
    """Return the files that a walk touches, in a fresh interpreter and an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "files.txt"
        body = "\n    ".join(WALKS[name].strip().splitlines())
        code = TRACER.format(body=body, result=str(result))
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return [line for line in result.read_text("utf-8").splitlines() if not line.endswith("errors.py")]


def main() -> None:
    """Print the number of files of each walk, and with -v their names."""
    touched("simulate")  # fills the cache
    for name, most in LIMITS.items():
        files = touched(name)
        print(f"{name}: {len(files)} files (at most {most})")
        if "-v" in sys.argv:
            print("\n".join(f"  {file}" for file in files))


if __name__ == "__main__":
    main()

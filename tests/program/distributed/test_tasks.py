"""Translation, detection and language modelling in several processes: the joined batch's mean, not the mean of means."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import slow
from tests.program.distributed.test_session import assert_close, rows, weights

from adagp.data.translation import PARTS, SentenceBatches
from adagp.models.transformer import Transformer

pytestmark = [pytest.mark.medium, pytest.mark.usefixtures("tracer_ready")]

WORDS = ("a dog", "the tall tree", "one", "a man with a ball", "the train")
SENTENCES = [
    (f"{WORDS[one % 5]} {'runs ' * (one % 7)}.", f"{WORDS[one % 3]} {'läuft ' * (one % 4)}.") for one in range(80)
]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for part, pairs in zip(PARTS.values(), (SENTENCES, SENTENCES[::20], SENTENCES[::16]), strict=True):
        for place, language in enumerate(("en", "de")):
            text = "".join(pair[place] + "\n" for pair in pairs)
            (tmp_path / f"{part}.{language}").write_text(text, "utf-8")
    return tmp_path


@pytest.fixture
def pictures(tmp_path: Path, write_devkit: Any) -> Path:
    things = [("dog", (3, 5, 30, 40), False), ("cow", (20, 10, 60, 48), False), ("cat", (40, 2, 60, 20), False)]
    found = {f"p{number}": things[number % 3 :] for number in range(16)}
    return Path(write_devkit(found, dict(list(found.items())[:3])).parent)


COMMON: dict[str, Any] = {"ratio": "1:1", "predictor_lr": 1e-3, "optimizer": "sgd"}
TRANSLATION = COMMON | {
    "dataset": "multi30k",
    "model": "transformer",
    "vocabulary": 280,
    "batch_size": 16,
    "lr": 1e-2,
    "beam": 1,
}
DETECTION = COMMON | {"dataset": "voc", "model": "nets:detector", "image_size": 64, "batch_size": 4, "lr": 1e-3}
LANGUAGE = COMMON | {
    "dataset": "persuasion",
    "model": "decoder",
    "width": 1 / 16,
    "sequence_length": 16,
    "batch_size": 8,
    "batches": 12,
    "warmup": None,
    "warmup_batches": 5,
    "lr": 1e-2,
}


def smallest(vocabulary: int, width: float) -> Transformer:
    """Return a Transformer that is soon traced, in the place of the usual one."""
    return Transformer(vocabulary, 8, 32, layers=1)


TORCH = {"runtime": "torch"}
FEEDBACK = {"method": "feedback", "features": 8}


@pytest.mark.parametrize(
    ("name", "parallel", "more"),
    [
        slow("translation", "data", {}),
        slow("translation", "fsdp", {}),
        slow("translation", "pipeline:dapple", TORCH | FEEDBACK),
        slow("translation", "pipeline:chimera", {}),
        slow("detection", "data", {}),
        slow("detection", "pipeline:gpipe", TORCH),
        slow("detection", "pipeline:dapple", FEEDBACK),
        ("language", "data", {}),
    ],
)
def test_a_task_trains_in_several_processes_as_in_one(
    name: str,
    parallel: str,
    more: dict[str, Any],
    request: pytest.FixtureRequest,
    start: Any,
    alone: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares with other numbers of words and objects; without dropout, whose masks would be others."""
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda self, value: value)
    options = {"translation": TRANSLATION, "detection": DETECTION, "language": LANGUAGE}[name] | more
    fixture = {"translation": "texts", "detection": "pictures"}.get(name)
    place = {"data_dir": request.getfixturevalue(fixture)} if fixture else {}
    monkeypatch.setattr("adagp.models.transformer.transformer", smallest)
    if "pipeline" in parallel:  # batches of one shape: what is filled up is seen by sources
        longest = SentenceBatches._longest
        monkeypatch.setattr(SentenceBatches, "_longest", lambda self, _: longest(self, range(len(self.source))))
    expected = alone(**{name: value for name, value in options.items() if name != "runtime"}, **place)
    assert start(2, "run", parallel, **options, **place, check_every=1) == [0, 0]
    # A predictor's Adam divides a Transformer's small gradients by their size, and so enlarges what micro-batches round off.
    enlarged = name == "translation" and "pipeline" in parallel and "method" not in more
    assert_close(weights("run"), expected, 2e-4 if enlarged else 2e-5)
    metric = "perplexity" if name == "language" else "accuracy"
    for ours, theirs in zip(rows("run"), rows("alone"), strict=True):
        assert (ours["batches"], ours["answers"]) == (theirs["batches"], theirs["answers"])
        for figure in ("train_loss", "test_loss", f"train_{metric}"):
            assert ours[figure] == pytest.approx(theirs[figure], rel=1e-4)
    assert rows("run")[-1]["batches"]["gp"] > 0

"""A run that others can follow while it goes: an observer that keeps the progress file in the run's folder."""

import time
from math import isfinite
from typing import Any

from adagp.program.run.progress import ProgressFile, RunProgress
from adagp.program.train.loop import Loop, News, Observer


class FollowedRun:
    """Passes everything on to another observer, and writes now and then how far the run is, of `batches` in all."""

    def __init__(self, observer: Observer, loop: Loop, batches: int) -> None:
        self._observer, self._loop, self._batches = observer, loop, batches
        self._file = ProgressFile(loop.folder.path)
        self._begun, self._done_before = time.monotonic(), loop.trainer.done

    def __enter__(self) -> "FollowedRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.delete()

    def on_batch(self, news: News) -> None:
        """Write the file, if it is time."""
        self._observer.on_batch(news)
        if self._file.due:
            self._file.write(self._progress(news))

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Pass it on: the epoch's figures are in the folder already."""
        self._observer.on_epoch(row)

    def _progress(self, news: News) -> RunProgress:
        done = self._loop.trainer.done
        pace = (time.monotonic() - self._begun) / max(1, done - self._done_before)
        return RunProgress(
            batch=done,
            batches=self._batches,
            epoch=news.epoch + 1,
            phase=str(news.phase),
            loss=news.loss if isfinite(news.loss) else None,
            score=news.score if isfinite(news.score) else None,
            counts=self._loop.meter.counts(),
            seconds_left=pace * max(0, self._batches - done),
        )

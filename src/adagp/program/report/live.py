"""A live report: run folders watched, and a local web server whose page shows the report of runs while they train.

/            the page; /page.css, /page.js, /live.js and /library.js are its parts
/now         the unfinished runs, as HTML
/body        the report about all runs, as HTML, without modelled sections

The page requests the last two every second, with the ETag that it has; what did not change is neither read nor sent.
"""

import hashlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from statistics import mean
from threading import Lock
from time import monotonic
from typing import Any

from adagp.core.escape import escaped
from adagp.errors import OptionError, RunError
from adagp.program.report.page import TEMPLATES, fill_template, library, require_library, write_chapter
from adagp.program.report.run_groups import chapters
from adagp.program.report.tables import UNKNOWN, Cell, Table, count, table, words
from adagp.program.run.documents import ANYTHING, COUNT, ListOf, TableOf, read_document, record_of
from adagp.program.run.folder import CONFIG, MEGABYTE, PROGRESS, STARTING, RunProgress, is_held, read_progress
from adagp.program.run.record import (
    COMPARISON,
    EXPECTED,
    Epoch,
    RunRecord,
    is_run,
    name_runs,
    read_run,
    subfolders,
    walk_folders,
)

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Modification time, size and inode of several files; None for a missing file."""
CLOCK_TICK = 1_000_000_000
"""Resolution of a file system's modification times, in nanoseconds, at worst."""
RECORD_FILES = (*EXPECTED, "summary.json")


@dataclass(frozen=True)
class WatchedRun:
    """The present state of a run; `running` if a process holds its lock, `progress` as that process reports it."""

    record: RunRecord
    running: bool
    progress: RunProgress | None


@dataclass
class _Known:
    """What was read of a run, and the stamps of the files at that time."""

    stamp: Stamp
    record: RunRecord
    progress_stamp: Stamp = ()
    progress: RunProgress | None = None


class Watch:
    """The runs below some folders. `look` reads those that changed since the last call; `reads` counts them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.is_dir():
                raise RunError(f"'{path}' cannot be watched: there is no such folder.")
        self.reads = 0
        self._paths = tuple(paths)
        self._known: dict[Path, _Known] = {}
        self._listed: dict[Path, tuple[int, tuple[Path, ...]]] = {}

    def look(self) -> list[WatchedRun]:
        """Return the present runs, in the order of their names."""
        names = name_runs((path, folder) for path in self._paths for folder in self._runs_below(path))
        self._known = {path: known for path, known in self._known.items() if path in names}
        return [self._seen(path, name) for path, name in names.items()]

    def _seen(self, path: Path, name: str) -> WatchedRun:
        stamp, known = _stamp(path, RECORD_FILES), self._known.get(path)
        if known is None or known.stamp != stamp or known.record.name != name:
            self.reads += 1
            known = self._known[path] = _Known(stamp, read_run(path, name))
        running = not known.record.finished and is_held(path)
        moved = _stamp(path, (PROGRESS,))
        if moved != known.progress_stamp:
            known.progress_stamp, known.progress = moved, read_progress(path)
        return WatchedRun(known.record, running, known.progress if running else None)

    def _runs_below(self, root: Path) -> Iterator[Path]:
        """Yield the run folders at or below `root`; neither folders inside a run nor links are followed."""
        folders = [root] if is_run(root) else walk_folders(root, self._folders, into_runs=False)
        yield from (folder for folder in folders if is_run(folder) and not _is_starting(folder))

    def _folders(self, folder: Path) -> tuple[Path, ...]:
        """Return the subfolders of a folder, listed again only if its modification time changed."""
        try:
            changed = folder.stat().st_mtime_ns
            previous = self._listed.get(folder)
            if previous is not None and previous[0] == changed:
                return previous[1]
        except OSError:  # deleted meanwhile
            return ()
        folders = tuple(subfolders(folder))
        # Another change within the clock's resolution would keep the same modification time: list again next time.
        fresh = time.time_ns() - changed < CLOCK_TICK
        self._listed[folder] = (0 if fresh else changed, folders)
        return folders


def _is_starting(folder: Path) -> bool:
    """Return whether a run is being created there: config.json is written last."""
    return (folder / STARTING).is_file() and not (folder / CONFIG).is_file()


def _stamp(folder: Path, names: Sequence[str]) -> Stamp:
    return tuple(_file_stamp(folder / name) for name in names)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


_SHAPE = record_of({"entries": ListOf(TableOf(ANYTHING)), "seeds": COUNT, "regimes": ListOf(ANYTHING)})
PHASES = {"warmup": "warm-up", "bp": "BP", "gp": "GP"}
COLUMNS = (
    *("run", "method", "state", "epoch", "batch", "phase", "GP share", "rejected by the guard", "training loss"),
    *("training value", "time left"),
)


@dataclass(frozen=True)
class RunStatus:
    """A sentence about all runs, one about each running comparison, and a table of the unfinished runs."""

    heading: str
    comparisons: tuple[str, ...]
    runs: Table | None


def run_status(runs: Sequence[WatchedRun]) -> RunStatus:
    """Summarise the present state of `runs`."""
    open_runs = [run for run in runs if not run.record.finished]
    running = [run for run in open_runs if run.running]
    done = len(runs) - len(open_runs)
    heading = f"{len(running)} running, {len(open_runs) - len(running)} stopped or waiting, {done} finished"
    rows = [_row(run) for run in sorted(open_runs, key=lambda run: not run.running)]
    unfinished = table("Runs that are not finished", COLUMNS, rows) if rows else None
    return RunStatus(heading if runs else "no run yet", tuple(_comparisons(runs)), unfinished)


@dataclass(frozen=True)
class _Position:
    """How far a run is: in the epoch it trains now, or after its last finished one."""

    epoch: int
    batch: Cell
    phase: str
    counts: Mapping[str, int]
    loss: float | None
    value: float | None


def _position(run: WatchedRun) -> _Position:
    progress, epochs = run.progress, run.record.epochs
    if progress is not None:
        batch = Cell(f"{progress.batch:,} of {progress.batches:,}", progress.batch)
        phase = PHASES.get(progress.phase, progress.phase)
        return _Position(progress.epoch, batch, phase, progress.counts, progress.loss, progress.score)
    if not epochs:
        return _Position(0, Cell(UNKNOWN), UNKNOWN, {}, None, None)
    last, batch = epochs[-1], count(run.record.batch_clock[-1])
    return _Position(len(epochs), batch, last.label, last.batches, last.train_loss, last.train_value)


def _row(run: WatchedRun) -> tuple[Cell, ...]:
    record, position = run.record, _position(run)
    stopped = "stopped" if record.epochs else "waiting"
    return (
        words(record.name),
        words(str(record.config.get("method", "?"))),
        words("running" if run.running else stopped),
        Cell(f"{position.epoch} of {record.planned_epochs or UNKNOWN}", len(record.epochs)),
        position.batch,
        words(position.phase),
        _share(position.counts),
        _rejected(position.counts, record.epochs[-1] if record.epochs else None),
        _known_cell(position.loss, lambda loss: f"{loss:.4g}"),
        _known_cell(position.value, record.metric.text),
        _known_cell(time_left(run), duration),
    )


def _known_cell(value: float | None, text: Callable[[float], str]) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(text(value), value)


def _share(counts: Mapping[str, int]) -> Cell:
    predicted = counts.get("gp", 0) + counts.get("guarded", 0)
    whole = predicted + counts.get("bp", 0)
    return Cell(f"{predicted / whole:.0%}", predicted / whole) if whole else Cell(UNKNOWN)


def _rejected(counts: Mapping[str, int], last: Epoch | None) -> Cell:
    """Return the batches that the guard rejected in the epoch, and the share of gradients in the last finished one."""
    batches, share = counts.get("guarded", 0), last.rejected_share if last else 0.0
    return Cell(f"{batches:,}", batches, f"{share:.1%} of the gradients" if share else "")


def time_left(run: WatchedRun) -> float | None:
    """Estimate the remaining seconds of a running run, from its progress or its past epochs; None if unknown."""
    if not run.running:
        return None
    if run.progress is not None:
        return run.progress.seconds_left
    planned, record = run.record.planned_epochs, run.record
    if planned is None or not record.epochs:
        return None
    return mean(_wall(record)) * max(0, planned - len(record.epochs))


def _wall(record: RunRecord) -> list[float]:
    return [sum(epoch.seconds.values()) for epoch in record.epochs]


def duration(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _comparisons(runs: Sequence[WatchedRun]) -> list[str]:
    by_folder: dict[Path, list[WatchedRun]] = {}
    for run in runs:
        if run.record.path.parent.name == "runs":
            by_folder.setdefault(run.record.path.parent.parent, []).append(run)
    return [text for folder, own in by_folder.items() if (text := _comparison(folder, own))]


def _comparison(folder: Path, runs: Sequence[WatchedRun]) -> str:
    finished = [run.record for run in runs if run.record.finished]
    running = [run for run in runs if run.running]
    planned = _planned(folder) if running else None
    if planned is None:
        return ""
    text = f"Comparison {escaped(folder.name)}: {len(finished)} of about {max(planned, len(runs))} runs are finished"
    left = _comparison_time_left(finished, running, planned)
    return f"{text}." if left is None else f"{text}, about {duration(left)} left."


def _comparison_time_left(finished: Sequence[RunRecord], running: Sequence[WatchedRun], planned: int) -> float | None:
    remaining = [left for run in running if (left := time_left(run)) is not None]
    if not finished or len(remaining) < len(running):
        return None
    waiting = max(0, planned - len(finished) - len(running))
    return (sum(remaining) + waiting * mean(sum(_wall(record)) for record in finished)) / len(running)


def _planned(folder: Path) -> int | None:
    """Estimate the number of runs of a comparison; None if the folder holds none.

    Backprop's runs are the same in all regimes; those of other methods may be, once their costs are known.
    """
    try:
        options: dict[str, Any] = read_document(folder / COMPARISON, _SHAPE, MEGABYTE)
    except RunError:
        return None
    others = max(0, len(options["entries"]) - 1)
    curve = options.get("curve")
    lengths = sum(factor != 1 for factor in curve) if isinstance(curve, list) else 0
    return int(options["seeds"]) * (1 + others * len(options["regimes"]) + lengths)


HOST = "127.0.0.1"
PORT = 8765
POLL_SECONDS = 0.5
"""Shortest time between two looks at the folders."""
REST = 4
"""The server rests this many times as long as its last look and report took: the CPU belongs to the training."""
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HTML, CSS, SCRIPT = "text/html", "text/css", "text/javascript"


class LiveReport:
    """The content of the page for some folders. Thread-safe: several browsers may request it at the same time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        require_library()
        self._watch = Watch(paths)
        self._places = ", ".join(escaped(path) for path in paths)
        self._command = escaped(shlex.join(["adagp", "report", *map(str, paths), "--watch"]))
        self._lock = Lock()
        self._next_look = 0.0
        self._runs: list[WatchedRun] = []
        self._body: tuple[list[WatchedRun], str] | None = None

    def page(self) -> str:
        """Return the static part of the page."""
        return fill_template("live.html.jinja", places=self._places)

    def now(self) -> str:
        """Return the status of the unfinished runs."""
        with self._lock:
            return fill_template("now.html.jinja", now=run_status(self._look()))

    def body(self) -> str:
        """Return the report, rendered again only if a run changed, appeared or disappeared."""
        with self._lock:
            runs = self._look()
            if self._body is None or not _same(self._body[0], runs):
                start = monotonic()
                self._body = (runs, self._write(runs))
                self._next_look += REST * (monotonic() - start)
            return self._body[1]

    def _look(self) -> list[WatchedRun]:
        start = monotonic()
        if start >= self._next_look:
            self._runs = self._watch.look()
            self._next_look = monotonic() + max(POLL_SECONDS, REST * (monotonic() - start))
        return self._runs

    def _write(self, runs: Sequence[WatchedRun]) -> str:
        records = [run.record for run in runs]
        return fill_template(
            "body.html.jinja",
            runs=records,
            chapters=[
                write_chapter(chapter, number, model=False) for number, chapter in enumerate(chapters(records), start=1)
            ],
            titled=True,
            broken=[run.record for run in runs if run.record.problems and not run.running],
            command=self._command,
        )


def _same(before: Sequence[WatchedRun], runs: Sequence[WatchedRun]) -> bool:
    """Return whether no run was read again, appeared, disappeared, started or stopped."""
    pairs = zip(before, runs, strict=False)
    return len(before) == len(runs) and all(
        old.record is new.record and old.running == new.running for old, new in pairs
    )


class LiveServer(ThreadingHTTPServer):
    """Serves a live report to browsers on this machine; `port` 0 is any free port."""

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int = PORT) -> None:
        self.report = report
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OptionError(
                f"cannot serve on port {port}: {error.strerror}. Choose another --port, or 0 for any free port."
            ) from None

    def server_bind(self) -> None:
        """Bind the port without the DNS lookup of the base class."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections; report other errors as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers a request. The `Host` header must name this machine, against DNS rebinding."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "adagp", ""
    timeout = 60

    def do_GET(self) -> None:
        """Send a part of the page, or 304 if it did not change."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Send the headers only."""
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        if self.headers.get("Host") not in self._own_names():
            self._send(HTTPStatus.FORBIDDEN, "This page is for browsers on the same machine.", "text/plain")
            return
        part = self._parts().get(self.path.split("?")[0])
        if part is None:
            self._send(HTTPStatus.NOT_FOUND, "There is no such page.", "text/plain", with_content=with_content)
            return
        kind, make = part
        self._send(HTTPStatus.OK, make(), kind, with_content=with_content)

    def _own_names(self) -> set[str]:
        port = self.server.server_port
        names = {f"{name}:{port}" for name in (HOST, "localhost", "[::1]")}
        return names | {HOST, "localhost", "[::1]"} if port == 80 else names

    def _parts(self) -> dict[str, tuple[str, Callable[[], str]]]:
        report = self.server.report
        files = {"/page.css": CSS, "/page.js": SCRIPT, "/live.js": SCRIPT}
        return {
            "/": (HTML, report.page),
            "/now": (HTML, report.now),
            "/body": (HTML, report.body),
            "/library.js": (SCRIPT, library),
            **{path: (kind, (TEMPLATES / path[1:]).read_text) for path, kind in files.items()},
        }

    def _send(self, status: HTTPStatus, text: str, kind: str, *, with_content: bool = True) -> None:
        content = text.encode("utf-8", "backslashreplace")
        version = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        if status == HTTPStatus.OK and self.headers.get("If-None-Match") == version:
            status, content = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            *([] if status == HTTPStatus.NOT_MODIFIED else [("Content-Length", str(len(content)))]),
            ("ETag", version),
            ("Cache-Control", "no-cache"),
            ("Content-Security-Policy", POLICY),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the library
        """Log nothing: there is a request every second."""

"""A live report: a local web server whose page shows the report of runs while they train.

/            the page; /page.css, /page.js, /live.js and /library.js are its parts
/now         the unfinished runs, as HTML
/body        the report about all runs, as HTML, without modelled sections

The page requests the last two every second, with the ETag that it has; what did not change is neither read nor sent.
"""

import hashlib
import shlex
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Lock
from time import monotonic
from typing import Any

from adagp.core.escape import escaped
from adagp.errors import OptionError
from adagp.program.report.page import TEMPLATES, fill_template, library, require_library, write_chapter
from adagp.program.report.run_groups import chapters
from adagp.program.report.watch import Watch, WatchedRun, run_status

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

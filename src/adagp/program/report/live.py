"""Runs as they go, in a browser: a server on this machine alone, whose page shows by the report's charts what changes.

/            the page; /page.css, /page.js, /live.js and /library.js are its parts
/now         what is under way, as HTML
/body        the report about all runs, as HTML, without what is modelled

The page asks for the last two every second, with the version that it has; what did not change is neither read nor sent.
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

from adagp.core.escape import shown
from adagp.errors import OptionError
from adagp.program.report.page import TEMPLATES, fill_template, library, require_library, write_chapter
from adagp.program.report.run_groups import chapters
from adagp.program.report.watch import Watch, WatchedRun, under_way

HOST = "127.0.0.1"
PORT = 8765
LOOK_SECONDS = 0.5
"""How often the folders are looked at, at most."""
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HTML, CSS, SCRIPT = "text/html", "text/css", "text/javascript"


class LiveReport:
    """What the page shows of some folders now. Several browsers may ask at the same time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        require_library()
        self._watch = Watch(paths)
        self._places = ", ".join(shown(path) for path in paths)
        self._command = shown(shlex.join(["adagp", "report", *map(str, paths), "--watch"]))
        self._lock = Lock()
        self._looked = -LOOK_SECONDS
        self._runs: list[WatchedRun] = []
        self._body: tuple[list[WatchedRun], str] | None = None

    def page(self) -> str:
        """Return the page around all that changes."""
        return fill_template("live.html.jinja", places=self._places)

    def now(self) -> str:
        """Return what is under way."""
        with self._lock:
            return fill_template("now.html.jinja", now=under_way(self._look()))

    def body(self) -> str:
        """Return the report, written again only if a run changed, came or went."""
        with self._lock:
            runs = self._look()
            if self._body is None or not _same(self._body[0], runs):
                self._body = (runs, self._write(runs))
            return self._body[1]

    def _look(self) -> list[WatchedRun]:
        if monotonic() - self._looked >= LOOK_SECONDS:
            self._runs, self._looked = self._watch.look(), monotonic()
        return self._runs

    def _write(self, runs: Sequence[WatchedRun]) -> str:
        records = [run.record for run in runs]
        return fill_template(
            "body.html.jinja",
            runs=records,
            chapters=[write_chapter(one, place, model=False) for place, one in enumerate(chapters(records), start=1)],
            titled=True,
            broken=[run.record for run in runs if run.record.problems and not run.running],
            command=self._command,
        )


def _same(before: Sequence[WatchedRun], runs: Sequence[WatchedRun]) -> bool:
    """Tell whether no run was read again, came, went, began or stopped."""
    pairs = zip(before, runs, strict=False)
    return len(before) == len(runs) and all(
        one.record is other.record and one.running == other.running for one, other in pairs
    )


class LiveServer(ThreadingHTTPServer):
    """Serves a live report to browsers of this machine; `port` 0 is any that is free."""

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int = PORT) -> None:
        self.report = report
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OptionError(
                f"cannot serve on port {port}: {error.strerror}. Give another --port, or 0 for any that is free."
            ) from None

    def server_bind(self) -> None:
        """Take the port without asking the network for this machine's name, as the library would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that went away; what else fails is told by Python."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers a request. Its `Host` must be this machine: a name of the web may be made to point here."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "adagp", ""
    timeout = 60

    def do_GET(self) -> None:
        """Send a part of the page, or that it did not change."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Send the same without the content."""
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        if self.headers.get("Host") not in self._own_names():
            self._send(HTTPStatus.FORBIDDEN, "This page is for browsers on the same machine.", "text/plain")
            return
        found = self._parts().get(self.path.split("?")[0])
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, "There is no such page.", "text/plain", with_content=with_content)
            return
        kind, make = found
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
        """Say nothing: a request a second is no news."""

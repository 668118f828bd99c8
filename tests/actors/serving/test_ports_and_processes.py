"""A server process that does not come up says why, and leaves nothing."""

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from actors.serving.engine import ServerFailed
from actors.serving.ports import claim_port, url_of
from actors.serving.server_process import ServerProcess

pytestmark = pytest.mark.slow  # whole processes, which start and end in their own time

DIES = "import sys\nfor n in range(40): print(f'line {n}')\nsys.exit(3)"
NEVER_READY = "import signal\nprint('still loading', flush=True)\nsignal.pause()"


class Healthy(BaseHTTPRequestHandler):
    """Answers every path with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Nothing to the test's output."""


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of somebody else's server."""
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def process(code: str, *, folder: Path, port: int) -> ServerProcess:
    command = [sys.executable, "-c", code]
    url = f"http://127.0.0.1:{port}"
    log = folder / "server.log"
    return ServerProcess(command, env={}, url=url, port=port, log=log, grace_s=0.5)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_port_in_use_is_named(stranger: int) -> None:
    with pytest.raises(ValueError, match=f"port {stranger} is in use"):
        claim_port("127.0.0.1", port=stranger)


def test_port_zero_finds_one_that_can_be_claimed() -> None:
    port = claim_port("127.0.0.1", port=0)
    assert claim_port("127.0.0.1", port=port) == port


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot serve on 192\.0\.2\.77"):
        claim_port("192.0.2.77", port=0)


def test_urls_of_both_address_families() -> None:
    assert url_of("10.0.0.1", port=80) == "http://10.0.0.1:80"
    assert url_of("::1", port=80) == "http://[::1]:80"


def test_a_server_that_dies_at_its_start_shows_lines_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("line of an earlier start\n")
    server = process(DIES, folder=tmp_path, port=claim_port("127.0.0.1", port=0))
    server.start()
    with pytest.raises(ServerFailed) as caught:
        server.wait_ready(timeout_s=30)
    message = str(caught.value)
    assert "exit code 3" in message
    assert "line 39" in message
    assert "line 2\n" not in message
    assert "earlier start" not in message
    assert (tmp_path / "server.log").read_text().startswith("line of an earlier start")
    assert not children()


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    server = process(NEVER_READY, folder=tmp_path, port=claim_port("127.0.0.1", port=0))
    server.start()
    with pytest.raises(ServerFailed, match=r"(?s)not ready after 0\.6 s"):
        server.wait_ready(timeout_s=0.6)
    assert not children()


def test_anothers_answer_is_not_taken_for_the_servers(stranger: int, tmp_path: Path) -> None:
    server = process(NEVER_READY, folder=tmp_path, port=stranger)
    server.start()
    with pytest.raises(ServerFailed, match="another process answers"):
        server.wait_ready(timeout_s=30)
    assert not children()


def test_stopping_twice_or_before_the_start_is_harmless(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = process(NEVER_READY, folder=tmp_path, port=unused.getsockname()[1])
    server.stop()
    server.start()
    server.stop()
    server.stop()
    assert server.why_not_well() == "the server ended: it was stopped, or never started"
    assert not children()


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = process(NEVER_READY, folder=tmp_path / "file", port=1)
    with pytest.raises(ServerFailed, match=r"cannot start the server: .*file"):
        server.start()

"""A server process behind its guard: start, readiness, log, and an end that leaves nothing."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

import actors
from actors.serving.engine import ServerFailed
from actors.serving.guard import KILL_LIMIT_S, OUTER_EXTRA_S, guarded, server_pid
from actors.serving.http import Unreachable, get_text
from actors.serving.log_tail import from_log
from actors.serving.server_facts import unhealthy

TAIL_BYTES = 65_536
GRACE_S = 5.0  # vLLM on a CPU clears everything 1.2 s after SIGTERM
READY_POLL_S = 0.1
GONE_LIMIT_S = 5.0


class ServerProcess:
    """Lives as long as its owner at most: the guard ends it when this process does, however."""

    def __init__(
        self,
        command: list[str],
        *,
        env: Mapping[str, str],
        url: str,
        port: int,
        log: Path,
        grace_s: float = GRACE_S,
    ) -> None:
        self._command = command
        self._env = env
        self._url = url
        self._port = port
        self._log = log
        self._grace_s = grace_s
        self._log_start_bytes = 0
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start without waiting; the log file is appended to, never truncated."""
        try:
            self._spawn()
        except OSError as error:  # no space, no memory, no right to write there
            raise ServerFailed(f"cannot start the server: {error}; its log: {self._log}") from error

    def _spawn(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        root = Path(actors.__file__).parents[1]  # the guard must find this very package
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        with self._log.open("ab") as log:
            self._log_start_bytes = log.tell()
            # sockets and files that a killed server cannot remove: the guard removes this folder
            scratch = Path(tempfile.mkdtemp(prefix="lull-server-"))
            self._guard = subprocess.Popen(
                guarded(self._command, grace_s=self._grace_s, scratch=scratch),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**env, "TMPDIR": str(scratch), **self._env},
                start_new_session=True,
            )

    def wait_ready(self, *, timeout_s: float) -> None:
        """Until /health answers 200; ends the server and raises when that does not come."""
        deadline_s = time.monotonic() + timeout_s
        while not self._answers():
            ended = self.ended()
            if ended is not None:
                self.stop()
                raise ServerFailed(f"the server ended before it was ready: {ended}")
            if time.monotonic() >= deadline_s:
                tail = self.tail()
                self.stop()
                raise ServerFailed(
                    f"the server at {self._url} was not ready after {timeout_s:g} s "
                    f"(engine.start_timeout_s); {tail}"
                )
            time.sleep(READY_POLL_S)
        if not self._listens():
            self.stop()
            raise ServerFailed(
                f"another process answers at {self._url}: it took the port meanwhile; start again"
            )

    def why_not_well(self) -> str | None:
        """None while the server runs and answers; else why not, with its last log lines."""
        ended = self.ended()
        if ended is not None:
            return f"the server ended: {ended}"
        why = unhealthy(self._url)
        return None if why is None else f"{why}; {self.tail()}"

    def ended(self) -> str | None:
        """Exit code and last log lines, once the server is gone; None while it runs."""
        if self._guard is None:
            return "it was stopped, or never started"
        code = self._guard.poll()
        return None if code is None else f"exit code {code}; {self.tail()}"

    @property
    def pid(self) -> int | None:
        """The server's own process, behind the guards."""
        return None if self._guard is None else server_pid(self._guard.pid)

    def tail(self) -> str:
        """What this start wrote to the log: the lines that name an error, then the last ones."""
        with self._log.open("rb") as log:
            size_bytes = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start_bytes, size_bytes - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return from_log(self._log, lines)

    def stop(self) -> None:
        """End the tree and see that it is gone; harmless when repeated."""
        if self._guard is None:
            return
        guard, self._guard = self._guard, None
        tree = _tree(guard.pid)
        if guard.stdin is not None:
            guard.stdin.close()  # the guard's sign to end everything
        try:
            guard.wait(self._grace_s + OUTER_EXTRA_S + KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            for process in tree:
                _kill(process)
            guard.kill()
            guard.wait()
        _, alive = psutil.wait_procs(tree, timeout=GONE_LIMIT_S)
        if alive:
            raise ServerFailed(f"still running after the stop: {alive}; end them by hand")

    def _answers(self) -> bool:
        try:
            get_text(f"{self._url}/health", timeout_s=2.0)
        except Unreachable:
            return False
        return True

    def _listens(self) -> bool:
        """Whether it is our server that holds the port."""
        assert self._guard is not None
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == self._port
            for process in _tree(self._guard.pid)
            for connection in process.net_connections()
        )


def _tree(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return

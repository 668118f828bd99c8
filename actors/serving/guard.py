"""Keeps a server from outliving its owner: `python -m actors.serving.guard --grace-s 5 -- CMD...`

    owner --pipe--> guard (own session) --pipe--> guard (again) --pipe--> CMD (own group) -> tree

End of file on stdin (the owner ended, even by SIGKILL), SIGTERM or the end of CMD makes a guard
end the whole tree: SIGTERM to CMD, a grace time, SIGKILL to every descendant. It is a subreaper, so
descendants that left CMD's group or session, or lost their parent, stay its descendants. Then it
removes the tree's shared memory and exits with CMD's code (128 + n for signal n).

Two guards in a row (`guarded`), because one can itself be SIGKILLed (Ray does so to the children
of a worker that it ends): the inner one then sees end of file, the outer one adopts the tree of
the inner. If both are SIGKILLed at the same time, CMD still gets SIGTERM from the kernel
(PR_SET_PDEATHSIG); only what ignores that is left behind.
"""

import argparse
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil

from actors.serving.shared_memory import TreeMemory

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK_S = 1.0  # how often the owner's life is checked besides the pipe
NOTE_INTERVAL_S = 10.0  # reading the tree's memory maps takes some 10 ms
KILL_POLL_S = 0.02
KILL_LIMIT_S = 10.0  # a process in an uninterruptible system call cannot be killed: give up then
OUTER_EXTRA_S = KILL_LIMIT_S + 5.0  # the outer guard lets the inner do its whole work

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANDLED = (*STOPS, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True)


def guarded(command: list[str], *, grace_s: float, scratch: Path) -> list[str]:
    """`command` behind two guards; `scratch` is removed with the tree."""
    guard = [sys.executable, "-m", "actors.serving.guard", "--scratch", str(scratch)]
    guard += ["--grace-s", str(grace_s)]
    inner = [*guard, "--", *command]
    return [*guard, "--extra-s", str(OUTER_EXTRA_S), "--", *inner]


def server_pid(guard_pid: int) -> int | None:
    """The process behind `guarded`'s two guards; None while it is not started or gone."""
    try:
        inner = psutil.Process(guard_pid).children()
        server = inner[0].children() if inner else []
    except psutil.NoSuchProcess:
        return None
    return server[0].pid if server else None


class Guard:
    """One guard: starts the command, waits for a reason to end it, ends all of it."""

    def __init__(
        self, command: list[str], *, grace_s: float, extra_s: float, scratch: Path | None
    ) -> None:
        self._command = command
        self._grace_s = grace_s  # for the command, and again for what it leaves behind
        self._extra_s = extra_s  # more for the command, when that is a guard itself
        self._scratch = scratch
        self._memory = TreeMemory()
        self._owner = os.getppid()
        self._stop_asked: str | None = None
        self._child = 0
        self._code: int | None = None  # of the command, once it ended
        self._stdin_open = True
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        """Guard the command to its end; its exit code."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._listen_to_signals()
        # its stdin never carries data: end of file there says that this guard is gone
        child_stdin, self._child_stdin_writer = os.pipe()
        self._child = _spawn(self._command, stdin=child_stdin)
        os.close(child_stdin)
        why = self._wait_for_reason()
        _say(f"{why}; ending {Path(self._command[0]).name} (pid {self._child}) and its tree")
        self._end_tree()
        removed = self._memory.remove_leftovers()
        if removed:
            _say(f"removed its leftovers in /dev/shm: {', '.join(removed)}")
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return 1 if self._code is None else self._code

    def _listen_to_signals(self) -> None:
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the select below
        for number in STOPS:
            signal.signal(number, self._on_stop)

    def _on_stop(self, number: int, _frame: object) -> None:
        self._stop_asked = signal.Signals(number).name

    def _wait_for_reason(self) -> str:
        next_note_s = time.monotonic()
        while True:
            self._sleep(TICK_S)
            self._reap()
            if self._code is not None:
                return f"the server ended by itself with exit code {self._code}"
            if self._stop_asked is not None:
                return f"got {self._stop_asked}"
            if not self._stdin_open or os.getppid() != self._owner:
                return "the owner let go"
            if time.monotonic() >= next_note_s:
                self._memory.note(process.pid for process in _tree())
                next_note_s = time.monotonic() + NOTE_INTERVAL_S

    def _sleep(self, at_most_s: float) -> None:
        """Until a signal, end of file on stdin, or the time is over."""
        watched = [self._wake_read, *([0] if self._stdin_open else [])]
        ready, _, _ = select.select(watched, [], [], at_most_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if 0 in ready and not os.read(0, 4096):
            self._stdin_open = False

    def _reap(self) -> None:
        """Collect every ended child, adopted ones too: zombies would look alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code

    def _end_tree(self) -> None:
        self._memory.note(process.pid for process in _tree())
        if self._code is None:
            os.close(self._child_stdin_writer)  # an inner guard hears this too
            _signal(self._child, signal.SIGTERM)
            self._wait_until(lambda: self._code is not None, self._grace_s + self._extra_s)
            self._memory.note(process.pid for process in _tree())
        orphans = _tree() if self._code is not None else []
        for process in orphans:  # vLLM's engine unlinks more of its own when asked first
            _signal(process.pid, signal.SIGTERM)
        if orphans:
            self._wait_until(lambda: not _tree(), self._grace_s)
        if not self._wait_until(self._killed, KILL_LIMIT_S):
            _say(f"cannot kill {[process.pid for process in _tree()]}")

    def _killed(self) -> bool:
        """Again and again, as a dying tree may still start processes."""
        alive = _tree()
        for process in alive:
            _signal(process.pid, signal.SIGKILL)
        return not alive

    def _wait_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while True:
            self._reap()
            if done():
                return True
            if time.monotonic() >= deadline_s:
                return False
            self._sleep(KILL_POLL_S)


def _tree() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _spawn(command: list[str], *, stdin: int) -> int:
    """Fork and exec in an own process group, told by the kernel when this guard dies."""
    guard = os.getpid()
    # blocked over the fork: a signal that the child took with our handlers would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    pid = os.fork()
    if pid == 0:
        _become(command, stdin=stdin, guard=guard)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _become(command: list[str], *, stdin: int, guard: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (*HANDLED, signal.SIGPIPE):  # Python ignores SIGPIPE
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guard:  # it died before the line above
            os._exit(143)
        os.setpgid(0, 0)
        os.dup2(stdin, 0)
        os.execvp(command[0], command)
    except OSError as error:
        _say(f"cannot start {command[0]}: {error}")
    os._exit(127)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def _say(what: str) -> None:
    try:
        os.write(2, f"guard {os.getpid()}: {what}\n".encode())
    except OSError:  # the log's disk is full or its reader gone: ending the tree matters more
        return


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m actors.serving.guard",
        description="Run CMD; end its whole process tree when stdin ends.",
    )
    parser.add_argument("--grace-s", type=float, default=5.0, help="between SIGTERM and SIGKILL")
    parser.add_argument("--extra-s", type=float, default=0.0, help="more grace, if CMD is a guard")
    parser.add_argument("--scratch", type=Path, help="a folder to remove at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command: give it after --")
    return Guard(
        command, grace_s=options.grace_s, extra_s=options.extra_s, scratch=options.scratch
    ).run()


if __name__ == "__main__":
    sys.exit(main())

"""Out of a dead server's log: the error first, no usage text, no frames of tracebacks."""

from pathlib import Path

from actors.serving.log_tail import MOST_LINES, from_log, in_one_line, telling_lines

USAGE = """\
INFO 11-29 17:00:00 [api.py:1] starting
usage: api_server.py [-h] [--model MODEL]
                     [--port PORT]
api_server.py: error: argument --port: invalid int value: 'x'"""
CRASH = """\
INFO 11-29 17:00:00 [api.py:1] starting
(EngineCore pid=7) ERROR 11-29 17:00:01 [core.py:700] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-29 17:00:01 [core.py:700] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-29 17:00:01 [core.py:700]   File "/x/core.py", line 5, in run
(EngineCore pid=7) ERROR 11-29 17:00:01 [core.py:700]     self.start()
(EngineCore pid=7) ERROR 11-29 17:00:01 [core.py:700]     ^^^^^^^^^^^^
(EngineCore pid=7) ERROR 11-29 17:00:01 [core.py:700] MemoryError: 9 GiB asked, 1 GiB free
Traceback (most recent call last):
  File "/x/api.py", line 9, in <module>
    main()
RuntimeError: Engine core initialization failed. See root cause above."""


def test_of_a_wrong_argument_the_error_stands_first_and_the_usage_goes() -> None:
    assert telling_lines(USAGE.splitlines()) == [
        "api_server.py: error: argument --port: invalid int value: 'x'",
        "starting",
    ]


def test_of_a_crash_the_first_error_stands_first_and_the_frames_go() -> None:
    assert telling_lines(CRASH.splitlines()) == [
        "MemoryError: 9 GiB asked, 1 GiB free",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "starting",
        "EngineCore failed to start.",
    ]


def test_many_lines_are_few() -> None:
    lines = [f"ValueError: {n}" for n in range(30)] + [f"line {n}" for n in range(30)]
    shown = telling_lines([*lines, 1000 * "x"])
    assert len(shown) == MOST_LINES
    assert shown[:5] == [f"ValueError: {n}" for n in (0, 1, 2, 3, 29)]
    assert shown[5:7] == ["line 28", "line 29"]
    assert len(shown[-1]) < 400
    assert telling_lines([]) == []


def test_in_one_line_the_crash_is_named_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "sidecar-0.log"
    problem = f"sidecar 0: x/health answers status 503; {from_log(log, CRASH.splitlines())}"
    assert in_one_line(problem) == (
        "sidecar 0: x/health answers status 503; MemoryError: 9 GiB asked, 1 GiB free "
        "(its log: logs/sidecar-0.log)"
    )
    quiet = f"sidecar 0: exit code -9; {from_log(log, [])}"
    assert in_one_line(quiet) == "sidecar 0: exit code -9 (its log: logs/sidecar-0.log)"
    assert in_one_line("x does not answer: timed\nout") == "x does not answer: timed out"

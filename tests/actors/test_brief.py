"""A foreign error in one line: what it says, and nothing of how Ray is configured."""

from pathlib import Path

from actors.brief import MOST_CHARS, brief
from actors.serving.log_tail import from_log

OOM = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: IslandActor\n"
    "The actor is dead because its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY "
    "Worker exit detail: Task was killed due to the node running low on memory. Memory on the node "
    "was 7.2GB / 7.6GB (0.95), which exceeds the memory usage threshold of 0.95. " + 500 * "x"
)


class Wrapped(RuntimeError):
    """As Ray wraps what an actor raises."""

    cause = ValueError("metric vllm:num_requests_running is not in /metrics of the server")


def test_out_of_memory_is_said_in_a_line() -> None:
    said = brief(RuntimeError(OOM))
    assert "ran out of memory" in said
    assert len(said) <= MOST_CHARS
    assert "threshold" not in said


def test_an_actors_own_error_stands_without_its_class_path() -> None:
    assert brief(Wrapped("ray::X.y()\nactors.serving.metrics.MetricMissing: metric")) == (
        "metric vllm:num_requests_running is not in /metrics of the server"
    )


def test_of_a_servers_end_the_error_of_its_log_is_told() -> None:
    log = from_log(Path("logs/sidecar-0.log"), ["OSError: no such model", "bye"])
    said = brief(RuntimeError(f"the server ended: exit code 1; {log}"))
    assert said == (
        "the server ended: exit code 1; OSError: no such model (its log: logs/sidecar-0.log)"
    )


def test_the_last_line_counts_and_is_cut() -> None:
    assert brief(RuntimeError("Traceback\n  x\nConnection closed by peer. Do this. ")) == (
        "Connection closed by peer"
    )
    assert len(brief(RuntimeError(1000 * "y"))) <= MOST_CHARS + 4
    assert brief(RuntimeError()) == "RuntimeError"

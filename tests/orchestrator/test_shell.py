"""A printed command runs as printed: from PATH, or by its path beside the interpreter."""

from pathlib import Path

import pytest

from orchestrator.shell import command


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands, not on PATH, below the working folder."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "mlflow"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return folder


def test_off_path_the_shorter_path_stands(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = str(venv / "python")
    assert command("mlflow", python=python) == ".venv/bin/mlflow"
    monkeypatch.chdir("/")
    relative = str(venv / "mlflow")[1:]
    assert command("mlflow", python=python) == relative


def test_on_path_the_name_is_enough(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(venv))
    assert command("mlflow", python=str(venv / "python")) == "mlflow"


def test_what_is_nowhere_keeps_its_name(venv: Path) -> None:
    assert command("ray", python=str(venv / "python")) == "ray"


def test_a_folder_with_a_space_is_quoted(venv: Path) -> None:
    folder = venv.parent / "my bin"
    folder.mkdir()
    (folder / "mlflow").touch(mode=0o755)
    assert command("mlflow", python=str(folder / "python")) == "'.venv/my bin/mlflow'"

"""Text files as they stand: which are read, in which order, how much of them."""

from pathlib import Path

import pytest

from actors.config import DataConfig
from actors.island.data.text import load_corpus, passed_over


def of_folder(folder: Path, *, max_bytes: int = 1_000_000) -> DataConfig:
    return DataConfig(source="folder", folder=str(folder), max_bytes=max_bytes)


def test_standard_library_is_python_text_on_every_machine() -> None:
    corpus = load_corpus(DataConfig(source="stdlib", max_bytes=300_000))
    assert corpus.shape == (300_000,)
    assert b"import " in corpus.tobytes()
    assert not corpus.flags.writeable


def test_files_are_joined_in_path_order_with_one_nul(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    assert load_corpus(of_folder(tmp_path)).tobytes() == b"first\0second"


def test_max_bytes_cuts_the_corpus(text_folder: Path) -> None:
    whole = load_corpus(of_folder(text_folder))
    cut = load_corpus(of_folder(text_folder, max_bytes=100))
    assert cut.tobytes() == whole[:100].tobytes()


def test_binary_hidden_and_installed_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "latin.txt").write_bytes("straße".encode("latin-1"))
    (tmp_path / "image.bin").write_bytes(b"\0\1\2")
    (tmp_path / ".secret").write_text("hidden")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("other")
    (tmp_path / "zero.txt").touch()
    assert load_corpus(of_folder(tmp_path)).tobytes() == b"text"
    names = [path.name for path in passed_over(of_folder(tmp_path))]
    assert names == ["image.bin", "latin.txt", "zero.txt"]  # those that a user may have meant
    read = passed_over(of_folder(tmp_path, max_bytes=4))
    assert [path.name for path in read] == ["image.bin", "latin.txt"]  # read no further than that


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.txt").write_text("text")
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(ValueError, match=r"secret\.txt: cannot be read \(Permission denied\)"):
        load_corpus(of_folder(tmp_path))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        load_corpus(of_folder(tmp_path / "nowhere"))


def test_folder_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match=r"bare.*holds no text"):
        load_corpus(of_folder(tmp_path / "bare"))

"""Fingerprints of what a study reads beside its YAML: the text to train on and models' folders.

A config names a folder only; another folder of the same name is another experiment.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from actors.config import HfModelConfig, VllmConfig
from actors.island.data.cache import CacheFailed
from actors.island.data.dataset import open_tokens
from actors.island.model_folder import model_folder
from actors.serving.vllm_engine import check_model
from orchestrator.config import StudyConfig

PART_BYTES = 1024**2  # read of a model file's start and of its end


def input_fingerprints(study: StudyConfig) -> dict[str, str]:
    """SHA-256 by name; what cannot be read from here (a cluster's nodes hold it) is left out.

    training_text: every token that is trained on (bytes of the text where a byte is a token).
    model_folder (served) and trained_folder (of the islands): path below the folder, size, first
    and last 1 MiB of each file, so that weights of any size take no time; a change inside a large
    file that keeps its size is not seen.
    """
    found = {}
    try:
        found["training_text"] = open_tokens(study.islands.data).fingerprint
    except (ValueError, OSError, CacheFailed):
        pass
    trained = study.islands.model
    if isinstance(trained, HfModelConfig):
        try:
            found["trained_folder"] = _folder_sha256(model_folder(trained))
        except (ValueError, OSError):
            pass
    engine = study.sidecars.engine
    if isinstance(engine, VllmConfig):
        try:
            folder = check_model(engine.model)
            if folder is not None:
                found["model_folder"] = _folder_sha256(folder)
        except (ValueError, OSError):
            pass
    return found


def _folder_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        inner = path.relative_to(folder)
        if any(part.startswith(".") for part in inner.parts):
            continue
        size_bytes = path.stat().st_size
        digest.update(f"{inner}\0{size_bytes}\0".encode())
        for part in _ends(path, size_bytes=size_bytes):
            digest.update(part)
    return digest.hexdigest()


def _ends(path: Path, *, size_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield file.read(PART_BYTES)
        if size_bytes > PART_BYTES:
            file.seek(max(PART_BYTES, size_bytes - PART_BYTES))
            yield file.read(PART_BYTES)

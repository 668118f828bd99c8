"""Named streams of chance from one root seed: no seed arithmetic, no shared generators."""

import hashlib

import numpy as np


def stream(seed: int, name: str, *keys: int) -> np.random.Generator:
    """Generator of the stream ``name`` (and whole-number keys, e.g. an island) under ``seed``."""
    label = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(label, *keys))
    return np.random.Generator(np.random.PCG64(sequence))

"""Named random streams: every draw comes from one root seed through a SeedSequence spawn key.

Two streams with different names or indices are independent; there is no seed arithmetic.
"""

import hashlib

import numpy as np


def stream(seed: int, *key: str | int) -> np.random.SeedSequence:
    """The stream of ``seed`` with this key, e.g. ``stream(7, "batches", island, cursor)``."""
    return np.random.SeedSequence(seed, spawn_key=tuple(_word(part) for part in key))


def _word(part: str | int) -> int:
    if isinstance(part, int):
        return part
    return int.from_bytes(hashlib.sha256(part.encode()).digest()[:4], "big")


def torch_seed(sequence: np.random.SeedSequence) -> int:
    """A 63-bit seed for a local torch.Generator."""
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

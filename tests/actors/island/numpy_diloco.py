"""DiLoCo's outer loop in float64 NumPy, for islands that are told how they drift: the reference.

arXiv:2311.08105, algorithm 1; fragments and overlap as in arXiv:2501.18512, algorithm 2.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
ALL = slice(None)


class NumpyDiLoCo:
    def __init__(self, start: npt.ArrayLike, *, islands: int, lr: float, momentum: float) -> None:
        self.anchor: Vector = np.array(start, dtype=np.float64)
        self.buffer: Vector = np.zeros_like(self.anchor)
        self.locals = [self.anchor.copy() for _ in range(islands)]
        self.lr, self.momentum = lr, momentum

    def measured(self, part: slice = ALL) -> list[Vector]:
        return [self.anchor[part] - local[part] for local in self.locals]

    def merge(
        self,
        weights: Sequence[float],
        *,
        part: slice = ALL,
        measured: list[Vector] | None = None,
        mixing: float = 0.0,
        clip_norm: float = np.inf,
    ) -> float:
        deltas = self.measured(part) if measured is None else measured
        delta = np.sum([w * d for w, d in zip(weights, deltas, strict=True)], axis=0)
        norm = float(np.linalg.norm(delta))
        delta = delta * min(1.0, clip_norm / norm) if norm > 0 else delta
        self.buffer[part] = self.momentum * self.buffer[part] + delta
        self.anchor[part] -= self.lr * (delta + self.momentum * self.buffer[part])
        for local in self.locals:
            local[part] = mixing * local[part] + (1 - mixing) * self.anchor[part]
        return norm

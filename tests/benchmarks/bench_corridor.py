"""Times of the corridor's exact answers against plain numpy in one run. Run it by `make bench`.

h = 16..64 ticks, W = 8, a merge about every 40 ticks. Plain numpy holds whole tables in doubles and
adds shifted slices, and its draws are not exact. Aims: 0.9, 3.4, 44 ms for mean and variance; 0.1,
0.9, 15 ms for the oracle; 0.8, 2.5, 15 ms for 100 draws at T = 600, 3600, 14 400.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.corridor import Corridor, kept_marginals

Floats = npt.NDArray[np.float64]
HORIZONS = {600: 15, 3600: 90, 14_400: 360, 86_400: 2160}  # ticks: merges
AIMS_MS = {
    "mean_and_variance": {600: 0.9, 3600: 3.4, 14_400: 44.0},
    "oracle": {600: 0.1, 3600: 0.9, 14_400: 15.0},
    "100_draws": {600: 0.8, 3600: 2.5, 14_400: 15.0},
}
DRAWS = 100


class Plain:
    """The same programme over slack sums as one would write it first."""

    def __init__(self, corridor: Corridor, budget: int) -> None:
        self.budget, self.reach = budget, corridor.ceiling_ticks - corridor.floor_ticks
        self.floor, self.period = corridor.floor_ticks, corridor.width_ticks + corridor.floor_ticks
        last = corridor.horizon_ticks - corridor.width_ticks
        packed = corridor.floor_ticks + (budget - 1) * self.period
        self.low = max(0, last - corridor.width_ticks - corridor.ceiling_ticks + 1 - packed)
        self.size = min(last - packed, budget * self.reach) + 1

    def at(self, i: int) -> slice:
        """Start ticks of merge i by slack sum."""
        first = self.floor + (i - 1) * self.period
        return slice(first, first + self.size)

    def windows(self, row: Floats) -> Floats:
        total = row.copy()
        for shift in range(1, min(self.reach, self.size - 1) + 1):
            total[shift:] += row[:-shift]
        return total

    def table(self) -> Floats:
        rows = np.zeros((self.budget + 1, self.size))
        rows[0, 0] = 1.0
        for i in range(1, self.budget + 1):
            rows[i] = self.windows(rows[i - 1])
            rows[i] /= rows[i].max()
        return rows

    def moments(self, cost: Floats) -> tuple[float, float]:
        n, m, q = np.zeros((3, self.size))
        n[0] = 1.0
        mean_cost = cost.mean()
        for i in range(1, self.budget + 1):
            c = cost[self.at(i)] - mean_cost
            n, m, q = self.windows(n), self.windows(m), self.windows(q)
            q += c * (2 * m + c * n)
            m += c * n
            most = n.max()
            n, m, q = n / most, m / most, q / most
        ways, mean = n[self.low :].sum(), m[self.low :].sum()
        mean /= ways
        variance = q[self.low :].sum() / ways - mean**2
        return float(mean + self.budget * mean_cost), float(variance)

    def best(self, cost: Floats) -> float:
        row = np.full(self.size, np.inf)
        row[0] = 0.0
        for i in range(1, self.budget + 1):
            least = row.copy()
            for shift in range(1, min(self.reach, self.size - 1) + 1):
                np.minimum(least[shift:], row[:-shift], out=least[shift:])
            row = least + cost[self.at(i)]
        return float(row[self.low :].min())

    def sample(self, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        rows = self.table()
        starts = np.empty((size, self.budget), dtype=np.int64)
        for draw in range(size):
            a, b = self.low, self.size
            for i in range(self.budget, 0, -1):
                upto = rows[i, a:b].cumsum()
                y = a + int(np.searchsorted(upto, rng.random() * upto[-1], side="right"))
                starts[draw, i - 1] = self.at(i).start + y
                a, b = max(0, y - self.reach), y + 1
        return starts

    def marginals(self, horizon_ticks: int) -> Floats:
        rows = self.table()
        found = np.zeros(horizon_ticks + 1)
        back = np.zeros(self.size)
        back[self.low :] = 1.0
        for i in range(self.budget, 0, -1):
            p = rows[i] * back
            found[self.at(i)] += p / p.sum()
            back = self.windows(back[::-1])[::-1]
            back = back / back.max()
        return found


def least_ms(call: Callable[[], Any], *, budget_s: float) -> tuple[float, Any]:
    """Least time of at least two calls, or of one where that alone takes longer; its answer."""
    times: list[float] = []
    answer = None
    began = time.perf_counter()
    while len(times) < 2 or time.perf_counter() - began < budget_s:
        start = time.perf_counter()
        answer = call()
        times.append(time.perf_counter() - start)
        if times[-1] > budget_s:
            break
    return 1e3 * min(times), answer


def measure(horizon: int, merges: int) -> Iterator[dict[str, object]]:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=horizon)
    plain = Plain(corridor, merges)
    cost = np.random.default_rng(horizon).random(horizon + 1)
    rng = np.random.default_rng(0)
    corridor.moments(cost, merges)  # loads the kernels

    def marginals() -> Floats:
        kept_marginals.cache_clear()
        return corridor.start_marginals(merges)

    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "mean_and_variance": (
            lambda: corridor.moments(cost, merges),
            lambda: plain.moments(cost),
        ),
        "oracle": (lambda: corridor.best(cost, merges)[0], lambda: plain.best(cost)),
        "marginals": (marginals, lambda: plain.marginals(horizon)),
        f"{DRAWS}_draws": (
            lambda: corridor.sample(merges, size=DRAWS, rng=rng),
            lambda: plain.sample(DRAWS, rng),
        ),
    }
    for what, (ours, theirs) in pairs.items():
        ours_ms, found = least_ms(ours, budget_s=0.3)
        plain_ms, expected = least_ms(theirs, budget_s=0.1)
        if not what.endswith("_draws"):
            assert np.allclose(found, expected, rtol=1e-7, atol=1e-12), f"{what} differs"
        yield {
            "horizon_ticks": horizon,
            "merges": merges,
            "what": what,
            "ms": round(ours_ms, 3),
            "plain_numpy_ms": round(plain_ms, 3),
            "ratio": round(plain_ms / ours_ms, 1),
            "aim_ms": AIMS_MS.get(what, {}).get(horizon),
        }


def main() -> None:
    for horizon, merges in HORIZONS.items():
        for row in measure(horizon, merges):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Speed of the replay's plant against SimPy and Ciw, and how it grows. Run it by `make bench`.

`queue`: a FIFO queue with 24 servers and general service times, which all three can say exactly: a
step of 1/1024 s whatever its batch, arrivals on that grid, so every latency must agree to the bit.
`batching`: the plant's own law (steps by batch and prompts, merge windows) against a SimPy process
that walks through the steps. CPU time of this process, the least of several, with all that it takes
to get from arrays to arrays. Aim: 100 times the faster of the two; growth 1.0 (an exponent).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import ks_2samp

from orchestrator.replay.closed_server import ClosedServer, turns_of
from orchestrator.replay.plant import PlantConfig, Server, serve
from orchestrator.workload.config import ClosedLoopConfig, TokenRange

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SLOTS = 24
GRID_S = 2.0**-10  # every time on it is exact in a double
TIMES = 3  # calls, of which the fastest counts
AIM_RATIO, AIM_GROWTH = 100, 1.0
INSTALL = (
    'SimPy and Ciw are not installed: pip install --no-deps --target DIR "simpy==4.1.*" '
    '"ciw==3.2.*", then PYTHONPATH=.:DIR'
)
QUEUE = PlantConfig(
    slots=SLOTS,
    step_base_s=GRID_S,
    step_per_seq_s=0.0,
    prefill_per_token_s=0.0,
    overhead_s=0.0,
    merge_factor=1.0,
)
BATCHING = PlantConfig(
    slots=SLOTS,
    step_base_s=0.02,
    step_per_seq_s=0.001,
    prefill_per_token_s=0.0001,
    overhead_s=0.01,
    merge_factor=1.5,
    merge_step_s=0.01,
)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Poisson arrivals with their tokens."""

    at_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints

    @property
    def span_s(self) -> float:
        return float(self.at_s[-1])


def poisson(requests: int, *, rate: float, mean_output: int, on_grid: bool = False) -> Traffic:
    rng = np.random.default_rng(7)
    at_s = np.cumsum(rng.exponential(1.0 / rate, requests))
    return Traffic(
        at_s=np.ceil(at_s / GRID_S) * GRID_S if on_grid else at_s,
        prompt_tokens=rng.integers(1, 400, requests),
        output_tokens=rng.geometric(1.0 / mean_output, requests),
    )


def every_8_s_of_40(until_s: float) -> Floats:
    starts = np.arange(20.0, until_s, 40.0)
    return np.stack([starts, starts + 8.0], axis=1)


def plant_done_s(plant: PlantConfig, traffic: Traffic, *, windows: Floats) -> Floats:
    return serve(
        plant,
        at_s=traffic.at_s,
        prompt_tokens=traffic.prompt_tokens,
        output_tokens=traffic.output_tokens,
        overheads_s=np.full(len(traffic.at_s), plant.overhead_s),
        windows=windows,
        factors=np.full(len(windows), plant.merge_factor),
    ).done_at_s


def simpy_queue(traffic: Traffic) -> Floats:
    """One process a request: wait for a server, hold it for the service time."""
    simpy = import_module("simpy")
    env = simpy.Environment()
    servers = simpy.Resource(env, capacity=SLOTS)
    done_at_s = np.empty(len(traffic.at_s))

    def request(index: int, at_s: float, service_s: float) -> Iterator[Any]:
        yield env.timeout(at_s)
        with servers.request() as free:
            yield free
            yield env.timeout(service_s)
        done_at_s[index] = env.now

    services_s = (traffic.output_tokens * GRID_S).tolist()
    for i, (at_s, service_s) in enumerate(zip(traffic.at_s.tolist(), services_s, strict=True)):
        env.process(request(i, at_s, service_s))
    env.run()
    return done_at_s


def ciw_queue(traffic: Traffic) -> Floats:
    """One node; gaps and service times told one after another."""
    ciw = import_module("ciw")
    gaps_s = np.diff(traffic.at_s, prepend=0.0).tolist()
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*gaps_s, float("inf")])],
        service_distributions=[ciw.dists.Sequential((traffic.output_tokens * GRID_S).tolist())],
        number_of_servers=[SLOTS],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(len(gaps_s), method="Finish")
    done_at_s = np.empty(len(gaps_s))
    for record in simulation.get_all_records():
        done_at_s[record.id_number - 1] = record.service_end_date
    return done_at_s


def simpy_batching(plant: PlantConfig, traffic: Traffic, *, windows: Floats) -> Floats:
    """A client that fills a store, and a server that takes from it at each step's start."""
    simpy = import_module("simpy")
    env = simpy.Environment()
    queue = simpy.Store(env)
    done_at_s = np.empty(len(traffic.at_s))
    prompt, output = traffic.prompt_tokens.tolist(), traffic.output_tokens.tolist()
    ahead = windows.tolist()

    def client() -> Iterator[Any]:
        for i, at_s in enumerate((traffic.at_s + plant.overhead_s).tolist()):
            yield env.timeout(at_s - env.now)
            queue.put(i)

    def duration_s(work_s: float) -> float:
        """Seconds that a step takes from now, through the windows that it meets."""
        now_s, left = env.now, work_s
        slow = 1.0 + (plant.merge_factor - 1.0) * (work_s + plant.merge_step_s) / work_s
        while ahead and ahead[0][1] <= now_s:
            ahead.pop(0)
        for start_s, end_s in ahead:
            if now_s + left <= start_s:
                break
            left -= max(0.0, start_s - now_s)
            now_s = max(now_s, start_s)
            if now_s + left * slow <= end_s:
                return float(now_s + left * slow - env.now)
            left -= (end_s - now_s) / slow
            now_s = end_s
        return float(now_s + left - env.now)

    def server() -> Generator[Any, Any, None]:
        left: dict[int, int] = {}
        served = 0
        while served < len(output):
            prompts = 0
            while len(left) < plant.slots and (queue.items or not left):
                new = yield queue.get()
                left[new] = output[new]
                prompts += prompt[new]
            work_s = plant.step_base_s + plant.step_per_seq_s * len(left)
            yield env.timeout(duration_s(work_s + plant.prefill_per_token_s * prompts))
            for i in list(left):
                left[i] -= 1
                if left[i] == 0:
                    del left[i]
                    done_at_s[i] = env.now
                    served += 1

    env.process(client())
    env.process(server())
    env.run()
    return done_at_s


def least_s(call: Callable[[], Any], *, times: int = TIMES) -> tuple[float, Any]:
    """Least CPU time of some calls, and the last answer."""
    spent: list[float] = []
    answer = None
    for _ in range(times):
        start_s = time.process_time()
        answer = call()
        spent.append(time.process_time() - start_s)
    return min(spent), answer


def speed(seconds: float, traffic: Traffic) -> dict[str, object]:
    return {
        "requests_per_s": f"{len(traffic.at_s) / seconds:.3g}",
        "simulated_s_per_s": f"{traffic.span_s / seconds:.3g}",
    }


def against_queues(requests: int) -> Iterator[dict[str, object]]:
    none = np.empty((0, 2))
    for busy in (0.5, 0.9):
        mean_output = 512  # half a second
        rate = busy * SLOTS / (mean_output * GRID_S)
        traffic = poisson(requests, rate=rate, mean_output=mean_output, on_grid=True)
        ours_s, ours = least_s(partial(plant_done_s, QUEUE, traffic, windows=none))
        row = {"what": "queue", "busy": busy, "requests": requests, **speed(ours_s, traffic)}
        others = {}
        for name, model in (("simpy", simpy_queue), ("ciw", ciw_queue)):
            others[name], theirs = least_s(partial(model, traffic))
            assert np.array_equal(ours, theirs), f"{name}'s latencies differ"
            row[name] = speed(others[name], traffic)
            row[f"{name}_ks"] = float(
                ks_2samp(ours - traffic.at_s, theirs - traffic.at_s).statistic
            )
        row["ratio_to_faster"] = round(min(others.values()) / ours_s)
        row["aim"] = AIM_RATIO
        yield row


def against_batching(requests: int) -> Iterator[dict[str, object]]:
    traffic = poisson(requests, rate=20.0, mean_output=20)
    windows = every_8_s_of_40(traffic.span_s)
    ours_s, ours = least_s(lambda: plant_done_s(BATCHING, traffic, windows=windows))
    simpy_s, theirs = least_s(lambda: simpy_batching(BATCHING, traffic, windows=windows))
    apart_s = float(np.abs(ours - theirs).max())
    assert apart_s < 1e-6, f"latencies differ by {apart_s} s"
    yield {
        "what": "batching",
        "requests": requests,
        "windows": len(windows),
        **speed(ours_s, traffic),
        "simpy": speed(simpy_s, traffic),
        "most_apart_s": apart_s,
        "ratio": round(simpy_s / ours_s),
    }


def growth(name: str, seconds: dict[int, float]) -> dict[str, object]:
    """Times by size, and the exponent of the growth from the least size to the largest."""
    sizes = sorted(seconds)
    ratio = np.log(seconds[sizes[-1]] / seconds[sizes[0]]) / np.log(sizes[-1] / sizes[0])
    return {
        "what": f"growth with {name}",
        "ms": {size: round(1e3 * seconds[size], 3) for size in sizes},
        "exponent": round(float(ratio), 2),
        "aim": AIM_GROWTH if name != "slots" else 0.0,
    }


def growths(requests: int) -> Iterator[dict[str, object]]:
    def seconds(traffic: Traffic, *, plant: PlantConfig = BATCHING, sidecars: int = 1) -> float:
        windows = every_8_s_of_40(traffic.span_s)

        def all_sidecars() -> None:
            for _ in range(sidecars):
                plant_done_s(plant, traffic, windows=windows)

        return least_s(all_sidecars)[0]

    sizes = [requests, 4 * requests, 16 * requests]
    by_size = {n: poisson(n, rate=20.0, mean_output=20) for n in sizes}
    yield growth("requests", {n: seconds(by_size[n]) for n in sizes})
    yield growth("sidecars", {n: seconds(by_size[requests], sidecars=n) for n in (1, 4, 16, 64)})
    by_slots = {}
    for slots in (4, 16, 64, 256, 1024):  # equally busy: a step's time does not depend on them
        plant = QUEUE.model_copy(update={"slots": slots})
        rate = 0.8 * slots / (512 * GRID_S)
        by_slots[slots] = seconds(poisson(requests, rate=rate, mean_output=512), plant=plant)
    yield growth("slots", by_slots)


def in_ticks() -> Iterator[dict[str, object]]:
    """As a policy sees it: the server stops at every second of 600 and is asked how busy it is."""
    traffic = poisson(6000, rate=10.0, mean_output=20)

    def open_loop() -> int:
        server = Server(
            BATCHING,
            at_s=traffic.at_s,
            prompt_tokens=traffic.prompt_tokens,
            output_tokens=traffic.output_tokens,
            overheads_s=np.full(6000, BATCHING.overhead_s),
        )
        return stopped_every_second(server)

    tokens = TokenRange(low=1, high=39)
    config = ClosedLoopConfig(
        kind="closed", users=12, mean_think_s=0.5, prompt_tokens=tokens, output_tokens=tokens
    )

    def closed_loop() -> int:
        return stopped_every_second(ClosedServer(BATCHING, config=config, seed=1))

    def first_closed_loop() -> int:
        turns_of.cache_clear()  # a later arm of a seed finds its users' turns drawn
        return closed_loop()

    for name, run in (
        ("open loop", open_loop),
        ("closed loop, first arm of a seed", first_closed_loop),
        ("closed loop, every other arm", closed_loop),
    ):
        seconds, requests = least_s(run)
        yield {
            "what": f"600 ticks, {name}",
            "requests": requests,
            "us_a_tick": round(1e6 * seconds / 600, 2),
            "simulated_s_per_s": f"{600 / seconds:.3g}",
        }


def stopped_every_second(server: Server | ClosedServer) -> int:
    for tick in range(601):
        server.advance(float(tick))
        if tick % 40 == 20:
            server.add_window(float(tick), tick + 8.0, BATCHING.merge_factor)
        assert server.in_flight >= server.running
    return server.scheduled_so_far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    requests = parser.parse_args().requests
    plant_done_s(QUEUE, poisson(10, rate=1.0, mean_output=2), windows=np.empty((0, 2)))  # loads
    rows: list[Iterator[dict[str, object]]] = [growths(requests), in_ticks()]
    if find_spec("simpy") and find_spec("ciw"):
        rows = [against_queues(requests), against_batching(requests), *rows]
    else:
        rows = [iter([{"what": "queue", "skipped": INSTALL}]), *rows]
    for row in (row for some in rows for row in some):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

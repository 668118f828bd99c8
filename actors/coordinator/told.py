"""Told traffic as the samples of ticks before the run; what nobody measured stays unknown."""

from collections.abc import Iterator

from actors.events import HistoryTold
from policies.observation import Sample


def told_samples(told: HistoryTold, *, tick_s: float) -> Iterator[Sample]:
    """One sample a tick, in order; ValueError unless the ticks end just before the run."""
    ticks = len(told.arrivals)
    if len(told.in_flight) != ticks or told.first_tick != -ticks:
        raise ValueError(
            f"history of {ticks} arrivals and {len(told.in_flight)} in flight from tick "
            f"{told.first_tick}: both must reach from there to tick -1"
        )
    for i, (arrivals, in_flight) in enumerate(zip(told.arrivals, told.in_flight, strict=True)):
        tick = told.first_tick + i
        yield Sample(
            tick=tick,
            now_s=tick * tick_s,
            arrivals=arrivals,
            in_flight=in_flight,
            serving=None,
            network=None,
            checkpoint=None,
            islands=(),
            blind=False,
        )

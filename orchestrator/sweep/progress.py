"""Where a sweep stands: rounds of settings, what is still to play, who is stopped. Pure.

    round: ask for ``ask_at_once`` settings -> play their blocks -> tell the gains as asked for

Two rounds are under way, so that no worker waits for a round's slowest setting: ask 0, ask 1,
tell 0, ask 2, tell 1, ... always in this order. A setting is compared with the best of the rounds
that had been told when it was asked for. So the results do not depend on how many workers there
are or who is first, and a sweep that was killed is simply played again: what the ledger holds is
not played twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from orchestrator.config import StudyConfig
from orchestrator.sweep.blocks import Block, tuning_batches
from orchestrator.sweep.config import SpaceConfig, Value
from orchestrator.sweep.figures import BlockFigures, gain
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.settings import Setting, Values, make_setting
from orchestrator.sweep.stopping import clearly_worse

ROUNDS_UNDER_WAY = 2
MOST_DOUBLES = 200  # a search that only repeats itself has nothing more to offer


class Proposer(Protocol):
    """A search. ``number`` counts the settings asked for, doubles included."""

    def ask(self, number: int) -> Mapping[str, Value] | None:
        """Values of the next setting; None when there is none left."""
        ...

    def tell(self, number: int, gain: float | None) -> None:
        """The outcome; None: refused, failed or unknown."""
        ...


class State(StrEnum):
    OPEN = "open"
    COMPLETE = "complete"  # every tuning block
    STOPPED = "stopped"  # clearly worse than the best so far
    REFUSED = "refused"  # its values make no valid study
    FAILED = "failed"


@dataclass(kw_only=True)
class Tried:
    """One setting of the sweep."""

    number: int
    round_: int
    setting: Setting
    state: State = State.OPEN
    rows: dict[Block, BlockFigures] = field(default_factory=dict)
    why: str | None = None  # of a failure
    # The best of the rounds that had been told.
    reference: "Tried | None" = field(default=None, repr=False, compare=False)

    @property
    def gain(self) -> float | None:
        return gain(self.rows.values()) if self.state in _PLAYED else None

    def line(self) -> str:
        """How it ended, for a person who watches."""
        shown = "unknown" if self.gain is None else f"{100 * self.gain:+.1f} %"
        words = f"{len(self.rows)} blocks, gain over matched random {shown}"
        return f"setting {self.number + 1} {self.setting.setting} {self.state.value}: {words}"


_PLAYED = (State.COMPLETE, State.STOPPED)


class Progress:
    """The state machine: ``next``, ``add``, ``fail``; everything else follows."""

    def __init__(
        self,
        study: StudyConfig,
        space: SpaceConfig,
        *,
        ledger: Ledger,
        proposer: Proposer,
    ) -> None:
        self._study, self._space = study, space
        self._ledger, self._proposer = ledger, proposer
        self._batches = tuning_batches(study, space)
        self.tried: list[Tried] = []
        self._by_id: dict[str, Tried] = {}
        # Rounds under way, of (number asked under, setting): doubles too.
        self._open: list[list[tuple[int, Tried]]] = []
        self._told: list[Tried] = []
        self._waiting: list[Tried] = []
        self._asked = 0
        self._rounds = 0
        self._doubles = 0  # in a row
        self._exhausted = False

    @property
    def finished(self) -> bool:
        """Nothing left to play; settings that were stopped or failed count as played."""
        self._advance()
        return not self._open and self._no_more()

    def next(self) -> Tried | None:
        """A setting to play; None when the round's others have to end first, or all is done."""
        self._advance()
        return self._waiting.pop(0) if self._waiting else None

    def todo(self, tried: Tried) -> list[tuple[Block, ...]]:
        """Batches that are not in the ledger, in order."""
        rows = [tuple(b for b in batch if b not in tried.rows) for batch in self._batches]
        return [batch for batch in rows if batch]

    def add(self, setting: str, rows: Sequence[BlockFigures]) -> bool:
        """Fold a batch in, on disk first; whether the setting goes on."""
        self._ledger.add(rows)
        tried = self._by_id[setting]
        if tried.state is State.OPEN:
            self._fold(tried, self._ledger.of(setting))
        return tried.state is State.OPEN

    def fail(self, setting: str, why: str) -> None:
        """The setting's worker gave up; what it has played stays in the ledger."""
        tried = self._by_id[setting]
        if tried.state is State.OPEN:
            tried.state, tried.why = State.FAILED, why

    def _fold(self, tried: Tried, known: Mapping[Block, BlockFigures]) -> None:
        """Batch by batch, so that a stop is found at the same place whatever was known when."""
        tried.rows = {}
        for batch in self._batches:
            if any(block not in known for block in batch):
                tried.rows |= {b: known[b] for b in batch if b in known}
                return
            tried.rows |= {block: known[block] for block in batch}
            if len(tried.rows) < sum(map(len, self._batches)) and self._is_worse(tried):
                tried.state = State.STOPPED
                return
        tried.state = State.COMPLETE

    def _is_worse(self, tried: Tried) -> bool:
        rule, best = self._space.stopping, tried.reference
        if rule is None or best is None:
            return False
        return clearly_worse(list(tried.rows.values()), best.rows, rule=rule)

    def _advance(self) -> None:
        """Tell the oldest round once it is over, and ask for the one after the next."""
        while True:
            if len(self._open) < ROUNDS_UNDER_WAY and not self._no_more():
                self._ask_round()
            elif self._open and all(t.state is not State.OPEN for _, t in self._open[0]):
                for number, tried in self._open.pop(0):
                    self._proposer.tell(number, tried.gain)
                    self._told.append(tried)
            else:
                return

    def _no_more(self) -> bool:
        return self._exhausted or len(self.tried) >= self._space.settings

    def _ask_round(self) -> None:
        """``ask_at_once`` asked for; doubles count, so that the search is told of them."""
        asked: list[tuple[int, Tried]] = []
        reference = best_of(self._told)
        for _ in range(self._space.ask_at_once):
            if self._no_more():
                break
            values = self._proposer.ask(self._asked)
            if values is None:
                self._exhausted = True
                break
            tried, fresh = self._taken(dict(values), reference=reference)
            asked.append((self._asked, tried))
            self._asked += 1
            self._doubles = 0 if fresh else self._doubles + 1
            self._exhausted = self._doubles >= MOST_DOUBLES
        self._open.append(asked)
        self._rounds += 1

    def _taken(self, values: Values, *, reference: Tried | None) -> tuple[Tried, bool]:
        """The setting of these values, new or tried before."""
        setting = make_setting(self._study, self._space, values)
        known = self._by_id.get(setting.setting)
        if known is not None:
            return known, False
        tried = Tried(
            number=len(self.tried), round_=self._rounds, setting=setting, reference=reference
        )
        self._ledger.ask(tried.number, setting.setting)
        self.tried.append(tried)
        self._by_id[setting.setting] = tried
        if setting.refused is not None:
            tried.state = State.REFUSED
        else:
            self._fold(tried, self._ledger.of(setting.setting))
            if tried.state is State.OPEN:
                self._waiting.append(tried)
        return tried, True


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The largest gain among the settings with every block; the first of equals."""
    complete = [(t.gain, t) for t in tried if t.state is State.COMPLETE]
    known = [(g, t) for g, t in complete if g is not None]
    return max(known, key=lambda pair: pair[0], default=(None, None))[1]

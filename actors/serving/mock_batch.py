"""The mock server's law of time: continuous batching on a clock that its caller keeps.

    step time = decode_step_s + decode_step_per_seq_s * running + prefill_s_per_token * new tokens

times merge_slowdown while a merge is marked. Every running sequence gains one token a step; a slot
that a finished one leaves goes to the longest waiting one (FIFO) at the next step.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from actors.config import MockConfig


@dataclass(eq=False)
class Sequence:
    """One request in the system."""

    prompt_tokens: int
    output_tokens: int
    on_token: Callable[[], None]  # called after each step that gave it a token
    emitted_tokens: int = field(default=0, init=False)

    @property
    def finished(self) -> bool:
        return self.emitted_tokens >= self.output_tokens


class Batch:
    """Waiting and running sequences."""

    def __init__(self, config: MockConfig) -> None:
        self._config = config
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.slow = False

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def kv_usage(self) -> float:
        """Tokens held, as a fraction of what max_num_seqs sequences of full length would hold."""
        held = sum(seq.prompt_tokens + seq.emitted_tokens for seq in self.running)
        return held / (self._config.max_num_seqs * self._config.max_model_len_tokens)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence whose client went away; harmless when it is finished."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def preempt(self) -> None:
        """All that run wait again, before the others; what they hold is computed anew."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []

    def begin_step(self) -> float:
        """Admit what fits; seconds that the step takes."""
        new_tokens = 0
        while self.waiting and len(self.running) < self._config.max_num_seqs:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            new_tokens += sequence.prompt_tokens + sequence.emitted_tokens
        step_s = (
            self._config.decode_step_s
            + self._config.decode_step_per_seq_s * len(self.running)
            + self._config.prefill_s_per_token * new_tokens
        )
        return step_s * (self._config.merge_slowdown if self.slow else 1.0)

    def end_step(self) -> None:
        """One token for every running sequence."""
        stepped, self.running = self.running, []
        for sequence in stepped:
            sequence.emitted_tokens += 1
            if not sequence.finished:
                self.running.append(sequence)
        for sequence in stepped:
            sequence.on_token()

"""The mock's law of time, exactly, on a clock that the test keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.config import MockConfig
from actors.serving.mock_batch import Batch, Sequence

LAW = MockConfig(
    kind="mock",
    max_num_seqs=16,
    max_model_len_tokens=1024,
    prefill_s_per_token=0.001,
    decode_step_s=0.01,
    decode_step_per_seq_s=0.002,
    merge_slowdown=4.0,
)


def add(batch: Batch, *, prompt: int, output: int) -> Sequence:
    sequence = Sequence(prompt_tokens=prompt, output_tokens=output, on_token=lambda: None)
    batch.add(sequence)
    return sequence


def test_sixteen_sequences_advance_in_one_step() -> None:
    batch = Batch(LAW)
    sequences = [add(batch, prompt=1, output=3) for _ in range(17)]
    assert batch.begin_step() == pytest.approx(0.01 + 16 * 0.002 + 16 * 0.001)
    batch.end_step()
    assert [seq.emitted_tokens for seq in sequences] == [1] * 16 + [0]
    assert batch.begin_step() == pytest.approx(0.01 + 16 * 0.002)  # nothing more to prefill


def test_what_is_preempted_waits_before_the_others_and_is_computed_anew() -> None:
    batch = Batch(LAW.model_copy(update={"max_num_seqs": 2}))
    first, second, third = (add(batch, prompt=p, output=9) for p in (10, 20, 40))
    batch.begin_step()
    batch.end_step()
    batch.preempt()
    assert list(batch.waiting) == [first, second, third]
    assert batch.begin_step() == pytest.approx(0.01 + 2 * 0.002 + (11 + 21) * 0.001)
    assert batch.running == [first, second]


def test_a_free_slot_goes_to_the_longest_waiting() -> None:
    batch = Batch(LAW.model_copy(update={"max_num_seqs": 1}))
    first, second, third = (add(batch, prompt=1, output=2) for _ in range(3))
    order = []
    while batch.busy:
        batch.begin_step()
        before = [s.emitted_tokens for s in (first, second, third)]
        batch.end_step()
        after = [s.emitted_tokens for s in (first, second, third)]
        order += [at for at in range(3) if after[at] > before[at]]
    assert order == [0, 0, 1, 1, 2, 2]


def test_a_marked_merge_multiplies_every_step() -> None:
    batch = Batch(LAW)
    add(batch, prompt=5, output=9)
    usual_s = batch.begin_step()
    batch.end_step()
    batch.slow = True
    slow_s = batch.begin_step()
    assert usual_s == pytest.approx(0.01 + 0.002 + 0.005)
    assert slow_s == pytest.approx(4.0 * (0.01 + 0.002))


def test_a_dropped_sequence_frees_its_slot() -> None:
    batch = Batch(LAW.model_copy(update={"max_num_seqs": 1}))
    running, waiting, other = (add(batch, prompt=1, output=100) for _ in range(3))
    batch.begin_step()
    batch.drop(waiting)
    batch.drop(running)
    batch.drop(running)
    batch.begin_step()
    assert batch.running == [other]
    assert not batch.waiting


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=40))
def test_every_sequence_gets_exactly_its_tokens(sizes: list[tuple[int, int]]) -> None:
    batch = Batch(LAW)
    heard = [0] * len(sizes)

    def listener(at: int) -> Sequence:
        def hear() -> None:
            heard[at] += 1

        prompt, output = sizes[at]
        return Sequence(prompt_tokens=prompt, output_tokens=output, on_token=hear)

    for at in range(len(sizes)):
        batch.add(listener(at))
    while batch.busy:
        assert batch.begin_step() > 0
        assert len(batch.running) <= 16
        assert 0 < batch.kv_usage < 1
        batch.end_step()
    assert heard == [output for _, output in sizes]
    assert batch.kv_usage == 0

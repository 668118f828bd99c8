"""Ctrl-C and SIGTERM: noted in an arm, never in the way of a clean-up, else at once."""

import os
import signal

import pytest

from orchestrator.signals import Interrupted, Signals, handlers_kept


def test_elsewhere_a_signal_raises_at_once() -> None:
    with Signals().installed() as signals, pytest.raises(Interrupted, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.asked == "SIGTERM"


def test_in_an_arm_the_first_is_noted_and_the_second_raises() -> None:
    with Signals().installed() as signals:
        signals.graceful = True
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.asked == "SIGINT"
        with pytest.raises(Interrupted, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)


def test_nothing_cuts_a_clean_up_short_even_after_a_first_signal() -> None:
    with Signals().installed() as signals:
        signals.graceful = True
        os.kill(os.getpid(), signal.SIGINT)
        signals.held = True
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert signals.asked == "SIGTERM"


def test_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals().installed():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_library_that_sets_its_own_handler_leaves_ours() -> None:
    with Signals().installed() as signals:
        with handlers_kept():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signals.asked == "SIGTERM"

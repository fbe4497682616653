"""Signals that end a run wait where they would leave something half done, and interrupt once where they may."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from reknit.runtime.demo.signals import ENDING, HeldSignals, keeping_handlers


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[object]]:
    """Whatever a test does, this process is left as it was."""
    before = [signal.getsignal(signum) for signum in ENDING]
    yield before
    after = [signal.getsignal(signum) for signum in ENDING]
    for signum, handler in zip(ENDING, before, strict=True):
        signal.signal(signum, handler)
    assert after == before


def send(signum: int) -> None:
    """To ourselves; the handler has run when this returns."""
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", ENDING)
def test_a_signal_waits_until_it_is_let_through(signum: int) -> None:
    reached = []
    with HeldSignals() as signals:
        send(signum)
        reached.append("built")
        with pytest.raises(KeyboardInterrupt), signals.let_through():
            reached.append("inside")
        reached.append("cleaned up")
    assert reached == ["built", "cleaned up"]


@pytest.mark.parametrize("signum", ENDING)
def test_a_signal_inside_interrupts_at_once_and_only_once(signum: int) -> None:
    reached = []

    def inside() -> None:
        try:
            send(signum)
            reached.append("not interrupted")
        finally:
            send(signum)
            reached.append("cleaned up inside")

    with HeldSignals() as signals:
        with pytest.raises(KeyboardInterrupt), signals.let_through():
            inside()
        send(signum)
        reached.append("cleaned up outside")
    assert reached == ["cleaned up inside", "cleaned up outside"]


def test_a_signal_after_a_run_that_went_to_its_end_does_not_disturb_the_cleaning_up() -> None:
    with HeldSignals() as signals:
        with signals.let_through():
            pass
        send(signal.SIGTERM)


def test_an_error_of_what_a_signal_hit_too_is_told_as_the_interrupt() -> None:
    def start(signals: HeldSignals) -> None:
        try:
            send(signal.SIGTERM)
            raise RuntimeError("the raylet is gone")
        finally:
            signals.raise_noted()

    with HeldSignals() as signals, pytest.raises(KeyboardInterrupt):
        start(signals)


def test_a_signal_that_was_switched_off_stays_off(handlers: list[object]) -> None:
    """As under nohup, and for the background jobs of a shell."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with HeldSignals() as signals, signals.let_through():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_whoever_replaces_a_handler_meanwhile_is_not_let() -> None:
    """Ray would exit with code 15 on the spot, from the middle of its own start."""
    own = signal.signal
    with HeldSignals() as signals:
        with keeping_handlers():
            signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(signum))
            send(signal.SIGTERM)
        assert signal.signal is own
        with pytest.raises(KeyboardInterrupt):
            signals.raise_noted()


def test_what_is_started_meanwhile_is_deaf_to_a_closing_terminal_and_we_are_not_afterwards() -> None:
    with keeping_handlers():
        assert signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

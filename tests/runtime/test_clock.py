"""The real clock."""

import threading

from reknit.runtime.clock import MonotonicClock


def test_a_deadline_in_a_far_future_does_not_stop_the_others():
    clock = MonotonicClock()
    try:
        clock.call_later(1e10, lambda: None)
        fired = threading.Event()
        clock.call_later(0.01, fired.set)
        assert fired.wait(10)
    finally:
        clock.close()

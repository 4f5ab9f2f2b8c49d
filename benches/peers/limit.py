"""A bound on the time of a whole run."""

import signal
import time
from contextlib import contextmanager


class TimeUp(BaseException):
    """Raised in the middle of a call. No `Exception`, so that nothing on the way takes it for its own."""


class Limit:
    """So many seconds from now on."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    @contextmanager
    def within(self, seconds=float("inf")):
        """Breaks off what takes longer than `seconds`, or than what is left, with a `ValueError`.

        Python acts on the alarm between two of its instructions: a call into a library ends first.
        """
        budget = min(seconds, self.left())
        if budget <= 0:
            raise ValueError("skipped: the time of the run is used up")

        def alarm(*_):
            raise TimeUp

        before = signal.signal(signal.SIGALRM, alarm)
        # Again each second, as what is raised in a destructor is lost.
        signal.setitimer(signal.ITIMER_REAL, budget, 1.0)
        try:
            yield
        except TimeUp:
            raise ValueError(f"skipped: takes more than {budget:.0f} s") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

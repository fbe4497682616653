"""What a trainer can get from the controller besides a report.

`Refused` errors of the specification say that a call was not allowed and changed nothing. `RefitHalted` says that the
run must stop, with one named reason.
"""

from __future__ import annotations

from ..spec.lifecycle.state import Halt, HaltReason


class RefitHalted(RuntimeError):
    """The run must stop. `reason` is for programs, the text for people: what broke, who was asked, what to do."""

    def __init__(self, halt: Halt) -> None:
        super().__init__(f"refit halted ({halt.reason.value}): {halt.detail}")
        self.halt = halt

    @property
    def reason(self) -> HaltReason:
        """Which of the named reasons."""
        return self.halt.reason

    def __reduce__(self) -> tuple[type[RefitHalted], tuple[Halt]]:
        return (RefitHalted, (self.halt,))


class ControllerClosed(RuntimeError):
    """The controller was closed while this call waited, by another thread or by leaving its `with` block."""


class ControllerStuck(RuntimeError):
    """A call outlived every deadline of the configuration: a defect of reknit itself. The journal tells the story."""

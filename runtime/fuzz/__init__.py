"""Random programs against the real controller, for the tests of this house and for those of its users.

Needs the extra `test` (Hypothesis), which is imported only when one of the names is used: the command line lists its
commands without it. See `docs/fuzzing.md`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...statemachine.generated import table_machine
    from ...statemachine.profiles import PROFILES
    from .machine import controller_machine

_HOMES = {
    "PROFILES": "...statemachine.profiles",
    "controller_machine": ".machine",
    "table_machine": "...statemachine.generated",
}

__all__ = ["PROFILES", "controller_machine", "table_machine"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return value

"""Which signals the effects of rows raise: the arrows between the two machines.

An effect returns its signals, so nothing in the table names them beforehand. This list is for people (diagrams and
reference); a test holds it against every signal that an exhaustive search saw, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..spec.lifecycle.events import (
    Carried,
    Condemned,
    Departed,
    FenceUnconfirmed,
    FormDue,
    Promoted,
    RetireOrdered,
    Returned,
    Settled,
    Signal,
    Torn,
    TransferDue,
    WindowOpened,
)
from ..spec.lifecycle.state import HaltReason

# Every shard of the fleet is gone then: there is nobody whose weights could be marked.
_WITHOUT_SURVIVORS = HaltReason.NO_SURVIVING_SHARDS

RAISES: Mapping[str, tuple[type[Signal], ...]] = MappingProxyType(
    {
        "begin": (FormDue,),
        "ask_to_form": (FormDue,),
        "open_refit_and_form": (FormDue,),
        "open_refit_and_transfer": (TransferDue,),
        "complete_forming": (TransferDue, WindowOpened),
        "complete_refit": (Promoted, WindowOpened),
        "commit_after_break": (FormDue, Promoted),
        "record_last_leaving": (Settled,),
        "settle_on_deadline": (Settled,),
        "drop_the_dead": (Settled,),
        "condemn_suspects": (Carried, Condemned, Torn),
        "rebuild_over_the_rest": (Carried, FormDue, Torn),
        "rebuild_after_transient": (Carried, FormDue, Torn),
        "order_retirement": (RetireOrdered,),
        "order_queued_retirements": (RetireOrdered,),
        "lose": (Departed,),
        "lose_for_good": (Departed,),
        "condemn": (Departed,),
        "give_up_unconfirmed": (Departed,),
        "retire_alive": (Departed,),
        "retire_absent": (Departed,),
        "doubt_fence": (FenceUnconfirmed,),
        "welcome": (Returned,),
        # After a broken transfer a halt still says what the survivors hold.
        **{f"halt_{reason.value}": (Carried, Torn) for reason in HaltReason if reason is not _WITHOUT_SURVIVORS},
    }
)


def raised_by(effect: str) -> tuple[type[Signal], ...]:
    """The signals that this effect may raise, by name."""
    return tuple(sorted(RAISES.get(effect, ()), key=lambda signal: signal.__name__))

"""What was known when a run was halted, in words a person on call can act on."""

from __future__ import annotations

from collections.abc import Iterable

from ..membership import ShardSeat
from .events import Cause, ControllerFailed, Event, TrainerLost
from .state import HaltReason, State, absentees, departed, live_count, missed, silent_slots, slots_of, trainer_ranks

WHAT_TO_DO = {
    HaltReason.TRAINER_LOST: "restart the run from its last checkpoint: trainers are never excluded",
    HaltReason.TRAINER_SILENT: "look at the trainer that was named (py-spy dump), then restart the run",
    HaltReason.TRAINER_REFUSED: "look at what the trainer's named_tensors raised, then restart the run",
    HaltReason.CONTROLLER_FAILED: "look at what failed (a full disk, too many open files), then restart",
    HaltReason.FROZEN_SHARDS: "look at the shards named; on_frozen='fence' would kill and replace them",
    HaltReason.WEIGHTS_REFUSED: "look at what the engine said; on_frozen='fence' would kill and replace it",
    HaltReason.FENCE_UNCONFIRMED: "make sure that the process named is dead, then restart the run",
    HaltReason.MAJORITY_SILENT: "most shards do not freeze at once: check that their method reknit has "
    "threads of its own (docs/embedding.md), then the network and this node",
    HaltReason.NO_SHARD_IDENTIFIED: "no generation shard could be identified as absent; look at the network, then at "
    "the failures",
    HaltReason.MISMATCH: "make the participants agree (their failures list the differences), then restart",
    HaltReason.RETRIES_EXHAUSTED: "raise max_attempts_per_refit if so many losses in one refit are expected",
    HaltReason.REFIT_TIMEOUT: "raise refit_timeout_s if a refit with its recoveries honestly takes this long",
    HaltReason.BELOW_FLOOR: "lower min_healthy_shards, or give the shards a larger restart budget",
    HaltReason.NO_SURVIVING_SHARDS: "every shard is lost and none can return; look at why they died, then restart",
}


def _named(slots: Iterable[int], state: State, ranks: frozenset[int]) -> str:
    """Shards, and of several workers those whose ranks are meant."""
    names = []
    for slot in sorted(slots):
        seats = state.membership.ranks_of(shard=slot)
        meant = [f"worker {worker}" for worker, rank in enumerate(seats) if rank in ranks and len(seats) > 1]
        names.append(" ".join((f"shard {slot} (incarnation {state.roster[slot]})", ", ".join(meant))).strip())
    return ", ".join(names)


def _sitting_at(ranks: Iterable[int], state: State) -> str:
    """Ranks as people know them."""
    names = []
    for rank in sorted(ranks):
        seat = state.membership.seat_of(rank=rank)
        if isinstance(seat, ShardSeat):
            who = f"shard {seat.shard} (incarnation {state.roster[seat.shard]}) worker {seat.worker}"
        else:
            who = f"trainer {seat.rank}"
        names.append(f"{who} (rank {rank})")
    return ", ".join(names)


def _failures(state: State) -> list[str]:
    """What the ranks said, the same words once."""
    by_words: dict[tuple[Cause, str], list[int]] = {}
    for failure in state.failures:
        # Those who were only cut off by the break itself have nothing to tell.
        if failure.cause is not Cause.DEPARTURE:
            words = " ".join(failure.detail.split())[:600] or "no text"
            by_words.setdefault((failure.cause, words), []).append(failure.rank)
    return [f"{_sitting_at(ranks, state)} failed, {cause.value}: {words}" for (cause, words), ranks in by_words.items()]


def evidence(state: State, slot: int) -> str:
    """What speaks against one member of a broken communicator, in one clause."""
    if slot not in state.roster or state.broke_in is None:
        return "too many failures in a row"
    ranks = state.membership.ranks_of(shard=slot)
    said = [f.detail for f in state.failures if f.rank in ranks and f.detail and f.cause is not Cause.DEPARTURE]
    if slot in state.blamed:
        return "its engine refused the weights: " + "; ".join(said)
    if slot not in absentees(state):
        return "it did not answer in time"
    if slot in slots_of(state, state.stuck):
        return "it answered but is stuck in code of its own: " + "; ".join(said)
    return "it answered but never began"


def explain(state: State, reason: HaltReason, event: Event) -> str:
    """One paragraph: what broke, who was asked, who answered, what the ranks said themselves, what to do."""
    parts: list[str] = []
    if isinstance(event, TrainerLost):
        parts.append(f"trainer rank {event.rank} is gone")
    elif isinstance(event, ControllerFailed):
        parts.append(f"the controller itself failed at {event.detail}")
    elif state.broke_in is not None:
        parts.append(
            f"epoch {state.epoch} over {state.roster} broke while {state.broke_in.value}"
            + (f" (cause: {state.cause.value})" if state.cause else "")
        )
        found = {
            "silent": _named(silent_slots(state), state, state.inside),
            "answered but never began": _named(
                absentees(state) & slots_of(state, state.never_entered), state, state.never_entered
            ),
            "answered but stuck in code of its own": _named(
                absentees(state) & slots_of(state, state.stuck), state, state.stuck
            ),
            "certainly gone": _named(departed(state), state, frozenset()),
            "trainers without progress": _sitting_at(trainer_ranks(state) & (state.inside | missed(state)), state),
        }
        told = "; ".join(f"{what}: {who}" for what, who in found.items() if who)
        parts.append("every rank was asked to leave; " + (told or "all of them did, and nobody is missing"))
        parts += _failures(state)
    if state.refit is not None:
        parts.append(f"refit of version {state.refit.version}, attempt {max(state.tries, 1)}")
    parts.append(f"{live_count(state)} of {state.topology.dp_size} shards live")
    if reason is HaltReason.BELOW_FLOOR:
        parts.append(f"min_healthy_shards is {state.config.min_healthy_shards}")
    if reason in (HaltReason.NO_SURVIVING_SHARDS, HaltReason.BELOW_FLOOR, HaltReason.REFIT_TIMEOUT):
        parts += [f"last words of shard {shard.slot}: {shard.last_words}" for shard in state.shards if shard.last_words]
    return "; ".join(parts) + ". What to do: " + WHAT_TO_DO[reason] + "."

"""The named questions that rows ask. Pure: same state, same event, same answer; always a real bool.

A communicator guard sees the whole state; a shard guard sees one record, which is what keeps the two machines
apart: a shard never decides by what the communicator is doing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config import RefitConfig
from ..roster import must_rebuild
from .events import (
    Cause,
    FormExpired,
    Payload,
    ProbeFailed,
    ProgressExpired,
    RankReply,
    RankTransferred,
    RefitExpired,
    RefitRequested,
    RequestFailed,
    RetireRequested,
    SettleExpired,
    ShardObservation,
    Stamp,
    Timer,
)
from .state import (
    RETURNING,
    Shard,
    ShardState,
    State,
    absentees,
    all_ranks,
    broken_refit,
    condemned,
    departed,
    desired_roster,
    live_count,
    missed,
    silent_slots,
    trainer_ranks,
)

Guard = Callable[[State, Any], bool]
ShardGuard = Callable[[Shard, Any, RefitConfig], bool]


# --- replies and deadlines -------------------------------------------------------------------------------------


def is_late(state: State, event: RankReply) -> bool:
    """The reply answers another command than the current one, or was counted already."""
    return event.stamp != state.stamp or event.rank not in state.inside


def is_about_the_break(state: State, event: RankReply) -> bool:
    """The reply answers the very operation that was broken off, and comes from somebody who was asked."""
    return event.stamp == Stamp(state.epoch, state.attempt - 1) and event.rank in all_ranks(state)


def is_stale_expiry(state: State, event: FormExpired | ProgressExpired | SettleExpired) -> bool:
    """The deadline belongs to a wait that is over."""
    return event.stamp != state.stamp


def is_last(state: State, event: RankReply) -> bool:
    """Nobody else is awaited."""
    return state.inside == {event.rank}


def is_last_to_settle(state: State, event: RankReply) -> bool:
    """Nobody else is awaited, and no ordered death is: a condemned shard may answer before it dies."""
    return is_last(state, event) and not someone_is_being_fenced(state, event)


def is_last_and_roster_is_desired(state: State, event: RankReply) -> bool:
    """Nobody else is awaited, and nobody joined or left since the roster was decided."""
    return is_last(state, event) and roster_is_desired(state, event)


def is_last_and_refit_is_open(state: State, event: RankReply) -> bool:
    """Nobody else is awaited, and a refit waits for the communicator."""
    return is_last(state, event) and state.refit is not None


def is_other_version(state: State, event: RankTransferred) -> bool:
    """The rank says that it carried something else than what was asked."""
    return state.refit is None or event.version != state.refit.version


def is_other_refit(state: State, event: RefitExpired) -> bool:
    """The deadline belongs to a refit that is over."""
    return state.refit is None or event.version != state.refit.version


# --- requests --------------------------------------------------------------------------------------------------


def is_not_newer(state: State, event: RefitRequested) -> bool:
    """The committed version is as new, or newer."""
    return state.committed is not None and event.version <= state.committed


def is_delta(state: State, event: RefitRequested) -> bool:
    """The payload holds only what changed."""
    return event.payload is Payload.DELTA


def refit_is_open(state: State, event: object) -> bool:
    """A refit was requested and has not completed."""
    return state.refit is not None


def run_is_not_started(state: State, event: object) -> bool:
    """Nobody has asked for a communicator yet."""
    return not state.started


def communicator_is_wanted(state: State, event: object) -> bool:
    """The run was started, or a refit waits: a communicator is formed whenever it can be."""
    return state.started or state.refit is not None


def slot_is_unknown(state: State, event: ShardObservation | RetireRequested) -> bool:
    """The fleet has no such slot."""
    return not 0 <= event.slot < state.topology.dp_size


def would_break_floor(state: State, event: RetireRequested) -> bool:
    """Fewer slots than `min_healthy_shards` would be left that can ever be filled."""
    left = sum(
        shard.state is not ShardState.RETIRED and shard.slot not in state.queued and shard.slot != event.slot
        for shard in state.shards
    )
    return left < state.config.min_healthy_shards


def has_queued_changes(state: State, event: object) -> bool:
    """The operator asked for a change while the window was closed."""
    return bool(state.queued)


# --- who is there ----------------------------------------------------------------------------------------------


def member_departed(state: State, event: object) -> bool:
    """Somebody in the current roster can no longer take part."""
    return bool(departed(state))


def roster_is_desired(state: State, event: object) -> bool:
    """The communicator spans exactly who can take part."""
    return not must_rebuild(desired=desired_roster(state), built=state.roster)


def roster_is_desired_and_carried(state: State, event: object) -> bool:
    """As above, and a full refit went through this communicator."""
    return state.carried and roster_is_desired(state, event)


def nobody_can_return(state: State, event: object) -> bool:
    """No shard is live and none is on its way back."""
    return live_count(state) == 0 and not any(shard.state in RETURNING for shard in state.shards)


def floor_is_lost(state: State, event: object) -> bool:
    """Fewer shards than the floor are live, even counting every one that may return."""
    returning = sum(shard.state in RETURNING for shard in state.shards)
    return live_count(state) + returning < state.config.min_healthy_shards


def is_below_floor(state: State, event: object) -> bool:
    """Too few shards are live now; enough may return."""
    return live_count(state) < state.config.min_healthy_shards


def tries_are_spent(state: State, event: object) -> bool:
    """The budget of communicators for one refit is used up."""
    return state.tries >= state.config.max_attempts_per_refit


# --- the evidence after a break --------------------------------------------------------------------------------


def has_settled(state: State, event: object) -> bool:
    """Nobody is still inside the broken communicator and no fence is being confirmed."""
    return not state.inside and not someone_is_being_fenced(state, event)


def someone_is_being_fenced(state: State, event: object) -> bool:
    """A condemned member of the broken roster may still be alive."""
    return any(state.shards[slot].is_member and state.shards[slot].fencing for slot in state.roster)


def everybody_acknowledged(state: State, event: object) -> bool:
    """Every rank of the broken refit, the lost ones included, said that it holds the version whole."""
    return broken_refit(state) is not None and state.holders == all_ranks(state)


def trainer_is_silent(state: State, event: object) -> bool:
    """A trainer has not left within its budget, or took no part while the others waited in vain for it."""
    return not trainer_ranks(state).isdisjoint(state.inside | missed(state))


def refit_is_out_of_time(state: State, event: object) -> bool:
    """The deadline of the whole path has passed."""
    return state.refit is not None and state.refit.expired


def participants_disagree(state: State, event: object) -> bool:
    """The ranks do not agree on what they form or carry: trying again cannot help."""
    return state.cause in (Cause.MANIFEST, Cause.CLAIM)


def majority_is_silent(state: State, event: object) -> bool:
    """More than half of the living members gave no sign: it is us, or the network."""
    living = len(state.roster) - len(departed(state))
    return 2 * len(silent_slots(state) | absentees(state)) > living


def fences_the_condemned(state: State, event: object) -> bool:
    """Direct evidence singles shards out, and the policy is to fence them."""
    return state.config.on_frozen == "fence" and bool(condemned(state))


def trainer_refused(state: State, event: object) -> bool:
    """What a rank refused is no shard's matter: the trainer's own callable raised."""
    return state.cause is Cause.REJECTED and not state.blamed


def engine_refused(state: State, event: object) -> bool:
    """A shard's own engine refused the weights."""
    return not state.blamed.isdisjoint(condemned(state))


def somebody_is_condemned(state: State, event: object) -> bool:
    """Direct evidence singles shards out."""
    return bool(condemned(state))


def may_repeat_transient(state: State, event: object) -> bool:
    """The cause names something that may pass, and its small budget is not used up."""
    return state.cause is Cause.TRANSIENT and state.transients < state.config.max_transient_retries


# --- one shard -------------------------------------------------------------------------------------------------


def is_other_incarnation(shard: Shard, event: ShardObservation, config: RefitConfig) -> bool:
    """The event is about another process than the one that fills the slot."""
    return event.incarnation != shard.incarnation


def is_being_fenced(shard: Shard, event: object, config: RefitConfig) -> bool:
    """It was ordered killed; its fate is decided."""
    return shard.fencing


def may_restart(shard: Shard, event: object, config: RefitConfig) -> bool:
    """The restart budget is not used up."""
    return shard.restarts < config.max_restart_attempts_per_shard


def death_is_awaited_and_may_restart(shard: Shard, event: object, config: RefitConfig) -> bool:
    """This exit confirms a fence, and the restart budget is not used up."""
    return shard.fencing and may_restart(shard, event, config)


def reaches_threshold(shard: Shard, event: ProbeFailed | RequestFailed, config: RefitConfig) -> bool:
    """This failure is the one too many of its own streak."""
    streak = shard.failed_probes if isinstance(event, ProbeFailed) else shard.failed_requests
    return streak + 1 >= config.unhealthy_threshold


def requests_are_clean(shard: Shard, event: object, config: RefitConfig) -> bool:
    """No streak of failed requests is left."""
    return shard.failed_requests == 0


def probes_are_clean(shard: Shard, event: object, config: RefitConfig) -> bool:
    """No streak of failed probes is left."""
    return shard.failed_probes == 0


def record_is_clean(shard: Shard, event: object, config: RefitConfig) -> bool:
    """No streak of any kind is left."""
    return shard.failed_probes == 0 and shard.failed_requests == 0


def waits_for_backoff(shard: Shard, event: object, config: RefitConfig) -> bool:
    """Its pause before the next attempt is the deadline that is armed."""
    return shard.timer is Timer.BACKOFF

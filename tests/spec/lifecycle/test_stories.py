"""Short stories told to the step function alone: what happened, and exactly which epoch and roster came of it.

Every event is also given to the machine that the runtime steps, and every step is held against every invariant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import (
    HaltReason,
    Phase,
    ShardState,
    State,
    Step,
    errors,
    interpret,
    serving_shards,
    violations,
)
from reknit.spec.lifecycle import commands as cmd
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.errors import Refused
from reknit.spec.lifecycle.events import Cause, Payload, Progress, Stamp, Version
from reknit.spec.roster import Roster, Topology
from reknit.statemachine.machine import LifecycleMachine

Ordered = TypeVar("Ordered", bound=cmd.Command)
V1, V2, V3 = Version(0, 1), Version(0, 2), Version(0, 3)


class Story:
    """One run of a small fleet."""

    def __init__(self, shards: int = 3, trainers: int = 1, workers: int = 1, **config: Any) -> None:
        topology = Topology(train_world_size=trainers, dp_size=shards, workers_per_shard=workers)
        self.machine = LifecycleMachine(State.initial(topology, RefitConfig(**config)))
        self.orders: list[cmd.Command] = []
        self.fired: list[str] = []

    @property
    def state(self) -> State:
        return self.machine.state

    @property
    def epoch_and_roster(self) -> tuple[int, str]:
        return self.state.epoch, str(self.state.roster)

    def traffic(self) -> tuple[int, ...]:
        """The slots that may be given requests."""
        return serving_shards(self.state)

    def shard_states(self) -> list[str]:
        return [shard.state.value for shard in self.state.shards]

    def tell(self, *told: ev.Event) -> Step:
        step: Step | None = None
        for event in told:
            before = self.state
            step = interpret(before, event)
            assert self.machine.step(event) == step
            assert violations(before, event, step) == ()
            self.orders += step.commands
            self.fired += step.fired
        assert step is not None
        return step

    def refuses(self, event: ev.Event, error: type[Refused]) -> str:
        before = self.state
        with pytest.raises(error) as caught:
            self.machine.step(event)
        assert self.state is before
        return str(caught.value)

    def ordered(self, kind: type[Ordered]) -> list[Ordered]:
        return [order for order in self.orders if isinstance(order, kind)]

    # What everybody does, in rank order.

    def all_join(self) -> Step:
        return self.tell(*(ev.RankJoined(self.state.stamp, rank) for rank in sorted(self.state.inside)))

    def all_transfer(self) -> Step:
        refit = self.state.refit
        assert refit is not None
        inside = sorted(self.state.inside)
        return self.tell(*(ev.RankTransferred(self.state.stamp, rank, refit.version) for rank in inside))

    def all_leave(self, progress: Progress = Progress.ENTERED, *, but: Iterable[int] = ()) -> Step:
        leaving = sorted(self.state.inside - set(but))
        return self.tell(*(ev.RankLeft(self.state.stamp, rank, progress) for rank in leaving))

    def start(self) -> None:
        self.tell(ev.StartRequested())
        self.all_join()

    def refit(self, version: Version) -> Step:
        """A refit in which everybody does what is asked."""
        self.tell(ev.RefitRequested(version))
        if self.state.phase is Phase.FORMING:
            self.all_join()
        return self.all_transfer()

    def lose(self, slot: int) -> Step:
        return self.tell(ev.ShardExited(slot, self.state.shards[slot].incarnation))

    def replace(self, slot: int) -> None:
        """The pause elapses and a replacement loads."""
        lost = self.state.shards[slot].incarnation
        self.tell(ev.BackoffElapsed(slot, lost), ev.ReplacementLoaded(slot, lost + 1))


def serving(shards: int = 3, **options: Any) -> Story:
    """A fleet that serves version 0.1 in epoch 1."""
    story = Story(shards, **options)
    story.start()
    story.refit(V1)
    assert story.state.phase is Phase.BUILT
    story.orders.clear()
    story.fired.clear()
    return story


# --- the quiet path -------------------------------------------------------------------------------------------------


def test_the_first_refit_after_the_start_rebuilds_nothing() -> None:
    """M12: the very first refit must not "differ" from something that nobody recorded."""
    story = Story()
    story.start()
    assert story.state.phase is Phase.REBUILT
    story.refit(V1)
    assert story.epoch_and_roster == (1, "{0:0, 1:0, 2:0}")
    assert len(story.ordered(cmd.Form)) == 1
    assert story.traffic() == (0, 1, 2)


def test_a_refit_that_comes_while_the_first_communicator_forms_goes_on_by_itself() -> None:
    story = Story()
    story.refuses(ev.RefitRequested(V1), errors.NotStarted)
    story.tell(ev.StartRequested())
    story.refit(V1)
    assert story.epoch_and_roster == (1, "{0:0, 1:0, 2:0}")
    assert [(c.version, c.epoch) for c in story.ordered(cmd.ReportCompleted)] == [(V1, 1)]


def test_the_first_build_and_a_rebuild_go_the_same_way() -> None:
    """M9: an argument added to one of two paths only."""
    first, again = Story(), serving()
    first.tell(ev.StartRequested())
    again.lose(2)
    again.orders.clear()
    again.tell(ev.ReconcileRequested())
    assert [type(order) for order in first.orders] == [type(order) for order in again.orders] == [cmd.Arm, cmd.Form]
    assert first.fired[-1].split("@")[0] == again.fired[-1].split("@")[0] == "form"


def test_a_quiet_run_rebuilds_nothing_for_many_refits() -> None:
    """P4: quiet means quiet."""
    story = serving()
    for step in range(2, 30):
        story.refit(Version(0, step))
        story.tell(ev.ReconcileRequested())
    assert story.ordered(cmd.Form) == []
    assert story.epoch_and_roster == (1, "{0:0, 1:0, 2:0}")


def test_one_loss_costs_one_rebuild_and_not_one_a_step() -> None:
    """M1: two rebuilds a step for the rest of the run once a shard is lost."""
    story = serving(max_restart_attempts_per_shard=0)
    story.lose(1)
    for step in range(2, 10):
        story.refit(Version(0, step))
    assert [str(form.roster) for form in story.ordered(cmd.Form)] == ["{0:0, 2:0}"]
    assert story.state.epoch == 2


def test_a_replaced_shard_comes_back_with_the_next_refit() -> None:
    """M1: deciding on "is anything absent" leaves a restarted shard out for ever."""
    story = serving()
    story.lose(1)
    story.refit(V2)
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")
    story.replace(1)
    assert story.state.phase is Phase.STALE
    story.refit(V3)
    assert story.epoch_and_roster == (3, "{0:0, 1:1, 2:0}")
    assert story.traffic() == (0, 1, 2)
    assert all(shard.version == V3 for shard in story.state.shards)


def test_a_shard_that_died_and_was_replaced_between_two_refits_is_noticed() -> None:
    """M2, hole 1: nothing is absent and the layout is equal, but the process is another."""
    story = serving()
    story.lose(2)
    story.replace(2)
    story.tell(ev.RefitRequested(V2))
    assert story.state.phase is Phase.FORMING
    assert story.epoch_and_roster == (2, "{0:0, 1:0, 2:1}")


def test_survivors_move_together_when_one_in_the_middle_is_lost() -> None:
    """M5, M6, M7: no hole, and the transfer goes over the layout of the new epoch, not to the lost shard."""
    story = serving(workers=2, trainers=2)
    story.lose(1)
    story.refit(V2)
    membership = story.state.membership
    assert dict(membership.shard_prefixes) == {0: 0, 2: 2}
    assert (membership.world_size, list(membership.ranks_of(shard=2))) == (6, [4, 5])
    (transfer,) = story.ordered(cmd.Transfer)
    assert (transfer.stamp.epoch, str(transfer.roster)) == (2, "{0:0, 2:0}")


def test_the_target_is_in_the_record_before_anybody_is_told() -> None:
    """M8: the new membership stored after the first dispatch that depends on it."""
    story = serving()
    story.lose(0)
    step = story.tell(ev.RefitRequested(V2))
    (form,) = story.ordered(cmd.Form)
    assert (form.stamp, form.roster) == (step.state.stamp, step.state.roster) == (Stamp(2, 0), Roster({1: 0, 2: 0}))


# --- who takes part ----------------------------------------------------------------------------------------------


def test_a_replacement_does_not_serve_before_its_first_refit() -> None:
    """H1: a replacement put in the router before its first refit. M16: alive is not serving."""
    story = serving()
    story.lose(1)
    story.refit(V2)
    story.replace(1)
    story.tell(ev.ProbeSucceeded(1, 1), ev.RequestSucceeded(1, 1))
    assert story.shard_states() == ["serving", "rejoined", "serving"]
    assert story.traffic() == (0, 2)
    story.tell(ev.RefitRequested(V3))
    story.all_join()
    assert story.traffic() == ()
    story.all_transfer()
    assert story.traffic() == (0, 1, 2)


def test_who_comes_back_during_a_refit_is_not_promoted_by_it() -> None:
    """M11: a shard that finished restarting in between is promoted with its start-up weights."""
    story = serving()
    story.lose(1)
    story.tell(ev.RefitRequested(V2))
    story.all_join()
    story.replace(1)
    story.all_transfer()
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")
    assert story.state.phase is Phase.STALE
    assert story.shard_states() == ["serving", "rejoined", "serving"]
    assert story.state.shards[1].version is None


def test_who_comes_back_while_a_communicator_forms_waits_for_the_next() -> None:
    """M11: participants are read in the same moment as the roster."""
    story = serving()
    story.lose(1)
    story.tell(ev.ReconcileRequested())
    story.replace(1)
    story.all_join()
    assert story.state.phase is Phase.STALE
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")


def test_a_joiner_that_dies_before_its_first_refit_is_noticed_and_costs_nothing() -> None:
    """H2: a shard that waits for its first refit dies, and nothing looks at it."""
    story = serving(max_restart_attempts_per_shard=2)
    story.lose(1)
    story.refit(V2)
    story.replace(1)
    story.orders.clear()
    story.lose(1)
    assert story.state.phase is Phase.BUILT
    story.refit(V3)
    assert story.ordered(cmd.Form) == []
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")


def test_failing_probes_condemn_a_shard_that_waits_for_its_first_refit() -> None:
    """H2: who waits is watched like everybody else."""
    story = serving(unhealthy_threshold=2)
    story.lose(1)
    story.refit(V2)
    story.replace(1)
    story.tell(ev.ProbeFailed(1, 1), ev.ProbeFailed(1, 1))
    assert story.shard_states()[1] == "absent"
    assert story.ordered(cmd.Fence) == [cmd.Fence(1, 1)]


# --- a refit breaks ----------------------------------------------------------------------------------------------


def test_a_death_inside_the_collective_frees_the_survivors_at_once() -> None:
    """R1: survivors block with no error. R4: after the break nothing goes on as if nothing had happened."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    stamp = story.state.stamp
    story.lose(1)
    assert story.state.phase is Phase.ABORTED
    (leave,) = story.ordered(cmd.Leave)
    assert (leave.breaking, leave.ranks) == (stamp, (0, 1, 3))
    assert story.tell(ev.RankTransferred(stamp, 3, V2)).fired == ()
    story.all_leave(Progress.PARTIAL)
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")
    story.all_join()
    story.all_transfer()
    assert story.traffic() == (0, 2)
    assert len(story.ordered(cmd.ReportCompleted)) == 1


def test_nothing_forms_before_everybody_left_the_broken_communicator() -> None:
    """F9: the rebuild starts while some ranks are still inside the old refit."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    story.lose(1)
    story.all_leave(but=[3])
    assert story.ordered(cmd.Form) == []
    story.tell(ev.RankLeft(story.state.stamp, 3, Progress.ENTERED))
    assert len(story.ordered(cmd.Form)) == 1


def test_a_release_that_never_returns_is_waited_for_no_longer_than_its_budget() -> None:
    """F8: releasing the old group never returns because a peer is frozen. Whoever is certainly gone is evidence."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    story.lose(1)
    story.all_leave(but=[3])
    assert story.state.timers == {ev.Timer.REFIT, ev.Timer.SETTLE}
    story.tell(ev.SettleExpired(story.state.stamp))
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")


def test_when_nothing_had_moved_nobody_is_torn() -> None:
    """R2: survivors marked torn for nothing."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    story.lose(1)
    story.all_leave(Progress.ENTERED)
    assert story.shard_states() == ["serving", "absent", "serving"]
    assert story.traffic() == ()


def test_when_some_had_moved_exactly_those_without_the_whole_are_torn() -> None:
    """R3: "failed" hides that versions now differ."""
    story = serving(4)
    story.tell(ev.RefitRequested(V2), ev.RankTransferred(story.state.stamp, 1, V2))
    story.tell(ev.RankTransferred(story.state.stamp, 1, V2))
    story.lose(3)
    stamp = story.state.stamp
    story.tell(
        ev.RankLeft(stamp, 0, Progress.COMPLETE),
        ev.RankLeft(stamp, 1, Progress.COMPLETE),
        ev.RankLeft(stamp, 2, Progress.PARTIAL),
        ev.RankLeft(stamp, 3, Progress.ENTERED),
    )
    assert story.shard_states() == ["serving", "torn", "serving", "absent"]
    assert [shard.version for shard in story.state.shards] == [V2, None, V1, None]
    assert story.traffic() == ()
    story.all_join()
    story.all_transfer()
    assert story.shard_states() == ["serving", "serving", "serving", "absent"]
    assert story.traffic() == (0, 1, 2)


def test_a_death_after_everybody_acknowledged_throws_nothing_away() -> None:
    """R2: a completed refit thrown away because a reply was lost."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    story.tell(*(ev.RankTransferred(story.state.stamp, rank, V2) for rank in (1, 2, 3)))
    story.lose(1)
    step = story.tell(*(ev.RankLeft(story.state.stamp, rank, Progress.COMPLETE) for rank in (0, 1, 3)))
    assert "all_had_moved@aborted" in step.fired
    assert [(c.version, c.epoch) for c in story.ordered(cmd.ReportCompleted)] == [(V2, 1)]
    assert story.shard_states() == ["serving", "absent", "serving"]
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")
    assert story.state.refit is None


def test_a_broken_forming_completes_no_refit_whatever_its_ranks_say() -> None:
    """R9: success is recorded when applied, never because somebody said a word in another operation."""
    story = serving()
    story.lose(1)
    story.tell(ev.RefitRequested(V2), ev.RankFailed(Stamp(2, 0), 0, Cause.TRANSIENT))
    story.all_leave(Progress.COMPLETE)
    assert story.ordered(cmd.ReportCompleted) == []
    assert story.epoch_and_roster == (3, "{0:0, 2:0}")


def test_after_a_break_a_delta_becomes_a_full_refit() -> None:
    """A rebuilt communicator owes a full refit: what is torn, or new, cannot build on the version before."""
    story = serving()
    story.tell(ev.RefitRequested(V2, Payload.DELTA))
    story.lose(1)
    story.all_leave(Progress.PARTIAL)
    story.all_join()
    assert [transfer.payload for transfer in story.ordered(cmd.Transfer)] == [Payload.DELTA, Payload.FULL]


def test_a_delta_is_refused_before_the_full_refit_of_a_communicator() -> None:
    story = Story()
    story.start()
    story.refuses(ev.RefitRequested(V1, Payload.DELTA), errors.DeltaNotAllowed)


def test_a_death_between_the_reconcile_and_the_transfer_is_not_formed_over() -> None:
    """M10. F6: a member dies during the rebuild; survivors must not wait inside a fixed snapshot."""
    story = serving(4)
    story.lose(0)
    story.tell(ev.ReconcileRequested())
    assert story.epoch_and_roster == (2, "{1:0, 2:0, 3:0}")
    story.lose(1)
    assert story.state.broke_in is Phase.FORMING
    story.all_leave(Progress.NEVER_ENTERED)
    assert story.epoch_and_roster == (3, "{2:0, 3:0}")
    story.all_join()
    story.lose(3)
    assert story.state.phase is Phase.STALE
    story.refit(V2)
    assert story.epoch_and_roster == (4, "{2:0}")


def test_a_refit_asked_for_after_a_break_is_not_completed_by_what_the_one_before_carried() -> None:
    """S9: the acknowledgements of a break are about the refit that broke, whatever is lost while the next one waits."""
    story = serving(min_healthy_shards=3)
    story.tell(ev.RefitRequested(V2))
    story.tell(*(ev.RankTransferred(story.state.stamp, rank, V2) for rank in (0, 1, 2)))
    story.lose(0)
    story.all_leave(Progress.COMPLETE)
    assert story.state.committed == V2
    story.tell(ev.RefitRequested(V3))
    story.lose(1)
    assert story.state.committed == V2
    assert [report.version for report in story.ordered(cmd.ReportCompleted)] == [V2]
    assert story.state.shards[2].version == V2
    for slot in (0, 1):
        story.replace(slot)
    story.all_join()
    story.all_transfer()
    assert [report.version for report in story.ordered(cmd.ReportCompleted)] == [V2, V3]
    assert story.traffic() == (0, 1, 2)


def test_closing_in_the_middle_of_a_transfer_gives_traffic_to_nobody_it_had_touched() -> None:
    """S8: a mixture does not become weights because the run is over."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    assert story.traffic() == ()
    story.tell(ev.CloseRequested())
    assert story.traffic() == ()


def test_a_failed_build_is_remembered_as_nothing() -> None:
    """M4, hole 3: the rebuild without shard 2 fails half way, then its replacement returns."""
    story = serving()
    story.lose(2)
    story.tell(ev.ReconcileRequested(), ev.RankJoined(Stamp(2, 0), 1))
    story.lose(1)
    story.replace(2)
    story.all_leave(Progress.ENTERED)
    assert story.epoch_and_roster == (3, "{0:0, 2:1}")
    story.all_join()
    assert story.state.phase is Phase.REBUILT


def test_a_member_that_freezes_while_a_communicator_forms_is_found_by_the_deadline() -> None:
    """F7: the controller waits without a deadline. R6: what it knows is named."""
    story = serving(4)
    story.lose(0)
    story.tell(ev.ReconcileRequested())
    assert ev.Timer.FORM in story.state.timers
    story.tell(ev.FormExpired(story.state.stamp))
    story.tell(*(ev.RankLeft(story.state.stamp, rank, Progress.ENTERED) for rank in (0, 1, 3)))
    story.tell(ev.SettleExpired(story.state.stamp))
    halt = story.state.halt
    assert halt is not None
    assert halt.reason is HaltReason.FROZEN_SHARDS
    assert "shard 2 (incarnation 0)" in halt.detail


def test_a_late_reply_of_an_older_epoch_changes_nothing() -> None:
    """F12: a frozen old incarnation wakes up. Everything is stamped, and what is late is journalled as such."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    old = story.state.stamp
    story.lose(1)
    story.all_leave()
    before = story.state
    for event in (
        ev.RankJoined(old, 2),
        ev.RankTransferred(old, 2, V2),
        ev.RankLeft(old, 2, Progress.COMPLETE),
        ev.RankFailed(old, 2, Cause.PEER),
        ev.FormExpired(old),
        ev.ShardExited(1, 0),
        ev.ReplacementLoaded(1, 0),
    ):
        step = story.tell(event)
        assert (step.fired, len(step.ignored)) == ((), 1)
    assert story.state is before


# --- evidence, then decision ---------------------------------------------------------------------------------------


def test_an_old_absence_is_no_evidence_for_a_new_silence() -> None:
    """M3, hole 2: shard 0 was lost long ago; now a rank goes silent and nobody can be identified."""
    story = serving(4, max_restart_attempts_per_shard=0)
    story.lose(0)
    story.refit(V2)
    story.tell(ev.RefitRequested(V3), ev.ProgressExpired(Stamp(2, 2)))
    story.all_leave(Progress.PARTIAL)
    halt = story.state.halt
    assert halt is not None
    assert halt.reason is HaltReason.NO_SHARD_IDENTIFIED
    assert "no generation shard could be identified as absent" in halt.detail
    assert len(story.ordered(cmd.Form)) == 1


def test_a_frozen_shard_stops_the_run_and_is_named() -> None:
    """R6: a frozen rank never becomes absent; policy "stop" names it."""
    story = serving(3, workers=2)
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    story.all_leave(Progress.PARTIAL, but=[4])
    story.tell(ev.SettleExpired(story.state.stamp))
    halt = story.state.halt
    assert halt is not None
    assert halt.reason is HaltReason.FROZEN_SHARDS
    assert "silent: shard 1 (incarnation 0)" in halt.detail
    assert "on_frozen='fence'" in halt.detail


def test_a_frozen_shard_is_fenced_and_its_replacement_serves() -> None:
    """R6: policy "fence" kills, confirms the death, and only then goes on."""
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    story.all_leave(Progress.PARTIAL, but=[2])
    story.tell(ev.SettleExpired(story.state.stamp))
    assert story.ordered(cmd.Fence) == [cmd.Fence(1, 0)]
    assert story.ordered(cmd.Form) == []
    story.lose(1)
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")
    story.all_join()
    story.all_transfer()
    story.replace(1)
    story.refit(V3)
    assert story.epoch_and_roster == (3, "{0:0, 1:1, 2:0}")
    assert story.traffic() == (0, 1, 2)


def test_a_condemned_shard_that_wakes_up_is_still_waited_for() -> None:
    """F12: it was ordered killed, so whatever it says now decides nothing before its death is confirmed."""
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    story.all_leave(Progress.PARTIAL, but=[2])
    story.tell(ev.SettleExpired(story.state.stamp), ev.RankLeft(story.state.stamp, 2, Progress.PARTIAL))
    assert story.state.phase is Phase.ABORTED
    assert story.state.halt is None
    assert story.ordered(cmd.Form) == []
    story.lose(1)
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")


def test_a_fence_that_cannot_be_confirmed_halts_the_run() -> None:
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    story.all_leave(Progress.PARTIAL, but=[2])
    story.tell(ev.SettleExpired(story.state.stamp), ev.FenceExpired(1, 0))
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.FENCE_UNCONFIRMED


@pytest.mark.parametrize(("progress", "left_as"), [(Progress.NEVER_ENTERED, "serving"), (Progress.STUCK, "torn")])
def test_a_shard_that_took_no_part_while_all_others_waited_is_singled_out(progress: Progress, left_as: str) -> None:
    """It never began, or is stuck in its own code; only then may its weights have changed."""
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    stamp = story.state.stamp
    story.tell(*(ev.RankLeft(stamp, rank, Progress.ENTERED) for rank in (0, 1, 2)))
    story.tell(ev.RankLeft(stamp, 3, progress))
    assert story.ordered(cmd.Fence) == [cmd.Fence(2, 0)]
    assert story.shard_states() == ["serving", "serving", left_as]


def test_after_a_death_a_shard_that_still_takes_in_what_had_come_is_torn_and_not_condemned() -> None:
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2))
    story.lose(1)
    stamp = story.state.stamp
    story.tell(ev.RankLeft(stamp, 0, Progress.ENTERED), ev.RankLeft(stamp, 1, Progress.ENTERED))
    story.tell(ev.RankLeft(stamp, 3, Progress.STUCK, "still inside accept"))
    assert story.ordered(cmd.Fence) == []
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")
    assert story.shard_states() == ["serving", "absent", "torn"]


def test_of_several_workers_the_one_that_is_silent_is_named() -> None:
    story = Story(2, workers=3)
    story.start()
    story.tell(ev.RefitRequested(V1), ev.ProgressExpired(Stamp(1, 1)))
    story.all_leave(Progress.PARTIAL, but=[6])
    story.tell(ev.SettleExpired(story.state.stamp))
    assert story.state.halt is not None
    assert "silent: shard 1 (incarnation 0) worker 2;" in story.state.halt.detail


def test_what_a_rank_that_nobody_holds_says_of_a_break_is_not_heard() -> None:
    story = serving()
    story.tell(ev.RefitRequested(V2))
    story.lose(1)
    broken = Stamp(1, 2)
    assert story.tell(ev.RankFailed(broken, 99, Cause.PEER, "who am I")).fired == ()
    story.tell(ev.RankFailed(broken, 0, Cause.PEER, "closed by peer"))
    assert [failure.rank for failure in story.state.failures] == [0]


def test_a_trainer_stuck_in_its_own_code_halts_and_is_named() -> None:
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    stamp = story.state.stamp
    story.tell(*(ev.RankLeft(stamp, rank, Progress.ENTERED) for rank in (1, 2, 3)))
    story.tell(ev.RankLeft(stamp, 0, Progress.STUCK, "still inside named_tensors, called 9.0 s ago"))
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.TRAINER_SILENT
    assert "trainers without progress: trainer 0 (rank 0)" in story.state.halt.detail
    assert "still inside named_tensors" in story.state.halt.detail


def test_when_most_shards_are_silent_nobody_is_condemned() -> None:
    """It is us, or the network."""
    story = serving(on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    story.all_leave(Progress.PARTIAL, but=[1, 2])
    story.tell(ev.SettleExpired(story.state.stamp))
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.MAJORITY_SILENT
    assert story.ordered(cmd.Fence) == []


def test_nobody_retries_in_a_loop_without_new_evidence() -> None:
    """R8: the same roster is formed again for a named transient only, and that has its own small budget."""
    story = serving(max_transient_retries=1)
    story.lose(2)
    story.tell(ev.ReconcileRequested(), ev.RankFailed(Stamp(2, 0), 0, Cause.TRANSIENT, "address in use"))
    story.all_leave(Progress.NEVER_ENTERED)
    assert story.epoch_and_roster == (3, "{0:0, 1:0}")
    story.tell(ev.RankFailed(Stamp(3, 0), 0, Cause.TRANSIENT, "address in use"))
    story.all_leave(Progress.NEVER_ENTERED)
    halt = story.state.halt
    assert halt is not None
    assert halt.reason is HaltReason.NO_SHARD_IDENTIFIED
    assert "address in use" in halt.detail
    assert story.state.epoch == 3


def test_losses_in_one_refit_have_a_budget() -> None:
    """R8: attempts per refit are counted."""
    story = serving(6, max_attempts_per_refit=2, max_restart_attempts_per_shard=0)
    story.tell(ev.RefitRequested(V2))
    for slot in (0, 1):
        story.lose(slot)
        story.all_leave()
    story.lose(2)
    story.all_leave()
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.RETRIES_EXHAUSTED
    assert story.state.epoch == 3


def test_participants_that_disagree_stop_the_run() -> None:
    story = serving()
    story.tell(ev.RefitRequested(V2), ev.RankFailed(Stamp(1, 2), 2, Cause.MANIFEST, "lm_head.weight is missing"))
    story.all_leave(Progress.ENTERED)
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.MISMATCH
    assert "lm_head.weight is missing" in story.state.halt.detail


def test_who_acknowledges_another_version_has_not_acknowledged() -> None:
    """R9: a failure swallowed and the version published anyway."""
    story = serving()
    step = story.tell(ev.RefitRequested(V2), ev.RankTransferred(Stamp(1, 2), 2, V3))
    assert step.fired == ("wrong_version@refitting",)
    assert story.state.phase is Phase.ABORTED


def test_the_death_of_a_trainer_halts_the_run() -> None:
    """H9: a trainer's death treated as a shard's."""
    for prepare in (Story, serving):
        story = prepare(trainers=2)
        story.tell(ev.TrainerLost(1))
        assert story.state.halt is not None
        assert story.state.halt.reason is HaltReason.TRAINER_LOST
        assert "trainer rank 1 is gone" in story.state.halt.detail


def test_a_trainer_that_does_not_leave_halts_the_run() -> None:
    """H9, R6: trainers are never excluded, so a frozen one cannot be fenced around."""
    story = serving(trainers=2, on_frozen="fence")
    story.tell(ev.RefitRequested(V2), ev.ProgressExpired(Stamp(1, 2)))
    story.all_leave(Progress.PARTIAL, but=[1])
    story.tell(ev.SettleExpired(story.state.stamp))
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.TRAINER_SILENT
    assert "trainers without progress: trainer 1 (rank 1)" in story.state.halt.detail


def test_when_everybody_is_lost_there_is_one_reason() -> None:
    """M15: several errors race when everybody is lost."""
    story = serving(2, max_restart_attempts_per_shard=0)
    story.tell(ev.RefitRequested(V2))
    story.lose(0)
    story.lose(1)
    story.all_leave()
    reports = story.ordered(cmd.ReportHalted)
    assert [report.halt.reason for report in reports] == [HaltReason.NO_SURVIVING_SHARDS]
    assert story.refuses(ev.RefitRequested(V3), errors.RunHalted)


def test_a_recovery_does_not_end_the_run_that_it_recovers() -> None:
    """H8: "no shard serves" while one is on its way back."""
    story = serving(1)
    story.tell(ev.RefitRequested(V2))
    story.lose(0)
    story.all_leave()
    assert story.state.phase is Phase.ABORTED
    assert story.state.halt is None
    story.replace(0)
    assert story.epoch_and_roster == (2, "{0:1}")
    story.all_join()
    story.all_transfer()
    assert story.traffic() == (0,)


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_a_big_refit_that_moves_is_not_a_hang() -> None:
    """R7: a deadline shorter than an honest big refit."""
    story = serving()
    story.tell(ev.RefitRequested(V2))
    story.orders.clear()
    for rank in (0, 1, 2, 3):
        story.tell(ev.RankProgressed(story.state.stamp, rank))
    extended = story.ordered(cmd.Arm)
    assert [arm.timer for arm in extended] == [ev.Timer.PROGRESS] * 4
    assert {arm.expiry for arm in extended} == {ev.ProgressExpired(story.state.stamp)}


def test_the_outermost_deadline_lets_everybody_leave_and_then_halts() -> None:
    """R7: the bound of the whole path, recoveries included."""
    story = serving()
    story.tell(ev.RefitRequested(V2), ev.RefitExpired(V2))
    assert story.state.phase is Phase.ABORTED
    story.all_leave(Progress.PARTIAL)
    assert story.state.halt is not None
    assert story.state.halt.reason is HaltReason.REFIT_TIMEOUT
    assert story.shard_states() == ["torn", "torn", "torn"]


# --- the operator ---------------------------------------------------------------------------------------------------


def test_a_change_by_the_operator_waits_until_the_refit_is_over() -> None:
    """M19: a membership change applied while a fixed-size refit runs."""
    story = serving()
    story.tell(ev.RefitRequested(V2), ev.RetireRequested(1))
    assert story.shard_states()[1] == "serving"
    assert story.ordered(cmd.Leave) == []
    story.all_transfer()
    assert story.shard_states() == ["serving", "retired", "serving"]
    assert story.ordered(cmd.Fence) == [cmd.Fence(1, 0)]
    assert story.state.phase is Phase.STALE
    story.refit(V3)
    assert story.epoch_and_roster == (2, "{0:0, 2:0}")


def test_the_operator_cannot_go_below_the_floor() -> None:
    story = serving(min_healthy_shards=2)
    story.tell(ev.RefitRequested(V2), ev.RetireRequested(1))
    assert "fewer slots than min_healthy_shards" in story.refuses(ev.RetireRequested(2), errors.FloorReached)


# --- restarts, streaks, versions ------------------------------------------------------------------------------------


def test_answered_probes_do_not_forgive_failed_requests() -> None:
    """H3: a wedged engine that answers liveness resets the streak that should condemn it."""
    story = serving(unhealthy_threshold=3)
    for _ in range(2):
        story.tell(ev.RequestFailed(1, 0), ev.ProbeSucceeded(1, 0))
    assert story.shard_states()[1] == "suspect"
    story.tell(ev.RequestFailed(1, 0))
    assert story.shard_states()[1] == "absent"
    assert story.ordered(cmd.Fence) == [cmd.Fence(1, 0)]


def test_a_refit_does_not_launder_a_suspect() -> None:
    """H4: a recovery launders a suspect into healthy."""
    story = serving(unhealthy_threshold=3)
    story.tell(ev.ProbeFailed(1, 0), ev.ProbeFailed(1, 0))
    story.refit(V2)
    assert story.shard_states()[1] == "suspect"
    assert story.state.shards[1].failed_probes == 2
    assert story.traffic() == (0, 1, 2)
    story.tell(ev.ProbeFailed(1, 0))
    assert story.shard_states()[1] == "absent"


def test_a_break_does_not_launder_a_suspect() -> None:
    """H4: torn and promoted again, the streak survives."""
    story = serving(unhealthy_threshold=3)
    story.tell(ev.ProbeFailed(1, 0), ev.RefitRequested(V2))
    story.lose(2)
    story.all_leave(Progress.PARTIAL)
    assert story.shard_states() == ["torn", "torn", "absent"]
    story.all_join()
    story.all_transfer()
    assert story.shard_states() == ["serving", "suspect", "absent"]


def test_a_new_incarnation_starts_with_a_clean_record() -> None:
    story = serving()
    story.tell(ev.ProbeFailed(1, 0), ev.RequestFailed(1, 0))
    story.lose(1)
    story.replace(1)
    assert (story.state.shards[1].failed_probes, story.state.shards[1].failed_requests) == (0, 0)


def test_restarts_have_a_deadline_a_growing_pause_and_a_budget() -> None:
    """H6: a restart that never returns; five attempts burnt in seconds on one cause."""
    story = serving(max_restart_attempts_per_shard=2, restart_backoff_s=1.0)
    story.lose(1)
    for attempt in (1, 2):
        story.tell(ev.BackoffElapsed(1, attempt - 1))
        assert story.ordered(cmd.Restart)[-1] == cmd.Restart(1, attempt)
        story.tell(ev.RestartExpired(1, attempt))
        assert story.ordered(cmd.Fence)[-1] == cmd.Fence(1, attempt)
        story.lose(1)
    assert story.shard_states()[1] == "retired"
    pauses = [arm.seconds for arm in story.ordered(cmd.Arm) if arm.timer is ev.Timer.BACKOFF]
    assert pauses == [1.0, 2.0]


def test_the_late_success_of_an_attempt_that_was_given_up_is_ignored() -> None:
    """H6: a late success of an attempt given up."""
    story = serving()
    story.lose(1)
    story.tell(ev.BackoffElapsed(1, 0), ev.RestartExpired(1, 1))
    assert story.tell(ev.ReplacementLoaded(1, 1)).fired == ()
    assert story.shard_states()[1] == "absent"
    story.lose(1)
    story.tell(ev.BackoffElapsed(1, 1))
    assert story.tell(ev.ReplacementLoaded(1, 1)).fired == ()
    assert story.shard_states()[1] == "restarting"
    story.tell(ev.ReplacementLoaded(1, 2))
    assert story.shard_states()[1] == "rejoined"


def test_a_sign_of_life_never_brings_a_lost_incarnation_back() -> None:
    story = serving()
    story.lose(1)
    assert story.tell(ev.ProbeSucceeded(1, 0)).fired == ()
    assert story.shard_states()[1] == "absent"


def test_one_lost_worker_takes_its_whole_shard_with_it() -> None:
    """H7: the others of a killed process group keep memory, device and connections."""
    story = serving(workers=2)
    story.tell(ev.WorkerExited(1, 0, 1))
    assert story.shard_states()[1] == "absent"
    assert story.ordered(cmd.Fence) == [cmd.Fence(1, 0)]
    assert story.ordered(cmd.Arm)[-1].timer is ev.Timer.FENCE
    assert story.tell(ev.BackoffElapsed(1, 0)).fired == ()
    story.lose(1)
    story.replace(1)
    assert story.state.shards[1].incarnation == 1


def test_the_first_step_of_a_restarted_trainer_is_newer_than_everything_before() -> None:
    """H10: the restarted trainer counts versions from 1 again."""
    story = serving()
    story.refit(Version(0, 900))
    story.refuses(ev.RefitRequested(Version(0, 900)), errors.VersionNotNewer)
    story.refit(Version(1, 1))
    assert story.state.committed == Version(1, 1)
    story.refuses(ev.RefitRequested(Version(0, 901)), errors.VersionNotNewer)
    assert story.traffic() == (0, 1, 2)


def test_the_state_of_a_shard_is_told_by_three_different_facts() -> None:
    """M16: alive, joined and current are three facts."""
    story = serving(4)
    story.lose(3)
    story.tell(ev.RefitRequested(V2))
    story.all_join()
    story.lose(2)
    story.replace(3)
    story.tell(ev.ProbeFailed(0, 0))
    story.all_leave(Progress.PARTIAL)
    states = [ShardState(state) for state in story.shard_states()]
    assert states == [ShardState.TORN, ShardState.TORN, ShardState.ABSENT, ShardState.REJOINED]
    assert [shard.is_member for shard in story.state.shards] == [True, True, False, True]
    assert story.traffic() == ()

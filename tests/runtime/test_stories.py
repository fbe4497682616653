"""The stories of the field, on the simulated fleet: the real controller and transport, exact witnesses, no waiting.

After each event the fleet itself checks: nobody who may serve holds anything but the committed version.
"""

from __future__ import annotations

import pytest

from reknit.runtime import messages
from reknit.runtime.errors import ControllerClosed, RefitHalted
from reknit.runtime.seams import Trainer, Worker
from reknit.runtime.simulated import SimulatedRun
from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle.errors import AlreadyStarted, NotStarted, RunClosed, UnknownShard, VersionNotNewer
from reknit.spec.lifecycle.events import Version
from reknit.spec.lifecycle.state import HaltReason, Phase, ShardState
from reknit.spec.roster import Roster

ALL = Roster({0: 0, 1: 0, 2: 0})
WITHOUT_1 = Roster({0: 0, 2: 0})


def started(simulate, refits=1, **options) -> SimulatedRun:
    """A run that has completed its first refits."""
    run = simulate(**options)
    run.controller.start()
    for step in range(1, refits + 1):
        run.controller.refit(step)
    return run


def on(run, kind, member, fault, delay=0.0):
    """Inject `fault` when `member` is handed its first request of this kind from now on."""
    armed = [True]

    def deliver(who, request):
        if armed and who == member and isinstance(request, kind):
            armed.clear()
            if delay:
                run.clock.call_later(delay, fault)
            else:
                fault()

    run.fleet.on_delivery = deliver


# --- quiet ---------------------------------------------------------------------------------------------------------


def test_without_faults_one_communicator_carries_every_refit(simulate):
    """T4: the witness of the fault-free run is zero rebuilds."""
    run = started(simulate, refits=5)
    assert run.communicators == [(1, ALL)]
    assert run.controller.reconcile() is False
    assert run.controller.serving_shards() == (0, 1, 2)


def test_the_first_refit_does_not_rebuild_what_start_has_built(simulate):
    """M12."""
    run = simulate()
    run.controller.start()
    assert run.controller.refit(1).communicators == ()


def test_a_refit_before_start_is_refused_at_once(simulate):
    run = simulate()
    with pytest.raises(NotStarted, match=r"call start\(\) first"):
        run.controller.refit(1)
    run.controller.start()
    assert run.controller.refit(1).communicators == ()


def test_nobody_serves_before_the_first_refit(simulate):
    """H1: start-up weights are not weights."""
    run = simulate()
    run.controller.start()
    assert run.controller.serving_shards() == ()
    run.controller.refit(1)
    assert run.controller.serving_shards() == (0, 1, 2)


# --- loss and return -----------------------------------------------------------------------------------------------


def test_a_lost_shard_costs_one_rebuild_and_its_return_another(simulate):
    """M1: neither left out for ever nor two rebuilds a step."""
    run = started(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    assert run.controller.snapshot().phase is Phase.STALE
    for step in (2, 3):
        run.controller.refit(step)
    run.clock.advance(20)
    for step in (4, 5, 6):
        run.controller.refit(step)
    assert run.communicators == [(1, ALL), (2, WITHOUT_1), (3, Roster({0: 0, 1: 1, 2: 0}))]
    assert run.controller.serving_shards() == (0, 1, 2)


def test_the_demo_story_happens_in_milliseconds(simulate):
    """Kill before a refit, rebuild over the survivors, train on, rejoin, serve again."""
    run = started(simulate, refits=3)
    run.fleet.kill_shard(1)
    report = run.controller.refit(4)
    assert report.roster == WITHOUT_1
    assert run.controller.serving_shards() == (0, 2)
    run.clock.advance(20)
    assert run.controller.snapshot().shards[1].state is ShardState.REJOINED
    assert run.controller.serving_shards() == (0, 2)
    assert run.controller.refit(5).communicators == ((3, Roster({0: 0, 1: 1, 2: 0})),)
    assert run.controller.serving_shards() == (0, 1, 2)


def test_a_shard_that_died_and_was_replaced_between_two_refits_is_a_change(simulate):
    """M2: the slot is equal, the incarnation is not."""
    run = started(simulate)
    run.fleet.kill_shard(2)
    run.clock.advance(20)
    assert run.controller.snapshot().shards[2].state is ShardState.REJOINED
    assert run.controller.refit(2).communicators == ((2, Roster({0: 0, 1: 0, 2: 1})),)


def test_survivors_move_up_so_that_no_hole_is_left(simulate):
    """M5."""
    run = started(simulate, shards=4, workers=2)
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    run.controller.refit(2)
    ranks = [shard.ranks for shard in run.controller.snapshot().shards]
    assert ranks == [(1, 2), None, (3, 4), (5, 6)]


def test_nothing_is_dispatched_to_a_lost_shard(simulate):
    """M7: the rebuilt group and the calls of the refit come from one roster."""
    run = started(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    run.fleet.calls.clear()
    run.controller.refit(2)
    asked = {
        member for _, member, request in run.fleet.calls if isinstance(request, (messages.Join, messages.Transfer))
    }
    assert asked == {Trainer(0), Worker(0, 0, 0), Worker(2, 0, 0)}


def test_the_target_is_recorded_before_anyone_is_told(simulate):
    """M8: when the first rank hears of the epoch, the state and the journal have it already."""
    run = simulate()
    seen = []

    def deliver(member, request):
        if isinstance(request, messages.Join):
            state = run.controller._machine.state
            seen.append((state.phase, state.epoch, state.roster, '"Form"' in "".join(run.journal.lines)))

    run.fleet.on_delivery = deliver
    run.controller.start()
    assert seen
    assert set(seen) == {(Phase.FORMING, 1, ALL, True)}


def test_first_build_and_rebuild_ask_the_members_the_same_way(simulate):
    """M9: one path, so no argument can be missing on one of two."""
    run = started(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    run.controller.refit(2)
    joins = [request for _, _, request in run.fleet.calls if isinstance(request, messages.Join)]
    first, rebuilt = joins[0], joins[-1]
    differing = {name for name in first.__dataclass_fields__ if getattr(first, name) != getattr(rebuilt, name)}
    assert differing == {"stamp", "nonce", "rank", "world_size"}


def test_a_death_between_the_roster_and_the_transfer_is_survived(simulate):
    """M10: the member dies when it is handed the transfer that was decided with it."""
    run = started(simulate)
    on(run, messages.Transfer, Worker(1, 0, 0), lambda: run.fleet.kill_shard(1))
    report = run.controller.refit(2)
    assert report.communicators == ((2, WITHOUT_1),)
    assert run.controller.serving_shards() == (0, 2)


def test_a_death_in_the_middle_of_a_transfer_is_survived_and_repeated_in_full(simulate):
    """M10, R1: survivors are torn until the repeat completes; nobody serves in between."""
    for seed in range(20):
        run = started(simulate, seed=seed)
        on(run, messages.Transfer, Worker(2, 0, 0), lambda run=run: run.fleet.kill_shard(2), delay=0.02)
        report = run.controller.refit(2)
        assert report.communicators == ((2, Roster({0: 0, 1: 0})),)
        assert run.controller.serving_shards() == (0, 1)


def test_a_replacement_that_loads_during_a_refit_is_not_promoted_by_it(simulate):
    """M11: promotion is by participation; the joiner waits for the next refit with its start-up weights."""
    run = started(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    run.controller.refit(2)
    loaded = []

    def deliver(member, request):
        if isinstance(request, messages.Transfer) and not loaded:
            loaded.append(True)
            run.fleet._loaded(1, 1)

    run.clock.advance(2)  # the attempt is under way
    run.fleet.on_delivery = deliver
    report = run.controller.refit(3)
    assert loaded
    assert report.roster == WITHOUT_1
    assert run.controller.serving_shards() == (0, 2)
    assert run.controller.snapshot().phase is Phase.STALE
    assert run.controller.refit(4).communicators == ((3, Roster({0: 0, 1: 1, 2: 0})),)


def test_losses_reported_in_another_order_give_the_same_communicator(simulate):
    """M14."""
    rosters = []
    for order in ((0, 2), (2, 0)):
        run = started(simulate, shards=4)
        for slot in order:
            run.fleet.kill_shard(slot)
            run.clock.advance(0.05)
        rosters.append(run.controller.refit(2).communicators)
        run.controller.refit(3)
    assert rosters[0] == rosters[1] == ((2, Roster({1: 0, 3: 0})),)


def test_losing_every_shard_for_good_is_one_clear_reason(simulate):
    """M15: several deaths, one halt."""
    run = started(simulate, config=RefitConfig(max_restart_attempts_per_shard=0))
    for slot in range(3):
        run.fleet.kill_shard(slot)
    run.clock.advance(0.1)
    with pytest.raises(RefitHalted) as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.NO_SURVIVING_SHARDS
    assert "0 of 3 shards live" in str(halted.value)


def test_losing_every_shard_for_now_waits_for_one_to_return(simulate):
    """H8: no shard serves, but the recovery is under way."""
    run = started(simulate)
    for slot in range(3):
        run.fleet.kill_shard(slot)
    run.clock.advance(0.1)
    assert run.controller.serving_shards() == ()
    report = run.controller.refit(2)
    assert len(report.roster) >= 1
    assert all(incarnation == 1 for incarnation in report.roster.values())


def test_a_replacement_is_not_served_before_its_first_refit(simulate):
    """H1."""
    run = started(simulate)
    run.fleet.kill_shard(0)
    run.clock.advance(20)
    assert run.controller.snapshot().shards[0].state is ShardState.REJOINED
    assert run.controller.serving_shards() == (1, 2)


def test_a_replacement_that_dies_while_it_waits_is_noticed_and_replaced(simulate):
    """H2."""
    run = started(simulate)
    run.fleet.kill_shard(0)
    run.clock.advance(20)
    run.fleet.kill_shard(0)
    run.clock.advance(30)
    assert run.controller.snapshot().shards[0].incarnation == 2
    assert run.controller.refit(2).roster == Roster({0: 2, 1: 0, 2: 0})
    assert run.communicators == [(1, ALL), (2, Roster({0: 2, 1: 0, 2: 0}))]


def test_a_refit_does_not_make_a_suspect_healthy(simulate):
    """H4, H3: the streak survives the refit, and an answered probe does not excuse failed requests."""
    run = started(simulate)
    run.controller.report_failure(1)
    run.controller.report_failure(1)
    run.controller.report_success(1, kind="probe")
    run.controller.refit(2)
    assert run.controller.snapshot().shards[1].state is ShardState.SUSPECT
    assert run.controller.serving_shards() == (0, 1, 2)
    run.controller.report_failure(1)
    run.clock.advance(0.1)
    assert run.controller.serving_shards() == (0, 2)
    run.controller.refit(3)
    assert run.communicators == [(1, ALL), (2, WITHOUT_1)]


def test_a_late_report_about_a_predecessor_does_not_touch_its_successor(simulate):
    """H3, H6."""
    run = started(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(20)
    run.controller.refit(2)
    for _ in range(5):
        run.controller.report_failure(1, incarnation=0)
    run.controller.record_exit(1, incarnation=0)
    assert run.controller.snapshot().shards[1].state is ShardState.SERVING


# --- frozen --------------------------------------------------------------------------------------------------------


def test_a_frozen_shard_stops_the_run_and_is_named(simulate):
    """R6: the default policy; the text says who was asked and who answered."""
    run = started(simulate)
    run.fleet.freeze(Worker(1, 0, 0))
    with pytest.raises(RefitHalted) as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.FROZEN_SHARDS
    assert "silent: shard 1 (incarnation 0)" in str(halted.value)


def test_a_frozen_shard_is_fenced_replaced_and_serves_again(simulate):
    """R6: the other policy."""
    run = started(simulate, config=RefitConfig(on_frozen="fence"))
    run.fleet.freeze(Worker(1, 0, 0))
    assert run.controller.refit(2).roster == WITHOUT_1
    run.clock.advance(20)
    run.controller.refit(3)
    assert run.communicators == [(1, ALL), (2, WITHOUT_1), (3, Roster({0: 0, 1: 1, 2: 0}))]


def test_an_old_absence_does_not_license_a_rebuild_over_a_newly_frozen_rank(simulate):
    """M3: shard 0 is long gone for good when shard 1 freezes."""
    run = started(simulate, config=RefitConfig(max_restart_attempts_per_shard=0))
    run.fleet.kill_shard(0)
    run.clock.advance(0.1)
    run.controller.refit(2)
    run.fleet.freeze(Worker(1, 0, 0))
    with pytest.raises(RefitHalted) as halted:
        run.controller.refit(3)
    assert halted.value.reason is HaltReason.FROZEN_SHARDS
    assert run.communicators == [(1, ALL), (2, Roster({1: 0, 2: 0}))]


def test_most_shards_silent_at_once_are_not_condemned(simulate):
    run = started(simulate, config=RefitConfig(on_frozen="fence"))
    run.fleet.freeze(Worker(1, 0, 0))
    run.fleet.freeze(Worker(2, 0, 0))
    with pytest.raises(RefitHalted) as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.MAJORITY_SILENT


def test_a_member_frozen_while_forming_is_bounded_and_fenced(simulate):
    """F7, F3: nobody waits for ever for a rank that never joins."""
    run = simulate(config=RefitConfig(on_frozen="fence"))
    run.fleet.freeze(Worker(2, 0, 0))
    run.controller.start()
    assert run.communicators == [(2, Roster({0: 0, 1: 0}))]


def test_a_member_that_dies_while_forming_costs_one_epoch(simulate):
    """F6, M4: the failed forming is not remembered as built."""
    run = simulate()
    on(run, messages.Join, Worker(0, 0, 0), lambda: run.fleet.kill_shard(0), delay=0.01)
    run.controller.start()
    assert run.communicators == [(2, Roster({1: 0, 2: 0}))]


def test_a_failed_forming_and_a_returned_replacement_do_not_look_like_the_old_communicator(simulate):
    """M4, the third hole: after the failed build the roster is complete again, and yet nothing is built."""
    run = started(simulate, config=RefitConfig(restart_backoff_s=0.0))
    run.fleet.restart_s = 0.001
    run.fleet.kill_shard(2)
    on(run, messages.Join, Worker(1, 0, 0), lambda: run.fleet.kill_shard(1), delay=0.02)
    report = run.controller.refit(2)
    assert report.communicators[-1][1] == report.roster
    assert run.controller.serving_shards() == tuple(report.roster)


def test_a_frozen_member_that_thaws_after_its_replacement_joined_changes_nothing(simulate):
    """F12: fenced means dead; the fence is confirmed before anything forms."""
    run = started(simulate, config=RefitConfig(on_frozen="fence"))
    zombie = Worker(1, 0, 0)
    run.fleet.freeze(zombie)
    run.controller.refit(2)
    run.fleet.thaw(zombie)
    run.clock.advance(20)
    run.controller.refit(3)
    assert run.controller.serving_shards() == (0, 1, 2)


def test_a_big_refit_that_moves_is_not_a_hang(simulate):
    """R7: it takes five times the progress deadline, and nobody is suspected."""
    run = started(simulate)
    run.fleet.transfer_s = 5 * RefitConfig().progress_timeout_s
    report = run.controller.refit(2)
    assert report.seconds > 2 * RefitConfig().progress_timeout_s
    assert run.communicators == [(1, ALL)]


def test_a_big_refit_that_stops_moving_is_found_by_progress_and_not_by_total_time(simulate):
    """R7, R6: frozen half way; found one progress deadline later, long before the refit deadline."""
    run = started(simulate, config=RefitConfig(on_frozen="fence"))
    run.fleet.transfer_s = 300.0
    on(run, messages.Transfer, Worker(1, 0, 0), lambda: run.fleet.freeze(Worker(1, 0, 0)), delay=100.0)
    began = run.clock.now()
    seen = []
    run.clock.after_each = lambda: seen.append(run.clock.now()) if run.controller.metrics()["refit/aborted"] else None
    assert run.controller.refit(2).roster == WITHOUT_1
    assert 100.0 < seen[0] - began < 100.0 + 2 * RefitConfig().progress_timeout_s


# --- trainers, restarts, widths ------------------------------------------------------------------------------------


def test_a_lost_trainer_halts_with_its_own_reason(simulate):
    """H9: never treated as a shard."""
    run = started(simulate, trainers=2)
    run.fleet.kill(Trainer(1))
    run.clock.advance(0.1)
    with pytest.raises(RefitHalted) as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.TRAINER_LOST
    assert "trainer rank 1 is gone" in str(halted.value)


def test_losing_one_worker_of_a_shard_loses_the_shard_and_kills_its_siblings(simulate):
    """H7: half a shard is none."""
    run = started(simulate, shards=2, workers=2)
    run.fleet.kill(Worker(1, 0, 0))
    run.clock.advance(0.1)
    run.controller.refit(2)
    assert run.communicators == [(1, Roster({0: 0, 1: 0})), (2, Roster({0: 0}))]
    assert run.fleet.processes[Worker(1, 0, 1)].health.value == "dead"
    run.clock.advance(20)
    assert run.controller.refit(3).roster == Roster({0: 0, 1: 1})


def test_a_shard_whose_restarts_fail_is_retired_and_the_run_goes_on(simulate):
    """H6: bounded attempts, growing pauses, no rebuild for nothing."""
    run = started(simulate, config=RefitConfig(max_restart_attempts_per_shard=2))
    run.fleet.restarts = ["fails", "never returns"]
    run.fleet.kill_shard(2)
    run.clock.advance(0.1)
    run.controller.refit(2)
    run.clock.advance(2000)
    assert run.controller.snapshot().shards[2].state is ShardState.RETIRED
    for step in (3, 4):
        run.controller.refit(step)
    assert run.communicators == [(1, ALL), (2, Roster({0: 0, 1: 0}))]


def test_a_late_success_of_an_abandoned_restart_is_refused(simulate):
    """H6: the attempt ran out of time, its process shows up all the same."""
    run = started(simulate)
    run.fleet.restarts = ["never returns", "never returns"]
    run.fleet.kill_shard(2)
    run.clock.advance(1 + 301)
    run.fleet._loaded(2, 1)
    run.clock.advance(0.1)
    assert run.controller.snapshot().shards[2].state is not ShardState.REJOINED
    assert 2 not in run.controller.serving_shards()


# --- bad input and the end -----------------------------------------------------------------------------------------


def test_an_unknown_shard_is_one_clear_error_and_changes_nothing(simulate):
    run = started(simulate)
    before = run.controller.snapshot()
    for call in (
        run.controller.report_failure,
        run.controller.report_success,
        run.controller.record_exit,
        run.controller.retire,
    ):
        with pytest.raises(UnknownShard, match="slot 7"):
            call(7)
    assert run.controller.snapshot() == before


def test_a_version_that_goes_backwards_is_refused_with_both_numbers(simulate):
    """H10: and a restarted trainer's first step is newer than its predecessor's last."""
    run = started(simulate, refits=3)
    for step in (3, 2):
        with pytest.raises(VersionNotNewer, match=rf"version 0\.{step}.*committed version 0\.3"):
            run.controller.refit(step)
    assert run.controller.refit(Version(1, 1)).version == Version(1, 1)


def test_a_closed_controller_refuses_a_refit(simulate):
    run = started(simulate)
    run.controller.close()
    run.controller.close()
    with pytest.raises(RunClosed, match="closed"):
        run.controller.refit(2)


def test_closing_while_a_refit_waits_ends_that_refit(simulate):
    run = started(simulate)
    on(run, messages.Transfer, Worker(0, 0, 0), run.controller.close)
    with pytest.raises(ControllerClosed):
        run.controller.refit(2)


def test_after_a_halt_every_refit_says_so(simulate):
    run = started(simulate, trainers=1)
    run.fleet.kill(Trainer(0))
    run.clock.advance(0.1)
    for step in (2, 3):
        with pytest.raises(RefitHalted, match="trainer_lost"):
            run.controller.refit(step)


def test_retiring_a_shard_during_a_refit_waits_for_its_end(simulate):
    """M19: the operator's change is queued, never applied under a running refit."""
    run = started(simulate)
    on(run, messages.Transfer, Worker(0, 0, 0), lambda: run.controller.retire(2))
    report = run.controller.refit(2)
    assert report.roster == ALL
    assert run.controller.snapshot().shards[2].state is ShardState.RETIRED
    assert run.controller.refit(3).communicators == ((2, Roster({0: 0, 1: 0})),)


def test_a_reconcile_that_is_closed_while_it_waits_says_so(simulate):
    run = started(simulate)
    run.fleet.kill_shard(0)
    run.clock.advance(0.1)
    run.fleet.on_delivery = lambda member, request: run.controller.close()
    with pytest.raises(ControllerClosed):
        run.controller.reconcile()


def test_metrics_are_flat_figures(simulate):
    run = started(simulate, refits=2)
    metrics = run.controller.metrics()
    assert metrics["refit/completed"] == 2.0
    assert metrics["refit/shards_serving"] == 3.0
    assert all(name.startswith("refit/") and isinstance(value, float) for name, value in metrics.items())


def test_an_engine_that_refuses_the_weights_stops_the_run_in_its_own_words(simulate):
    """R13, R5: classified as data where it happens; the text travels."""
    run = started(simulate)
    run.fleet.refusals[Worker(2, 0, 0)] = "out of memory in layer 7"
    with pytest.raises(RefitHalted, match="out of memory in layer 7") as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.WEIGHTS_REFUSED


def test_an_engine_that_refuses_the_weights_can_be_fenced_and_replaced(simulate):
    run = started(simulate, config=RefitConfig(on_frozen="fence"))
    run.fleet.refusals[Worker(2, 0, 0)] = "out of memory in layer 7"
    assert run.controller.refit(2).roster == Roster({0: 0, 1: 0})
    run.clock.advance(20)
    assert run.controller.refit(3).roster == Roster({0: 0, 1: 0, 2: 1})


def test_an_engine_stuck_in_its_own_code_is_named_though_its_process_answers(simulate):
    run = started(simulate)
    run.fleet.wedged.add(Worker(2, 0, 0))
    with pytest.raises(RefitHalted, match=r"stuck in code of its own: shard 2 .*still inside accept") as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.FROZEN_SHARDS


def test_an_engine_stuck_in_its_own_code_can_be_fenced_and_replaced(simulate, caplog):
    run = started(simulate, config=RefitConfig(on_frozen="fence"))
    run.fleet.wedged.add(Worker(2, 0, 0))
    assert run.controller.refit(2).roster == Roster({0: 0, 1: 0})
    assert "it answered but is stuck in code of its own: still inside accept" in caplog.text
    run.clock.advance(20)
    assert run.controller.refit(3).roster == Roster({0: 0, 1: 0, 2: 1})


@pytest.mark.parametrize("version", [1.5, "1", True, None, -1, 2**70, Version(0, -3)])
def test_a_version_that_is_no_count_is_refused_before_anything_happens(simulate, version):
    run = started(simulate)
    lines = len(run.journal.lines)
    with pytest.raises((TypeError, ValueError), match="weight version"):
        run.controller.refit(version)
    assert len(run.journal.lines) == lines
    assert run.controller.refit(2).version == Version(0, 2)


def test_a_version_may_be_a_whole_number_of_another_library(simulate):
    numpy = pytest.importorskip("numpy")
    run = started(simulate)
    assert run.controller.refit(numpy.int64(2)).version == Version(0, 2)


def test_a_kind_of_report_that_does_not_exist_is_refused(simulate):
    run = started(simulate)
    with pytest.raises(ValueError, match="'request' or 'probe'"):
        run.controller.report_failure(1, kind="foo")


def test_a_trainer_that_cannot_produce_its_weights_halts_under_its_own_reason(simulate):
    """R13: no shard is looked for."""
    run = started(simulate)
    run.fleet.refusals[Trainer(0)] = "gather of layer 7 failed"
    with pytest.raises(RefitHalted, match=r"trainer 0 \(rank 0\) failed, rejected: gather of layer 7 failed") as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.TRAINER_REFUSED


def test_a_journal_that_cannot_be_written_halts_before_anything_is_dispatched(simulate):
    """M8: what is not recorded must not happen, and nobody waits for it."""
    run = started(simulate)

    def fail(record):
        raise OSError(28, "No space left on device")

    run.controller._journal.append = fail
    run.fleet.calls.clear()
    with pytest.raises(RefitHalted, match="No space left on device") as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.CONTROLLER_FAILED
    assert not [request for _, _, request in run.fleet.calls if isinstance(request, messages.Transfer)]


def test_a_floor_above_the_fleet_is_refused_when_the_controller_is_made():
    with pytest.raises(ValueError, match=r"min_healthy_shards \(4\).*3 shards"):
        SimulatedRun(config=RefitConfig(min_healthy_shards=4))


def test_a_shard_that_is_lost_for_good_is_told_and_counted(simulate, caplog):
    run = started(simulate, config=RefitConfig(max_restart_attempts_per_shard=0))
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    assert run.controller.metrics()["refit/shards_retired"] == 1.0
    assert "event=retired shard=1" in caplog.text


def test_starting_again_is_refused_and_watches_nobody_twice(simulate):
    run = started(simulate)
    opened = []
    run.fleet.open = opened.append
    for _ in range(5):
        with pytest.raises(AlreadyStarted):
            run.controller.start()
    assert opened == []
    assert run.controller.refit(2).communicators == ()


def test_a_command_that_cannot_be_carried_out_halts_and_keeps_nobody_waiting(simulate):
    """R10, R14: neither a wedged session nor a wait that outlives every deadline."""
    run = started(simulate)

    def fail(command, membership):
        raise OSError(24, "Too many open files")

    run.transport.transfer = fail
    with pytest.raises(RefitHalted, match=r"carrying out Transfer: OSError.*Too many open files") as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.CONTROLLER_FAILED
    with pytest.raises(RefitHalted):
        run.controller.refit(3)


@pytest.mark.parametrize("shard", [True, "1", 1.0, None, -1])
def test_a_shard_that_is_no_slot_number_is_refused(simulate, shard):
    run = started(simulate)
    for call in (run.controller.record_exit, run.controller.report_failure, run.controller.retire):
        with pytest.raises((TypeError, ValueError), match="shard must"):
            call(shard)
    with pytest.raises(TypeError, match="incarnation must"):
        run.controller.record_exit(1, incarnation="0")
    assert run.controller.serving_shards() == (0, 1, 2)

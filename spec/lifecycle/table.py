"""The lifecycle, as data. This is the only place where anything is decided.

How to read it
--------------

Two machines run side by side. The *communicator* (one) moves between phases; each *shard* (one per slot) moves
between shard states. A row reads: this event, in this phase, if this guard holds: go there, do that, because.

* A **cell** is one event in one phase (or shard state). Its entries are tried in the order written and the
  first whose guard holds is taken; the last one has no guard. So every cell is total, and no two rows can fight.
* An entry is a **row** (something happens), an **ignore** (legal, nothing to do, with the reason), or a **refusal**
  (an error that names event, place and epoch; nothing has changed).
* The machines talk by **signals** that a row's effect raises and that are consumed within the same step, first in,
  first out. Rows whose event is a signal are the *joint rows*: all the coupling there is. A shard never looks at the
  communicator, and the communicator changes a shard only by sending it a signal.
* An observation of a shard is offered to the communicator first; it has cells for them only where the run is over.
* `SAME` as target means that the machine stays where it is.

The commands that effects return are what the runtime does; it decides nothing. Time is in here only as the
`...Expired` events: whatever waits has a deadline armed, and each deadline has rows below.
"""

from __future__ import annotations

from . import effects as do
from . import errors
from . import guards as when
from . import shard_effects as to
from .effects import Effect
from .entries import SAME, Entry, ignore, refuse, row
from .events import (
    BackoffElapsed,
    Carried,
    CloseRequested,
    Condemned,
    ControllerFailed,
    Departed,
    FenceExpired,
    FenceUnconfirmed,
    FormDue,
    FormExpired,
    ProbeFailed,
    ProbeSucceeded,
    ProgressExpired,
    Promoted,
    RankFailed,
    RankJoined,
    RankLeft,
    RankProgressed,
    RankTransferred,
    ReconcileRequested,
    RefitExpired,
    RefitRequested,
    ReplacementLoaded,
    RequestFailed,
    RequestSucceeded,
    RestartExpired,
    RestartFailed,
    RetireOrdered,
    RetireRequested,
    Returned,
    Settled,
    SettleExpired,
    ShardExited,
    ShardObservation,
    StartRequested,
    Torn,
    TrainerLost,
    TransferDue,
    WindowOpened,
    WorkerExited,
)
from .state import HaltReason, Phase, ShardState

P = Phase
S = ShardState
LIVING = (P.UNBUILT, P.FORMING, P.BUILT, P.STALE, P.REFITTING, P.ABORTED, P.REBUILT)
ENDED = (P.HALTED, P.CLOSED)
QUIET = (P.UNBUILT, P.BUILT, P.STALE, P.REBUILT)
MEMBER = (S.SERVING, S.SUSPECT, S.TORN, S.REJOINED)
AWAY = (S.ABSENT, S.RESTARTING, S.RETIRED)


def everywhere_else(*used: Phase) -> tuple[Phase, ...]:
    return tuple(phase for phase in Phase if phase not in used)


def halt(reason: HaltReason) -> Effect:
    return do.halt_with(reason)


# fmt: off
# --- the communicator: calls of the trainer ------------------------------------------------------------------------

CALLS = [
    *refuse(StartRequested, [P.UNBUILT], errors.AlreadyStarted, "the run was started before",
            if_=when.communicator_is_wanted),
    *row("start", StartRequested, [P.UNBUILT], SAME, do.begin,
         "the first build goes the way of every rebuild: there is one path"),
    *refuse(StartRequested, [P.FORMING, P.BUILT, P.STALE, P.REFITTING, P.ABORTED, P.REBUILT], errors.AlreadyStarted,
            "the run was started before"),

    *refuse(RefitRequested, [P.UNBUILT], errors.NotStarted, "call start() first", if_=when.run_is_not_started),
    *refuse(RefitRequested, LIVING, errors.RefitUnderWay, "one refit at a time; wait for it to complete",
            if_=when.refit_is_open),
    *refuse(RefitRequested, LIVING, errors.VersionNotNewer, "versions only grow, by (trainer incarnation, step)",
            if_=when.is_not_newer),
    *refuse(RefitRequested, [P.UNBUILT, P.FORMING, P.STALE, P.ABORTED, P.REBUILT], errors.DeltaNotAllowed,
            "a communicator that carried no full refit yet owes one", if_=when.is_delta),
    *row("refit_ready", RefitRequested, [P.BUILT, P.REBUILT], SAME, do.open_refit_and_transfer,
         "the communicator spans who it should: carry the weights"),
    *row("refit_needs_communicator", RefitRequested, [P.UNBUILT, P.STALE], SAME, do.open_refit_and_form,
         "a refit starts only on a communicator over the desired roster"),
    *row("refit_while_forming", RefitRequested, [P.FORMING], SAME, do.open_refit,
         "it goes on by itself when everyone has joined"),
    *row("refit_after_settled_break", RefitRequested, [P.ABORTED], SAME, do.open_refit_and_form,
         "the old communicator is settled: a new one may form", if_=when.has_settled),
    *row("refit_while_settling", RefitRequested, [P.ABORTED], SAME, do.open_refit,
         "it goes on by itself when the break is settled"),
    *refuse(RefitRequested, [P.REFITTING], errors.RefitUnderWay, "one refit at a time; wait for it to complete"),

    *row("reconcile", ReconcileRequested, [P.STALE], SAME, do.ask_to_form,
         "bring the communicator in line without waiting for a refit"),
    *row("reconcile_after_settled_break", ReconcileRequested, [P.ABORTED], SAME, do.ask_to_form,
         "the old communicator is settled: a new one may form", if_=when.has_settled),
    *ignore(ReconcileRequested, [P.ABORTED], "recovery is under way by itself"),
    *ignore(ReconcileRequested, [P.BUILT, P.REBUILT], "quiet means quiet: it spans who it should"),
    *ignore(ReconcileRequested, [P.FORMING, P.REFITTING], "the next window looks again by itself"),
    *refuse(ReconcileRequested, [P.UNBUILT], errors.NotStarted, "call start() first"),

    *refuse(RetireRequested, LIVING, errors.UnknownShard, "no slot has this number", if_=when.slot_is_unknown),
    *refuse(RetireRequested, LIVING, errors.FloorReached, "fewer slots than min_healthy_shards would be left",
            if_=when.would_break_floor),
    *row("retire_now", RetireRequested, QUIET, SAME, do.order_retirement,
         "nothing is under way: the window is open"),
    *row("retire_later", RetireRequested, [P.FORMING, P.REFITTING, P.ABORTED], SAME, do.queue_retirement,
         "a change of the membership is never applied under a running operation"),

    *row("close", CloseRequested, LIVING, P.CLOSED, do.close, "an orderly end: let everyone go, wait for nobody"),
    *ignore(CloseRequested, ENDED, "over already"),

    *[entry for call in (StartRequested, RefitRequested, ReconcileRequested, RetireRequested) for entry in (
        *refuse(call, [P.HALTED], errors.RunHalted, "the run has halted; see the reason of the halt"),
        *refuse(call, [P.CLOSED], errors.RunClosed, "the controller was closed"),
    )],
]

# --- the communicator: replies of ranks, and its deadlines ---------------------------------------------------------

REPLIES = [
    *ignore(RankJoined, [P.FORMING], "late: it answers another command, or was counted", if_=when.is_late),
    *row("last_joined", RankJoined, [P.FORMING], P.REBUILT, do.complete_forming,
         "built means shaken hands; the refit that waits goes on over this roster, later joiners wait for the next",
         if_=when.is_last_and_refit_is_open),
    *row("last_joined_quietly", RankJoined, [P.FORMING], P.REBUILT, do.complete_forming,
         "built means shaken hands: every member has exchanged a real payload",
         if_=when.is_last_and_roster_is_desired),
    *row("last_joined_while_joiners_wait", RankJoined, [P.FORMING], P.STALE, do.complete_forming,
         "live, but somebody came meanwhile: the next refit takes it in", if_=when.is_last),
    *row("joined", RankJoined, [P.FORMING], SAME, do.count_reply, "others are awaited"),
    *ignore(RankJoined, everywhere_else(P.FORMING), "late: that forming is over"),

    *ignore(RankTransferred, [P.REFITTING], "late: it answers another command, or was counted", if_=when.is_late),
    *row("wrong_version", RankTransferred, [P.REFITTING], P.ABORTED, do.break_on_wrong_version,
         "who carried something else has not carried this", if_=when.is_other_version),
    *row("last_transferred", RankTransferred, [P.REFITTING], P.BUILT, do.complete_refit,
         "every participant holds the version, and nobody came or went meanwhile",
         if_=when.is_last_and_roster_is_desired),
    *row("last_transferred_while_joiners_wait", RankTransferred, [P.REFITTING], P.STALE, do.complete_refit,
         "every participant holds the version; who joined meanwhile waits for the next", if_=when.is_last),
    *row("transferred", RankTransferred, [P.REFITTING], SAME, do.count_transfer, "others are awaited"),
    *ignore(RankTransferred, everywhere_else(P.REFITTING), "late: that transfer is over"),

    *ignore(RankProgressed, [P.REFITTING], "late: it is about another command", if_=when.is_late),
    *row("progressed", RankProgressed, [P.REFITTING], SAME, do.extend_progress,
         "a big refit that moves is not a hang"),
    *ignore(RankProgressed, everywhere_else(P.REFITTING), "late: that transfer is over"),

    *ignore(RankFailed, [P.FORMING, P.REFITTING], "late: it answers another command", if_=when.is_late),
    *row("rank_failed", RankFailed, [P.FORMING, P.REFITTING], P.ABORTED, do.break_on_failure,
         "a collective needs every rank"),
    *row("failure_heard", RankFailed, [P.ABORTED], SAME, do.hear_failure,
         "the rank that knows why is rarely the first to fail", if_=when.is_about_the_break),
    *ignore(RankFailed, [P.ABORTED], "only leaving counts now; who cannot say so is found by the deadline"),
    *ignore(RankFailed, everywhere_else(P.FORMING, P.REFITTING, P.ABORTED), "late: that operation is over"),

    *ignore(RankLeft, [P.ABORTED], "late: it answers another command, or was counted", if_=when.is_late),
    *row("last_left", RankLeft, [P.ABORTED], SAME, do.record_last_leaving,
         "nobody is inside the broken communicator any more: decide", if_=when.is_last_to_settle),
    *row("left", RankLeft, [P.ABORTED], SAME, do.record_leaving,
         "others, or an ordered death, are awaited; how far it got is evidence"),
    *ignore(RankLeft, everywhere_else(P.ABORTED), "late: nobody waits for it"),

    *row("trainer_lost", TrainerLost, LIVING, P.HALTED, halt(HaltReason.TRAINER_LOST),
         "trainers are never excluded: without one there is no training"),
    *ignore(TrainerLost, ENDED, "the run is over"),
    *row("controller_failed", ControllerFailed, LIVING, P.HALTED, halt(HaltReason.CONTROLLER_FAILED),
         "what is not recorded must not happen, and what was ordered must: neither can be made good from here"),
    *ignore(ControllerFailed, ENDED, "the run is over"),

    *ignore(FormExpired, [P.FORMING], "that wait is over", if_=when.is_stale_expiry),
    *row("form_expired", FormExpired, [P.FORMING], P.ABORTED, do.break_on_deadline, "somebody never joined"),
    *ignore(FormExpired, everywhere_else(P.FORMING), "that wait is over"),

    *ignore(ProgressExpired, [P.REFITTING], "that wait is over", if_=when.is_stale_expiry),
    *row("progress_expired", ProgressExpired, [P.REFITTING], P.ABORTED, do.break_on_deadline,
         "nobody moves: somebody is frozen"),
    *ignore(ProgressExpired, everywhere_else(P.REFITTING), "that wait is over"),

    *ignore(SettleExpired, [P.ABORTED], "that wait is over", if_=when.is_stale_expiry),
    *row("settle_expired", SettleExpired, [P.ABORTED], SAME, do.settle_on_deadline,
         "who has not left by now is silent: decide by who answered"),
    *ignore(SettleExpired, everywhere_else(P.ABORTED), "that wait is over"),

    *ignore(RefitExpired, LIVING, "that refit is over", if_=when.is_other_refit),
    *row("refit_expired_waiting", RefitExpired, [P.UNBUILT, P.STALE], P.HALTED, halt(HaltReason.REFIT_TIMEOUT),
         "not enough shards came back in time"),
    *row("refit_expired", RefitExpired, [P.FORMING, P.REFITTING], P.ABORTED, do.break_on_refit_deadline,
         "the outermost bound: leave in order, then halt"),
    *row("refit_expired_settled", RefitExpired, [P.ABORTED], P.HALTED, halt(HaltReason.REFIT_TIMEOUT),
         "not enough shards came back in time", if_=when.has_settled),
    *row("refit_expired_settling", RefitExpired, [P.ABORTED], SAME, do.mark_out_of_time,
         "the ranks are leaving; the verdict follows"),
    *ignore(RefitExpired, [P.BUILT, P.REBUILT], "no refit is open here"),
    *ignore(RefitExpired, ENDED, "the run is over"),
]

# --- the communicator: what shards tell it, and what its own rows leave to decide (joint rows) ---------------------

JOINT = [
    *row("nobody_left", FormDue, [P.UNBUILT, P.STALE, P.ABORTED], P.HALTED, halt(HaltReason.NO_SURVIVING_SHARDS),
         "a communicator without shards is none, and none can return", if_=when.nobody_can_return),
    *row("floor_lost", FormDue, [P.UNBUILT, P.STALE, P.ABORTED], P.HALTED, halt(HaltReason.BELOW_FLOOR),
         "fewer shards than min_healthy_shards, even if all that may return do", if_=when.floor_is_lost),
    *row("wait_for_shards", FormDue, [P.UNBUILT, P.STALE, P.ABORTED], SAME, do.stay,
         "no shard serves, but some are on their way: a recovery must not end the run that it recovers",
         if_=when.is_below_floor),
    *row("tries_spent", FormDue, [P.ABORTED], P.HALTED, halt(HaltReason.RETRIES_EXHAUSTED),
         "retrying has a budget", if_=when.tries_are_spent),
    *row("form", FormDue, [P.UNBUILT, P.STALE, P.ABORTED], P.FORMING, do.begin_forming,
         "one snapshot decides roster and layout, recorded before anyone is told"),
    *refuse(FormDue, everywhere_else(P.UNBUILT, P.STALE, P.ABORTED), errors.ImpossibleHere,
            "only a run without a usable communicator may form one"),

    *row("transfer", TransferDue, [P.BUILT, P.REBUILT], P.REFITTING, do.begin_transfer,
         "the roster of the refit is the roster of the communicator"),
    *refuse(TransferDue, everywhere_else(P.BUILT, P.REBUILT), errors.ImpossibleHere,
            "a transfer is only due on a live communicator"),

    *row("window_applies_queue", WindowOpened, [P.BUILT, P.STALE, P.REBUILT], SAME, do.order_queued_retirements,
         "changes wait for the window", if_=when.has_queued_changes),
    *ignore(WindowOpened, [P.BUILT, P.STALE, P.REBUILT], "nothing was queued"),
    *refuse(WindowOpened, everywhere_else(P.BUILT, P.STALE, P.REBUILT), errors.ImpossibleHere,
            "the window opens only on a live communicator"),

    *row("all_had_moved", Settled, [P.ABORTED], SAME, do.commit_after_break,
         "everyone had acknowledged: the refit counts, only the communicator is gone",
         if_=when.everybody_acknowledged),
    *row("trainer_silent", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.TRAINER_SILENT),
         "trainers are never excluded", if_=when.trainer_is_silent),
    *row("trainer_refused", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.TRAINER_REFUSED),
         "the trainer could not produce its weights: no shard can help that", if_=when.trainer_refused),
    *row("out_of_time", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.REFIT_TIMEOUT),
         "the outermost bound has passed", if_=when.refit_is_out_of_time),
    *row("disagreement", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.MISMATCH),
         "trying again cannot make participants agree", if_=when.participants_disagree),
    *row("majority_silent", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.MAJORITY_SILENT),
         "most shards silent at once: it is us or the network; never condemn a majority",
         if_=when.majority_is_silent),
    *row("fence_condemned", Settled, [P.ABORTED], SAME, do.condemn_suspects,
         "evidence singles shards out: make them certainly dead first", if_=when.fences_the_condemned),
    *row("rebuild_over_rest", Settled, [P.ABORTED], SAME, do.rebuild_over_the_rest,
         "somebody is certainly gone: evidence newer than the break", if_=when.member_departed),
    *row("refused_weights", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.WEIGHTS_REFUSED),
         "an engine refused what the others took, and the policy is to stop", if_=when.engine_refused),
    *row("frozen", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.FROZEN_SHARDS),
         "evidence singles shards out, and the policy is to stop", if_=when.somebody_is_condemned),
    *row("repeat_transient", Settled, [P.ABORTED], SAME, do.rebuild_after_transient,
         "a named transient may pass: the same roster once more, on a small budget",
         if_=when.may_repeat_transient),
    *row("no_evidence", Settled, [P.ABORTED], P.HALTED, halt(HaltReason.NO_SHARD_IDENTIFIED),
         "forcing would rebuild over the very rank that went silent"),
    *refuse(Settled, everywhere_else(P.ABORTED), errors.ImpossibleHere, "only a break settles"),

    *row("departed_while_wanted", Departed, [P.UNBUILT], SAME, do.ask_to_form,
         "a communicator is wanted, and one shard fewer may come: look again", if_=when.communicator_is_wanted),
    *row("departed_while_waiting", Departed, [P.STALE], SAME, do.ask_to_form,
         "a refit waits for shards, and one fewer may come: look again", if_=when.refit_is_open),
    *row("departed_unbuilt", Departed, [P.UNBUILT], SAME, do.stay, "the first roster is decided when it forms"),
    *row("departed_forming", Departed, [P.FORMING], P.ABORTED, do.break_on_departure,
         "a build is a collective over a snapshot: this attempt is invalid", if_=when.member_departed),
    *row("departed_refitting", Departed, [P.REFITTING], P.ABORTED, do.break_on_departure,
         "break the others' waits now, not when they time out", if_=when.member_departed),
    *ignore(Departed, [P.FORMING, P.REFITTING], "it was no member"),
    *row("departed_live", Departed, [P.BUILT, P.REBUILT], P.STALE, do.stay,
         "a member is gone: the next refit needs a smaller communicator", if_=when.member_departed),
    *ignore(Departed, [P.BUILT, P.REBUILT], "it was no member"),
    *row("joiner_departed", Departed, [P.STALE], P.BUILT, do.stay,
         "the only difference was a joiner that is gone again: no rebuild for nothing",
         if_=when.roster_is_desired_and_carried),
    *row("joiner_departed_before_refit", Departed, [P.STALE], P.REBUILT, do.stay,
         "the same, and this communicator still owes its full refit", if_=when.roster_is_desired),
    *row("departed_stale", Departed, [P.STALE], SAME, do.stay, "it differs already"),
    *row("departed_aborted", Departed, [P.ABORTED], SAME, do.drop_the_dead,
         "the dead are out of everything; if nobody else is awaited, decide"),
    *ignore(Departed, ENDED, "the run is over"),

    *row("returned_while_wanted", Returned, [P.UNBUILT], SAME, do.ask_to_form,
         "a communicator is wanted, and a shard came: look again", if_=when.communicator_is_wanted),
    *row("returned_while_waiting", Returned, [P.STALE], SAME, do.ask_to_form,
         "a refit waits for shards, and one came: look again", if_=when.refit_is_open),
    *row("returned_live", Returned, [P.BUILT, P.REBUILT], P.STALE, do.stay,
         "a joiner waits: the next refit takes it in"),
    *row("returned_after_break", Returned, [P.ABORTED], SAME, do.ask_to_form,
         "nothing is live and a shard came: look again", if_=when.has_settled),
    *ignore(Returned, [P.UNBUILT, P.STALE, P.ABORTED], "the next roster takes it in"),
    *ignore(Returned, [P.FORMING, P.REFITTING], "grow gently: it waits for the next window"),
    *refuse(Returned, ENDED, errors.ImpossibleHere, "shards are not heard after the end"),

    *row("fence_unconfirmed", FenceUnconfirmed, [P.ABORTED], P.HALTED, halt(HaltReason.FENCE_UNCONFIRMED),
         "a process that may be alive may be inside: nothing can form safely"),
    *refuse(FenceUnconfirmed, everywhere_else(P.ABORTED), errors.ImpossibleHere,
            "members are fenced only while a break is settled"),

    *[entry for observation in (
        ShardExited, WorkerExited, ProbeFailed, ProbeSucceeded, RequestFailed, RequestSucceeded,
        ReplacementLoaded, RestartFailed, BackoffElapsed, RestartExpired, FenceExpired,
    ) for entry in (
        *ignore(observation, ENDED, "the run is over: nobody restarts or promotes anything"),
        *refuse(observation, LIVING, errors.UnknownShard, "no slot has this number", if_=when.slot_is_unknown),
    )],
]

# --- one shard ----------------------------------------------------------------------------------------------------

SHARD = [
    *row("exit", ShardExited, MEMBER, S.ABSENT, to.lose,
         "certainly gone: it leaves the roster and a replacement follows", if_=when.may_restart),
    *row("exit_for_good", ShardExited, MEMBER, S.RETIRED, to.lose_for_good,
         "certainly gone, and its restart budget is used up"),
    *row("death_confirmed", ShardExited, [S.ABSENT], SAME, to.lose,
         "now it is certain: a replacement may follow", if_=when.death_is_awaited_and_may_restart),
    *row("death_confirmed_for_good", ShardExited, [S.ABSENT], S.RETIRED, to.lose_for_good,
         "now it is certain, and its restart budget is used up", if_=when.is_being_fenced),
    *ignore(ShardExited, [S.ABSENT], "known already"),
    *row("restart_died", ShardExited, [S.RESTARTING], S.ABSENT, to.lose,
         "the attempt died: pause longer, then try again", if_=when.may_restart),
    *row("restart_died_for_good", ShardExited, [S.RESTARTING], S.RETIRED, to.lose_for_good,
         "a shard that boots and dies for ever is given up"),
    *row("retired_death_confirmed", ShardExited, [S.RETIRED], SAME, to.lose_for_good,
         "its ranks are free now", if_=when.is_being_fenced),
    *ignore(ShardExited, [S.RETIRED], "known already"),

    *ignore(WorkerExited, MEMBER, "it is being killed already", if_=when.is_being_fenced),
    *row("worker_lost", WorkerExited, MEMBER, S.ABSENT, to.condemn,
         "a shard is all of its workers: kill the rest before replacing it"),
    *row("restart_worker_lost", WorkerExited, [S.RESTARTING], S.ABSENT, to.abandon_attempt,
         "half a shard is none: kill the rest, then try again"),
    *ignore(WorkerExited, [S.ABSENT, S.RETIRED], "it is being killed already"),

    *[entry for failed, count in ((ProbeFailed, to.count_failed_probe), (RequestFailed, to.count_failed_request))
      for entry in (
        *ignore(failed, MEMBER, "its fate is decided", if_=when.is_being_fenced),
        *row(f"threshold_{failed.__name__}", failed, MEMBER, S.ABSENT, to.condemn,
             "the streak says that it is gone for practical purposes", if_=when.reaches_threshold),
        *row(f"suspect_{failed.__name__}", failed, [S.SERVING, S.SUSPECT], S.SUSPECT, count,
             "not condemned yet: it still serves and is a member"),
        *row(f"count_{failed.__name__}", failed, [S.TORN, S.REJOINED], SAME, count,
             "who waits for a refit is watched like everybody else"),
        *ignore(failed, AWAY, "nothing is expected of it"),
    )],

    *row("probe_clears", ProbeSucceeded, [S.SUSPECT], S.SERVING, to.clear_probes,
         "nothing is held against it any more", if_=when.requests_are_clean),
    *row("probe_clears_probes", ProbeSucceeded, [S.SUSPECT, S.TORN, S.REJOINED], SAME, to.clear_probes,
         "an engine can answer probes while it fails every request: the streaks are separate"),
    *row("request_clears", RequestSucceeded, [S.SUSPECT], S.SERVING, to.clear_requests,
         "nothing is held against it any more", if_=when.probes_are_clean),
    *row("request_clears_requests", RequestSucceeded, [S.SUSPECT, S.TORN, S.REJOINED], SAME, to.clear_requests,
         "the streaks are separate"),
    *[entry for good in (ProbeSucceeded, RequestSucceeded) for entry in (
        *ignore(good, [S.SERVING], "nothing is held against it"),
        *ignore(good, AWAY, "a sign of life never brings an incarnation back"),
    )],

    *row("backoff_elapsed", BackoffElapsed, [S.ABSENT], S.RESTARTING, to.start_replacement,
         "a replacement is a new incarnation, never the same shard again", if_=when.waits_for_backoff),
    *ignore(BackoffElapsed, [S.ABSENT, S.RESTARTING, S.RETIRED, *MEMBER], "no pause is under way"),

    *row("loaded", ReplacementLoaded, [S.RESTARTING], S.REJOINED, to.welcome,
         "it can take part; it serves only after a refit that it took part in"),
    *ignore(ReplacementLoaded, [S.ABSENT, S.RETIRED], "this attempt was given up: a late success is refused"),
    *ignore(ReplacementLoaded, MEMBER, "known already"),

    *row("restart_failed", RestartFailed, [S.RESTARTING], S.ABSENT, to.lose,
         "pause longer, then try again", if_=when.may_restart),
    *row("restart_failed_for_good", RestartFailed, [S.RESTARTING], S.RETIRED, to.lose_for_good,
         "the restart budget is used up"),
    *ignore(RestartFailed, [S.ABSENT, S.RETIRED, *MEMBER], "no attempt is under way"),

    *row("restart_expired", RestartExpired, [S.RESTARTING], S.ABSENT, to.abandon_attempt,
         "an attempt that never returns is killed before the next"),
    *ignore(RestartExpired, [S.ABSENT, S.RETIRED, *MEMBER], "that attempt is over"),

    *row("fence_expired", FenceExpired, [S.ABSENT], S.RETIRED, to.give_up_unconfirmed,
         "nobody can say that it is dead: nothing may take its place", if_=when.is_being_fenced),
    *row("fence_doubtful", FenceExpired, MEMBER, SAME, to.doubt_fence,
         "a condemned member may be alive and inside: the communicator must know", if_=when.is_being_fenced),
    *row("retired_undead", FenceExpired, [S.RETIRED], SAME, to.stop_waiting,
         "it never returns, and nothing depends on it", if_=when.is_being_fenced),
    *ignore(FenceExpired, [S.ABSENT, S.RETIRED, S.RESTARTING, *MEMBER], "no fence is under way"),
]

# --- one shard: what the communicator tells it (joint rows) --------------------------------------------------------

SHARD_JOINT = [
    *row("promoted", Promoted, [S.TORN, S.REJOINED], S.SERVING, to.hold_version,
         "it took part in a refit that completed: this alone makes it serve", if_=when.record_is_clean),
    *row("promoted_suspect", Promoted, [S.SUSPECT, S.TORN, S.REJOINED], S.SUSPECT, to.hold_version,
         "new weights do not cure failing probes: the streak survives"),
    *row("promoted_again", Promoted, [S.SERVING], SAME, to.hold_version, "it serves the new version"),

    *row("carried", Carried, MEMBER, SAME, to.hold_version,
         "it holds the version whole, though the refit is not complete: only completion opens its traffic"),

    *row("torn", Torn, MEMBER, S.TORN, to.tear, "a broken refit is torn, not empty"),

    *row("condemned", Condemned, MEMBER, SAME, to.order_fence,
         "absent only when its death is confirmed: it may be inside"),

    *[entry for signal in (Promoted, Carried, Torn, Condemned) for entry in refuse(
        signal, AWAY, errors.ImpossibleHere, "a slot whose incarnation departed is not the one that took part")],

    *row("retire_alive", RetireOrdered, [S.SERVING, S.SUSPECT, S.REJOINED, S.RESTARTING], S.RETIRED, to.retire_alive,
         "the operator takes it out"),
    *refuse(RetireOrdered, [S.TORN], errors.ImpossibleHere,
            "a shard is torn only while a refit recovers, and then the window is closed"),
    *row("retire_absent", RetireOrdered, [S.ABSENT], S.RETIRED, to.retire_absent, "the operator takes it out"),
    *ignore(RetireOrdered, [S.RETIRED], "retired already"),
]
# fmt: on

COMMUNICATOR: tuple[Entry, ...] = (*CALLS, *REPLIES, *JOINT)
SHARDS: tuple[Entry, ...] = (
    *(
        entry
        for observation in sorted({e.event for e in SHARD}, key=lambda event: event.__name__)
        for entry in ignore(
            observation,
            ShardState,
            "it is about another incarnation than the one that fills the slot",
            if_=when.is_other_incarnation,
        )
        if issubclass(observation, ShardObservation)
    ),
    *SHARD,
    *SHARD_JOINT,
)

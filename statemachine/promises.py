"""What must come of every state of controller and fleet together when faults stop: P1 and P3 on the searched graph.

What a shard or trainer does not do any more is part of such a state, so these are stronger than the same questions
about the table alone (`progress`): a frozen process may stay frozen for ever, a killed one is noticed, a restart that
never ends is given up.
"""

from __future__ import annotations

from collections.abc import Iterator

from .coupled import Search, Violation
from .progress import dead_ends, is_at_rest, is_live_or_over


def broken_promises(search: Search) -> Iterator[Violation]:
    """One violation for each promise that a visited state breaks, each with a shortest story to such a state.

    Asks for a search that has visited everything.
    """
    by_itself = search.graph()
    restless = by_itself.cannot_reach(lambda node: is_at_rest(search.state(node)), wanted=len)
    if restless:
        yield search.stuck(min(restless), "P1: what was asked for neither completes nor halts, whatever happens next")
    # At rest nothing follows by itself: what a call leads to from there is a question about the table alone.
    resting = {search.state(node) for node in by_itself.states if is_at_rest(search.state(node))}
    ends, _ = dead_ends(sorted((state for state in resting if not is_live_or_over(state)), key=repr))
    dead = [
        node
        for node in by_itself.cannot_reach(
            lambda node: is_live_or_over(search.state(node)) or is_at_rest(search.state(node)), wanted=lambda after: 1
        )
    ]
    dead += [node for node in by_itself.states if ends and search.state(node) in ends]
    if dead:
        yield search.stuck(min(dead), "P3: neither a live communicator nor a halt can be reached from here")

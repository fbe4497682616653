"""What lives inside one member process of a refit: the participant, and the communicator of the epoch it is in.

The communicator is a process group of its own, made without touching the process's default group; it inherits
nothing.

The rule that shapes this folder: *a thread that must hear a departure never blocks inside the communication
library*. Nothing can be broken off in there: gloo's abort unblocks nobody, and dropping the last reference
to a group with a stuck collective blocks the thread that drops it. So

- forming, which blocks, runs in a thread of its own that may be abandoned (`forming`);
- a collective is issued without waiting; its end wakes a condition, and so does a departure (`waits`, `group`);
- a group that is given up goes to the graveyard with its collectives and their memory (`graveyard`).

Imports point one way, from the participant down:

    participant -> admission, passage -> seat -> group -> store, graveyard -> waits
    participant -> forming -> group
"""

from .participant import Participant

__all__ = ["Participant"]

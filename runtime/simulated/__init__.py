"""A fleet that does not exist, in time that does not pass: the real controller and the real transport run on it.

Members live, freeze, die and come back as a test says; collectives need every rank, hang when one is missing, and
tear weights when they are cut short. Nothing sleeps, and the same seed tells the same story.
"""

from .clock import VirtualClock
from .fleet import SimulatedFleet, SimulatedRendezvous
from .run import SimulatedRun

__all__ = ["SimulatedFleet", "SimulatedRendezvous", "SimulatedRun", "VirtualClock"]

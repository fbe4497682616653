"""How long the generated machines look: three named profiles of Hypothesis, under names of our own.

With `CI` in the environment Hypothesis loads a profile of its own called `ci`; these are therefore registered with a
prefix, rest on its untouched default, and say everything that counts. Needs the extra `test`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

# Finding the shortest program is worth its time; explaining it by many more runs is not.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


_OURS = settings(
    settings.get_profile("default"),
    deadline=None,
    derandomize=False,
    phases=_PHASES,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


PROFILES = {
    # At the desk: short, different every time; what failed is tried first next time.
    "dev": settings(_OURS, max_examples=20, stateful_step_count=30),
    # In a build: the same programs every time, nothing written.
    "ci": settings(_OURS, max_examples=100, stateful_step_count=40, derandomize=True, database=None),
    # For hours: long programs in small rounds, each with a seed of its own that finds the same again.
    "fuzz": settings(_OURS, max_examples=50, stateful_step_count=60, database=None),
}
for _name, _profile in PROFILES.items():
    settings.register_profile(f"reknit-{_name}", _profile)

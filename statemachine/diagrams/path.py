"""The picture of one way that a search found: where the communicator was, and what led it on."""

from __future__ import annotations

from ..scenario import Scenario, replay


def path_as_mermaid(scenario: Scenario) -> str:
    """A state diagram of the way, a box for each time the communicator moved, and at the end what is broken.

    Raises `BadScenario` when the model no longer allows the way.
    """
    followed = replay(scenario)
    boxes: list[str] = []
    arrows: list[str] = []
    lines: list[str] = []
    where: tuple[str, int] | None = None
    for number, state in enumerate(followed.states):
        if number:
            lines.append(f"{number}. {followed.told[number - 1].says}")
        # Epochs are kept small by the search, so that only a change of the phase tells one from the next.
        here = (state.phase.value, len(state.roster))
        if here == where:
            continue
        where = here
        boxes.append(f"    s{len(boxes)}: {state.phase.value}")
        if len(boxes) > 1:
            arrows.append(_arrow(len(boxes) - 2, len(boxes) - 1, lines))
            lines = []
    lines += [f"{len(followed.told)}. {followed.told[-1].says}"] if followed.broken else []
    if followed.broken:
        boxes.append(f"    s{len(boxes)}: {_plain(followed.broken[0])}")
        arrows.append(_arrow(len(boxes) - 2, len(boxes) - 1, lines))
    broken = [f"    class s{len(boxes) - 1} broken"] if followed.broken else []
    style = ["    classDef broken fill:#fdecea,stroke:#b3261e,color:#b3261e"] if broken else []
    return "\n".join(["stateDiagram-v2", "    direction TB", *style, *boxes, *arrows, *broken, ""])


def _arrow(source: int, target: int, lines: list[str]) -> str:
    return f"    s{source} --> s{target}: {'<br/>'.join(map(_plain, lines))}"


def _plain(text: str) -> str:
    """Without what ends or separates statements in that language."""
    return text.replace(":", " -").replace(";", ",")

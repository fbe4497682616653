"""What is in a picture, whatever it is drawn with: which names stand on which arrow, in which place, in which box.

Everything here keeps the marks apart: what was added, removed or changed never shares an arrow with what was not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..compare import Comparison, Mark, Marked
from ..export import ExportedEntry, ExportedPlace

Entries = Sequence[Marked[ExportedEntry]]
Places = Sequence[Marked[ExportedPlace]]
Name = tuple[str, Mark]
Arrow = tuple[str, str, Mark]

BORDER = "every place"  # where an arrow starts that leaves every place of the group


def signed(name: Name) -> str:
    """A name behind the sign of its mark, so that colour is not all that tells."""
    text, mark = name
    return f"{mark.value} {text}" if mark.differs else text


def _name(entry: ExportedEntry) -> str:
    """How an entry is called in a picture: a row by its name, everything else by what it does."""
    if entry.kind == "row":
        return entry.name
    return f"{entry.kind} {entry.event}" + (f" if {entry.guard}" if entry.guard else "")


def _is_drawn(entry: Marked[ExportedEntry]) -> bool:
    """Rows are; what is ignored or refused only where it differs from an older table."""
    return entry.of.kind == "row" or entry.mark.differs


def _leads_on(entry: ExportedEntry) -> bool:
    return entry.target is not None and entry.target != entry.source


def group_of(places: Places, *, machine: str) -> dict[str, Mark]:
    """The places that are drawn within one frame: the phases in which the run goes on, or the members."""
    if machine == "communicator":
        return {place.of.name: place.mark for place in places if "terminal" not in place.of.traits}
    return {place.of.name: place.mark for place in places if "member" in place.of.traits}


def moves_between(entries: Entries, group: dict[str, Mark]) -> dict[Arrow, list[str]]:
    """The names of the rows that lead from one place to another, sorted by arrow.

    A row that leads from every place of `group` to one target outside is drawn once, from the border of the group.
    """
    moving = [
        (entry.of.name, entry.of.source, str(entry.of.target), entry.mark) for entry in entries if _leads_on(entry.of)
    ]
    # A row has nothing to say of a place that one of the two tables does not have.
    lasting = {place for place, mark in group.items() if mark not in (Mark.ADDED, Mark.REMOVED)}
    sources: dict[tuple[str, str, Mark], set[str]] = {}
    for name, source, target, mark in moving:
        sources.setdefault((name, target, mark), set()).add(source)
    arrows: dict[Arrow, list[str]] = {}
    for name, source, target, mark in moving:
        everywhere = source in lasting and target not in group and sources[name, target, mark] >= lasting
        names = arrows.setdefault((BORDER if everywhere else source, target, mark), [])
        if name not in names:
            names.append(name)
    return dict(sorted(arrows.items(), key=lambda item: (*item[0][:2], item[0][2].value)))


def stays_of(entries: Entries, place: str) -> list[Name]:
    """What leaves a place where it is, in the order of the table."""
    return [
        (_name(entry.of), entry.mark)
        for entry in entries
        if entry.of.source == place and _is_drawn(entry) and not _leads_on(entry.of)
    ]


def raisers(entries: Entries) -> dict[tuple[str, ...], list[Name]]:
    """Row names by the signals that they may raise."""
    found: dict[tuple[str, ...], set[Name]] = {}
    for entry in entries:
        if entry.of.raises:
            found.setdefault(entry.of.raises, set()).add((entry.of.name, entry.mark))
    return {
        signals: sorted(names, key=lambda name: (name[0], name[1].value)) for signals, names in sorted(found.items())
    }


def signals_of(shown: Comparison) -> dict[str, Mark]:
    """Every signal that either table has."""
    return {event.of.name: event.mark for event in shown.events if event.of.signal}


def takers(entries: Entries, signals: Collection[str]) -> dict[str, list[Name]]:
    """What becomes of a signal: its rows by name, with the places from and to which they lead."""
    found: dict[str, dict[Name, dict[str, list[str]]]] = {}
    for entry in entries:
        if entry.of.event in signals and _is_drawn(entry):
            target = str(entry.of.target) if _leads_on(entry.of) else ""
            by_name = found.setdefault(entry.of.event, {}).setdefault((_name(entry.of), entry.mark), {})
            by_name.setdefault(target, []).append(entry.of.source)
    return {
        signal: [
            (f"{name}: {', '.join(sources)} " + (f"-> {target}" if target else "(stays)"), mark)
            for (name, mark), targets in by_name.items()
            for target, sources in targets.items()
        ]
        for signal, by_name in sorted(found.items())
    }

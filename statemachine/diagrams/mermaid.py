"""The pictures as Mermaid. Alone, a machine is a state diagram; these know no colours for arrows, so beside an older
table it is a flowchart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..compare import Comparison, Mark
from .content import BORDER, Name, group_of, moves_between, raisers, signals_of, stays_of, takers
from .shapes import DARK, DIFFERENCES, FILL, GOOD, INK, OVER, SIGNAL, WAIT

# title, frame, where it starts
_TOLD = {
    "communicator": ("The refit communicator", "the run goes on", "unbuilt"),
    "shard": ("One shard", "members", "rejoined"),
}


def _machine(shown: Comparison, machine: str) -> str:
    """The places of one machine and the rows that lead between them."""
    if shown.compared:
        return _flowchart(shown, machine, with_names=True)
    title, frame, start = _TOLD[machine]
    places, entries = [each.of for each in shown.places(machine)], shown.of(machine)
    group = group_of(shown.places(machine), machine=machine)
    lines = [
        *_head(title, "stateDiagram-v2"),
        "    direction LR",
        f"    classDef live fill:{GOOD}",
        f"    classDef waits stroke:{WAIT},stroke-width:3px",
        f"    classDef over fill:{OVER},font-weight:bold",
        f'    state "{frame}" as group {{',
        f"        [*] --> {start}",
        *(f"        {name}" for name in group),
        "    }",
    ]
    for (source, target, _), names in moves_between(entries, group).items():
        lines.append(f"    {_from(source)} --> {target}: {'<br/>'.join(names)}")
    for place in places:
        if stays := stays_of(entries, place.name):
            told = ", ".join(map(_signed, stays))
            lines += [f"    note right of {place.name}", f"        stays: {told}", "    end note"]
    for css, traits in (("live", {"live", "serves"}), ("waits", {"waits"}), ("over", {"terminal"})):
        lines += [f"    class {place.name} {css}" for place in places if traits & set(place.traits)]
    return "\n".join(lines) + "\n"


def _overview(shown: Comparison) -> str:
    """Phases, and whether any row leads from one to another."""
    if shown.compared:
        return _flowchart(shown, "communicator", with_names=False)
    moves = moves_between(shown.of("communicator"), group_of(shown.phases, machine="communicator"))
    arrows = [f"    {source} --> {target}" for source, target, _ in moves if source != BORDER]
    return "\n".join(["stateDiagram-v2", "    direction LR", *arrows]) + "\n"


def _flowchart(shown: Comparison, machine: str, *, with_names: bool) -> str:
    """One machine beside an older table; in its places only what differs. with_names: on the arrows and in places."""
    title, frame, _ = _TOLD[machine]
    entries, places = shown.of(machine), shown.places(machine)
    group = group_of(places, machine=machine)

    def nodes(inside: bool) -> Iterator[str]:
        for place in places:
            if (place.of.name in group) is inside:
                differing = [
                    _signed(name) for name in stays_of(entries, place.of.name) if name[1].differs and with_names
                ]
                yield f'    {place.of.name}["{"<br/>".join((f"<b>{place.of.name}</b>", *differing))}"]'

    lines = [*_head(title, "flowchart LR"), f'    subgraph group["{frame}"]', *nodes(True), "    end", *nodes(False)]
    for number, ((source, target, mark), names) in enumerate(moves_between(entries, group).items()):
        said = f'|"{"<br/>".join(_signed((name, mark)) for name in names)}"|' if with_names else ""
        dashed = ",stroke-dasharray:6" if mark is Mark.REMOVED else ""
        lines.append(f"    {_from(source)} -->{said} {target}")
        lines.append(f"    linkStyle {number} stroke:{INK[mark]},color:{INK[mark]}{dashed}")
    lines += [*_differences(), *(f"    class {place.of.name} {_css(place.mark)}" for place in places)]
    return "\n".join(lines) + "\n"


def _joint(shown: Comparison) -> str:
    """The signals: which rows raise them, and which rows take them."""
    signals = signals_of(shown)
    lines = _head("The coupling", "flowchart LR")
    arrows: list[str] = []
    classes: list[str] = []
    told: set[str] = set()

    def boxes(called: str, names: Sequence[Name]) -> Iterator[str]:
        """One box for each mark, for the lines of one box share their colour; says how each is called."""
        for mark in dict.fromkeys(mark for _, mark in names):
            box = f"{called}_{_css(mark)}" if shown.compared else called
            text = "<br/>".join(_signed(name).replace("->", "to") for name in names if name[1] is mark)
            lines.append(f'        {box}["{text}"]')
            if shown.compared:
                classes.append(f"    class {box} {_css(mark)}")
            yield box

    for machine in _TOLD:
        lines.append(f'    subgraph {machine}["rows of the {machine}"]')
        for number, (raised, names) in enumerate(raisers(shown.of(machine)).items()):
            for box in boxes(f"{machine}_raises_{number}", names):
                arrows += [f"    {box} -.-> {signal}" for signal in raised]
        for signal, names in takers(shown.of(machine), signals).items():
            told.add(signal)
            arrows += [f"    {signal} -.-> {box}" for box in boxes(f"{machine}_takes_{signal}", names)]
        lines.append("    end")
    lines += [f"    {signal}([{signal}])" for signal in sorted(told)]
    lines += [
        *arrows,
        f"    classDef signal fill:#ece6f2,stroke:{SIGNAL}",
        f"    class {','.join(sorted(told))} signal",
    ]
    if shown.compared:
        lines += [*_differences(), *classes]
    return "\n".join(lines) + "\n"


def _head(title: str, kind: str) -> list[str]:
    return ["---", f"title: {title}", "---", kind]


def _signed(name: Name) -> str:
    """The sign without a space behind it: with one Mermaid takes the line for an entry of a list."""
    text, mark = name
    return f"{mark.value}{text}" if mark.differs else text


def _from(source: str) -> str:
    return "group" if source == BORDER else source


def _css(mark: Mark) -> str:
    return f"is_{mark.name.lower()}"


def _differences() -> Iterator[str]:
    """The classes of what differs, and the legend."""
    for mark, _ in DIFFERENCES:
        dashed = ",stroke-dasharray:6" if mark is Mark.REMOVED else ""
        text = INK[mark] if mark.differs else DARK
        yield f"    classDef {_css(mark)} fill:{FILL[mark]},stroke:{INK[mark]},color:{text}{dashed}"
    yield '    subgraph legend["legend"]'
    for mark, text in DIFFERENCES:
        yield f'        legend_{_css(mark)}["{_signed((text, mark))}"]'
    yield "    end"
    yield from (f"    class legend_{_css(mark)} {_css(mark)}" for mark, _ in DIFFERENCES)


MERMAID: dict[str, Callable[[Comparison], str]] = {
    "overview": _overview,
    "communicator": lambda shown: _machine(shown, "communicator"),
    "shard": lambda shown: _machine(shown, "shard"),
    "joint": _joint,
}

"""The view says what it was told, in a terminal and in a pipe, and leaves the terminal as it found it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from reknit.runtime.demo.view import LiveView, PlainView, ShardRow, View, shown

ESCAPE = "\x1b"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def row(slot: int, state: str = "serving", *, incarnation: int = 0, version: str = "0.1", ranks: str = "") -> ShardRow:
    return ShardRow(slot=slot, incarnation=incarnation, state=state, version=version, ranks=ranks or str(slot + 1))


def plain() -> tuple[View, io.StringIO]:
    out = io.StringIO()
    return View.create(Console(file=out, force_terminal=False)), out


def terminal(width: int = 80) -> tuple[View, io.StringIO]:
    out = io.StringIO()
    return View.create(Console(file=out, force_terminal=True, width=width, height=24, _environ={"TERM": "xterm"})), out


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def tell(view: View) -> None:
    view.note("shard 1: process 4711 killed with SIGKILL")
    view.communicator(phase="rebuilt", epoch=2, world_size=3)
    view.shards([row(0), row(1, "absent", ranks="-"), row(2, "torn", incarnation=1, version="0.7", ranks="2-3")])
    view.step(step=3, steps=20, loss=2.34567, seconds=0.61)
    view.summary("every proof held", [("proofs", "29 compared"), ("text", "def f():\n    return 1")])


def test_plain_output_has_no_escape_codes_and_states_every_shard() -> None:
    view, out = plain()
    with view:
        tell(view)
    assert isinstance(view, PlainView)
    assert ESCAPE not in out.getvalue()
    assert out.getvalue().splitlines() == [
        "note  shard 1: process 4711 killed with SIGKILL",
        "communicator  rebuilt  epoch 2  world size 3",
        "shard 0  incarnation 0  serving  version 0.1  ranks 1",
        "shard 1  incarnation 0  absent  version 0.1  ranks -",
        "shard 2  incarnation 1  torn  version 0.7  ranks 2-3",
        "step 3/20  loss 2.3457  0.61 s",
        "summary  every proof held",
        "summary  proofs: 29 compared",
        r"summary  text: def f():\n    return 1",
    ]


def test_plain_output_repeats_nothing_that_has_not_changed() -> None:
    view, out = plain()
    view.communicator(phase="built", epoch=1, world_size=3)
    view.shards([row(0), row(1)])
    told = out.getvalue()
    view.communicator(phase="built", epoch=1, world_size=3)
    view.shards([row(0), row(1)])
    assert out.getvalue() == told
    view.shards([row(0), row(1, "suspect")])
    assert out.getvalue() == told + "shard 1  incarnation 0  suspect  version 0.1  ranks 2\n"


def test_a_pipe_stays_free_of_control_codes_even_when_colours_are_forced() -> None:
    script = (
        "from reknit.runtime.demo.view import View, ShardRow\n"
        "with View.create() as view:\n"
        "    view.note('hello')\n"
        "    view.shards([ShardRow(slot=0, incarnation=0, state='serving', version='0.1', ranks='1')])\n"
        "    view.summary('done', [('a', 'b')])\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    forced = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm-256color", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **forced}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "note  hello\nshard 0  incarnation 0  serving  version 0.1  ranks 1\nsummary  done\nsummary  a: b\n"
    )


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines() -> None:
    assert isinstance(
        View.create(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})), PlainView
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_picture_states_everything_in_words_within_the_width(width: int) -> None:
    view, out = terminal(width)
    with view:
        tell(view)
    assert isinstance(view, LiveView)
    text = without_codes(out.getvalue())
    assert max(len(line) for line in re.split(r"[\r\n]", text)) <= width
    for fact in ("step 3/20", "loss 2.3457", "0.61 s/step", "rebuilt  epoch 2  world size 3", "process 4711"):
        assert fact in text
    for cells in (
        ("0", "0", "+ serving", "0.1", "1"),
        ("1", "0", "x absent", "0.1", "-"),
        ("2", "1", "! torn", "0.7", "2-3"),
    ):
        assert re.search(r"│\s*" + r"\s*│\s*".join(map(re.escape, cells)) + r"\s*│", text), cells


def test_the_summary_comes_below_the_picture_once_it_has_come_to_rest() -> None:
    view, out = terminal()
    with view:
        view.summary("every proof held", [("text", "def f():\n    return 1")])
        view.step(step=20, steps=20, loss=1.0, seconds=0.5)
    text = without_codes(out.getvalue())
    assert text.rindex("step 20/20") < text.index("every proof held") < text.index("    return 1")
    view.summary("afterwards", [("a", "b")])
    assert "afterwards" in out.getvalue()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_the_terminal_is_restored_however_the_view_is_left(failure: type[BaseException]) -> None:
    stdout, stderr = sys.stdout, sys.stderr
    view, out = terminal()

    def fail() -> None:
        tell(view)
        raise failure

    with pytest.raises(failure), view:
        fail()
    assert out.getvalue().rindex(SHOW_CURSOR) > out.getvalue().rindex(HIDE_CURSOR)
    assert (sys.stdout, sys.stderr) == (stdout, stderr)


def test_a_second_interrupt_during_the_clean_up_still_shows_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    view, out = terminal()
    assert isinstance(view, LiveView)
    stop = view._live.stop

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), view:
        monkeypatch.setattr(view._live, "stop", interrupted)
    assert out.getvalue().rindex(SHOW_CURSOR) > out.getvalue().rindex(HIDE_CURSOR)
    stop()


def test_text_from_elsewhere_cannot_steer_the_terminal() -> None:
    evil = "red \x1b[31m bell \x07 line\nfeed \x9b2J [bold]markup[/bold] \ud800"
    for view, out in (plain(), terminal(120)):
        with view:
            view.note(evil)
            view.shards([row(0, evil, version=evil, ranks=evil)])
            view.summary(evil, [(evil, evil)])
        for code in ("\x1b[31m bell", "\x07", "\x9b"):
            assert code not in out.getvalue()
        assert "[bold]markup[/bold]" in out.getvalue()


def test_what_the_console_cannot_write_is_escaped_and_not_an_error() -> None:
    assert shown("naïve \u2713", "ascii") == r"na\xefve \u2713"
    assert shown("naïve \u2713", "utf-8") == "naïve \u2713"
    assert shown("a\tb\\n", "utf-8") == r"a\tb\n"


def test_notes_may_come_from_any_thread() -> None:
    def tell_many(view: View, teller: int) -> None:
        for i in range(20):
            view.note(f"<{teller}.{i}>")

    for view, out in (plain(), terminal()):
        with view:
            tellers = [threading.Thread(target=tell_many, args=(view, teller)) for teller in range(4)]
            for thread in tellers:
                thread.start()
            for thread in tellers:
                thread.join()
        for teller in range(4):
            for i in range(20):
                assert out.getvalue().count(f"<{teller}.{i}>") == 1

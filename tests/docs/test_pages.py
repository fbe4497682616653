"""The pages name what the code has: a reason or an error without its entry fails here."""

import re
from pathlib import Path

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle.entries import Row
from reknit.spec.lifecycle.errors import Refused
from reknit.spec.lifecycle.events import Settled
from reknit.spec.lifecycle.state import HaltReason
from reknit.spec.lifecycle.table import COMMUNICATOR

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_halt_reason_has_its_entry():
    page = (DOCS / "errors.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+)` \|", page, re.M)) == {reason.value for reason in HaltReason}


def test_every_refusal_has_its_entry():
    page = (DOCS / "errors.md").read_text()
    for error in Refused.__subclasses__():
        assert f"| `{error.__name__}` |" in page or error.__name__ == "RunHalted"


def test_every_knob_is_explained_with_its_default():
    page = (DOCS / "embedding.md").read_text()
    for name in RefitConfig.__dataclass_fields__:
        assert f"`{name}`" in page


def test_the_decision_after_a_break_is_told_in_the_order_of_the_table():
    page = (DOCS / "lifecycle.md").read_text()
    told = re.findall(r"^ ?\d+\. `([a-z_]+)`", page, re.M)
    rows = [entry.id.partition("@")[0] for entry in COMMUNICATOR if isinstance(entry, Row) and entry.event is Settled]
    assert told == rows


def test_no_link_in_the_docs_is_broken():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"

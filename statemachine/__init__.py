"""What may happen: the table made executable, and everything that is checked or written down from it.

Needs `transitions` and nothing else; `diagrams` alone needs `graphviz` and is imported by name. A journal is checked
with `conform.conform`.
"""

from .codec import decode_event, encode
from .conform import Verdict
from .environment import Bounds
from .explore import Report, reach, search
from .export import Export, fingerprint, table_hash, this_table
from .machine import LifecycleMachine

__all__ = [
    "Bounds",
    "Export",
    "LifecycleMachine",
    "Report",
    "Verdict",
    "decode_event",
    "encode",
    "fingerprint",
    "reach",
    "search",
    "table_hash",
    "this_table",
]

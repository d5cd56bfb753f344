"""Revisions: what an instance runs, as an immutable document that is named by its content."""

from geartrain.revision.change import Change, change_of, tables_of, with_parts
from geartrain.revision.code import Code, code_of, contents_of
from geartrain.revision.differences import differences, in_short, is_mended, way_on
from geartrain.revision.making import revision_of
from geartrain.revision.noted import table_notes
from geartrain.revision.parts import part_clauses, parts_of
from geartrain.revision.revision import Revision

__all__ = [
    "Change",
    "Code",
    "Revision",
    "change_of",
    "code_of",
    "contents_of",
    "differences",
    "in_short",
    "is_mended",
    "part_clauses",
    "parts_of",
    "revision_of",
    "table_notes",
    "tables_of",
    "way_on",
    "with_parts",
]

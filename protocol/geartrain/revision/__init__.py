"""Revisions: what an instance runs, as an immutable document that is named by its content."""

from geartrain.revision.code import Code, code_of, contents_of
from geartrain.revision.differences import differences, in_short, is_mended, way_on
from geartrain.revision.making import revision_of
from geartrain.revision.revision import Revision

__all__ = [
    "Code",
    "Revision",
    "code_of",
    "contents_of",
    "differences",
    "in_short",
    "is_mended",
    "revision_of",
    "way_on",
]

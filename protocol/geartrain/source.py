"""What the author of a source needs: the source itself, its splits, and what a read gives."""

from geartrain.declarations.source import Batch, LiveSplit, Reject, Source, Split
from geartrain.errors import SourceError

__all__ = ["Batch", "LiveSplit", "Reject", "Source", "SourceError", "Split"]

"""What the author of a source needs: the source itself, its splits, and what a read gives."""

from geartrain.declarations.options import FilePath, SecretText
from geartrain.declarations.source import Batch, LiveSplit, Reject, SharedSplit, Source, Split
from geartrain.errors import SourceError

__all__ = [
    "Batch",
    "FilePath",
    "LiveSplit",
    "Reject",
    "SecretText",
    "SharedSplit",
    "Source",
    "SourceError",
    "Split",
]

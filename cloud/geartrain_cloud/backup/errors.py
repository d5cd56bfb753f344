"""What is wrong with a backup, or with the place where one is to go."""

from __future__ import annotations

from geartrain.errors import MistakeError


class BackupError(MistakeError):
    """A backup cannot be made, read or brought back; says what to do."""

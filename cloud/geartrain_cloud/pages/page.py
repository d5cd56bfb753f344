"""What an example brings along to have a page: files to serve, and answers to give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Rows = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]
"""`rows(table, where)`: rows of a table whose fields equal `where`, in canonical order, as JSON values."""


class Page(Protocol):
    """A page over tables."""

    @property
    def static(self) -> Path:
        """A folder with `index.html`; only the files directly in it are served."""
        ...

    def answer(self, rows: Rows, path: Sequence[str], query: Mapping[str, str]) -> tuple[int, Any]:
        """Status and JSON value for `GET /api/<path>`; an error is `{"error": sentence}`."""
        ...

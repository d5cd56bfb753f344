"""Python's bytecode for a program that has come over the air, so that its starts do not compile it again.

Made in the process that fetches, before the program has its name. Guarantees: it is made of the files that
were checked, is durable with them, and is named with its hashes in a list beside them. So a start notices
damaged bytecode as it notices a damaged file. A file that is no Python has none. No code of the program runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

BYTECODE = "geartrain-bytecode.json"
"""The list, in the folder of a program: hashes by path, as JSON."""
LIST_BYTES_MAX = 2 << 20
_SCRATCH = ".new-bytecode"


def bytecode_of(draft: Path, place: Path) -> Iterator[tuple[str, list[bytes]]]:
    """The bytecode of all modules in a folder, by relative paths, and at last its list; raises `OSError`.

    draft: where the files are now; place: where they will be, which tracebacks name.
    """
    import py_compile  # the launcher reads the list alone
    from importlib.util import cache_from_source

    scratch, hashes = draft.parent / _SCRATCH, dict[str, str]()
    for source in sorted(draft.rglob("*.py")):
        name = source.relative_to(draft)
        try:
            # Nothing changes these files: what is known by its hash is used without a look at its source.
            py_compile.compile(
                str(source),
                cfile=str(scratch),
                dfile=str(place / name),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except (py_compile.PyCompileError, ValueError, RecursionError):
            continue
        content = scratch.read_bytes()
        path = Path(cache_from_source(str(name))).as_posix()
        hashes[path] = hashlib.sha256(content).hexdigest()
        yield path, [content]
    scratch.unlink(missing_ok=True)
    yield BYTECODE, [json.dumps(hashes).encode()]

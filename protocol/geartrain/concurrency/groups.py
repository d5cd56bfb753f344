"""Exception groups: the errors in them, and the one that is worth saying."""

from __future__ import annotations

from collections.abc import Iterator


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group and in the groups in it, in order; an error that is no group is its only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def first_of(error: BaseException, *preferred: type[BaseException]) -> BaseException:
    """The first error in a group that is of a `preferred` type, tried in their order, else the first of
    all.
    """
    found = list(leaves(error))
    for kind in preferred:
        for one in found:
            if isinstance(one, kind):
                return one
    return found[0]

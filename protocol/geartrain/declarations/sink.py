"""Sinks as declared in a flow: where the records of a stream come to rest.

Last on a record's path. The cloud writes them (`geartrain_cloud.sinks`); `gear run` keeps the records of
every sink in a table of its name. What else a flow may end in is in `geartrain.sinks`, so that only
flows that end there load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from geartrain.declarations.limits import check_columns, check_name
from geartrain.declarations.options import check_options, converted
from geartrain.errors import ConfigError, FlowError
from geartrain.schema import Schema


@dataclass(frozen=True)
class Sink:
    """Base of all sinks: a place for the records of one stream.

    Args:
        name: what the place is called: letters, digits and _, beginning with a letter.
        key: fields that name a row. A row is then replaced only by a later record (in canonical order) of the
            same key. Without them, every record is a row of its own.

    Raises:
        FlowError: for a name that is not such.
    """

    required: ClassVar[tuple[str, ...]] = ()
    """The options without which nothing can be written, and that may be set when the flow is submitted."""

    name: str
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_options(self)
        if not self.name.isidentifier() or self.name.startswith("_") or not self.name.isascii():
            raise FlowError(
                f"table name {self.name!r}: use letters, digits and _, not starting with a digit or _"
            )

    def with_options(self, values: Mapping[str, Any], where: str) -> Self:
        """A copy with other options.

        Args:
            values: option to value; name and key are none.
            where: how the sentence of an error begins.

        Returns:
            The copy.

        Raises:
            ConfigError: for an option that does not exist, or a value of another type.
        """
        known = [option.name for option in fields(self) if option.name not in ("name", "key")]
        return replace(self, **converted(type(self), values, known, where))

    def check(self, step: str, schema: Schema) -> None:
        """Refuse what the place will not take, as far as that is known without asking it.

        Args:
            step: the id of the sink's step.
            schema: that of the records.

        Raises:
            ConfigError: one sentence that names the field or the option, and what to change.
        """
        self._check(step, schema)

    def _check(self, step: str, schema: Schema) -> None:
        """What a kind of sinks refuses, as `check`."""

    def check_complete(self, step: str) -> None:
        """Refuse a sink that lacks an option, as `required` has them.

        Args:
            step: the id of the sink's step.

        Raises:
            ConfigError: the option is empty.
        """
        for option in self.required:
            if not str(getattr(self, option)).strip():
                raise ConfigError(f"sink {step!r} has no {option}: {set_by(step, option)}")


def set_by(step: str, option: str) -> str:
    """How a user sets an option of a sink, as the end of a sentence.

    Args:
        step: the id of the sink's step.
        option: its name.

    Returns:
        The places where it may stand.
    """
    return f"set {option} in the flow, with --set {step}.{option}=… or under [steps.{step}]"


class Table(Sink):
    """A table of the flow's own SQLite file in the data centre, whose columns are the record's fields:
    exactly once.

    Args:
        name: what the table is called: letters, digits and _, beginning with a letter.
        key: fields that name a row, as for every sink.

    Raises:
        FlowError: for a name that is not such.

    >>> from geartrain import Table
    >>> Table("latest", key=("sensor",)).key
    ('sensor',)
    """

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse what no table can be: one of Geartrain's own, or with fields that it cannot hold."""
        check_name(f"sink {step!r}", self.name)
        check_columns(self.name, self.key, schema)


class DeviceSink(Sink):
    """Base of the sinks on a device. In `gear run` it is a table."""

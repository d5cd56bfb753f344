"""Lines or frames from a serial port, as records.

For sensors and meters on RS-232, RS-485 or USB that speak by themselves. A source without positions: what
was said while nobody listened is gone. Guarantees: a port that is unplugged is opened again for ever, with
growing pauses. Bytes that are no record leave as a dead letter with the reason. So does the first
line after a port was opened, unless its device is trusted to begin with a whole one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import struct
import termios
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from geartrain.declarations.options import Count
from geartrain.errors import SourceError
from geartrain.schema.derive import field_names, is_record_type
from geartrain.source import Source, Split
from geartrain_devices.json_fields import JsonFields, now_us
from geartrain_devices.json_values import VALUE_OPTIONS
from geartrain_devices.line_fields import LineFields, LineOptions
from geartrain_devices.live import Framed
from geartrain_devices.serial_frames import CHECKS, Frames, Framing, Lines
from geartrain_devices.sharing import ExclusiveSplit
from geartrain_devices.text_bytes import NotTextError, coding_of
from geartrain_devices.text_files import reason_of

if TYPE_CHECKING:
    from serial import Serial

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_PAUSE_S, _PAUSE_S_MAX = 0.25, 5.0
_LOOK_S = 2.0
_READ_BYTES = 4_096
_FRAME_BYTES_MAX = 1_024
_ESCAPES = {"\\r": "\r", "\\n": "\n", "\\t": "\t", "\\0": "\0"}


class SerialLines(LineOptions, Source[T]):
    """Records of type `T` from what a device says on a serial port.

    Args:
        port: the port, such as `/dev/ttyUSB0`, or `/dev/serial/by-id/...`, which stays the same when plugged
            in again.
        baud: bits a second.
        data_bits: of a byte.
        parity: `none`, `even` or `odd`.
        stop_bits: after each byte.
        flow_control: `none`, `software` (XON, XOFF) or `hardware` (RTS, CTS).
        ending: what a line ends with; `\\r`, `\\n`, `\\t` and `\\0` may be written so.
        whole_start: whether the device begins with a whole line when the port is opened.
        line_bytes_max: bytes of a line; a longer one is a dead letter with so many of its bytes.
        pattern: a regular expression of a whole line; its named groups are fields. Without one a line is the
            field `line`.
        json: each line is a JSON document.
        time: the group, or the path, of the event time; empty where the time of reading is meant.
        fields: groups or paths by field, for those that are not found by their own name.
        encoding: how the text is written, such as `cp1252`; empty for UTF-8.
        frame: frames in the place of lines: the values of one, in the order of the fields, as `struct` takes
            them, such as `<Hhf`.
        begin: the bytes that each frame begins with, in hexadecimal.
        check: what each frame ends with, over all of its bytes: `sum8`, `xor8`, `crc16` (Modbus), or `none`.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    exclusive: ClassVar[tuple[str, ...]] = ("port",)
    each_its_own: ClassVar[tuple[str, ...]] = (
        *("pattern", "json", "time", "fields", "encoding", "out_of_orderness_ms"),
        *VALUE_OPTIONS,
    )
    since_1970 = True

    port: str = ""
    baud: Annotated[int, msgspec.Meta(ge=50, le=4_000_000)] = 9_600
    data_bits: Literal[5, 6, 7, 8] = 8
    parity: Literal["none", "even", "odd"] = "none"
    stop_bits: Literal[1, 2] = 1
    flow_control: Literal["none", "software", "hardware"] = "none"
    ending: str = "\n"
    whole_start: bool = False
    line_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 4_096
    frame: str = ""
    begin: str = ""
    check: Literal["none", "sum8", "xor8", "crc16"] = "none"
    out_of_orderness_ms: Count = 0

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        where = f"source {step}"
        if self.frame:
            self._frames(where, out)
        elif self.pattern or self.json:  # a pattern may be set on the device
            self._lines(where, out)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        where = f"source {step}"
        if not self.port:
            raise SourceError(f'{where} has no port: set port = "/dev/ttyUSB0" under [sources.{step}]')
        try:
            import serial  # noqa: F401 - an extra: only who uses it has it
        except ImportError:
            raise SourceError(
                f'{where}: serial ports need pyserial: pip install "geartrain-devices[serial]"'
            ) from None
        framing, read = self._frames(where, out) if self.frame else self._lines(where, out)
        port = _Port(where, self.port, self._opened, framing, read)
        bound_us = self.out_of_orderness_ms * 1_000
        split = ExclusiveSplit(
            where, device, step, self, Framed, port.listen, port.record, out_of_orderness_us=bound_us
        )
        return [split]

    def _lines(self, where: str, out: type[T]) -> tuple[Callable[[], Framing], Reading]:
        ending = self.ending
        for written, meant in _ESCAPES.items():
            ending = ending.replace(written, meant)
        if not ending or self.begin or self.check != "none":
            raise SourceError(
                f"{where}: " + ("begin and check are of frames: set frame" if ending else "ending is empty")
            )
        fields = LineFields(where, out, self)
        try:
            coding = coding_of(b"", self.encoding)
        except NotTextError as error:
            raise SourceError(f"{where}: {error}") from None
        if coding.unit_bytes > 1:
            raise SourceError(
                f"{where}: encoding = {self.encoding!r} cannot be read of a port: name one of bytes"
            )
        return lambda: Lines(ending.encode(), self.line_bytes_max, is_whole=self.whole_start), (
            lambda raw: fields.read(raw.strip(b"\r\n\0"), coding)
        )

    def _frames(self, where: str, out: type[T]) -> tuple[Callable[[], Framing], Reading]:
        try:
            begin = bytes.fromhex(self.begin)
        except ValueError:
            raise SourceError(f"{where}: begin = {self.begin!r} is not hexadecimal, such as aa55") from None
        check = CHECKS.get(self.check)
        if not begin and check is None:
            raise SourceError(f"{where}: frames need begin or check: nothing else says where one begins")
        try:
            layout = struct.Struct(self.frame)
        except struct.error:
            raise SourceError(
                f"{where}: frame = {self.frame!r} is no layout as Python's struct takes it, such as <Hhf"
            ) from None
        if self.frame[0] not in "<>!" or not 0 < layout.size <= _FRAME_BYTES_MAX:
            raise SourceError(
                f"{where}: frame = {self.frame!r} must begin with < or > (which byte comes first) and have "
                f"1 to {_FRAME_BYTES_MAX} bytes"
            )
        names = field_names(out) if is_record_type(out) else ("value",)
        count = len(layout.unpack(bytes(layout.size)))
        if count != len(names):
            raise SourceError(
                f"{where}: frame = {self.frame!r} has {count} values, and {out.__name__} {len(names)}"
            )
        fields = JsonFields(where, out, "", self, {})

        def read(raw: bytes) -> tuple[int, Any]:
            values = dict(zip(names, layout.unpack(raw), strict=True))
            return now_us(), fields.pick(values)[1]

        return lambda: Frames(begin, layout.size, check), read

    def _opened(self) -> Serial:
        """The port, which nobody else may open meanwhile."""
        import serial

        parities = {"none": serial.PARITY_NONE, "even": serial.PARITY_EVEN, "odd": serial.PARITY_ODD}
        return serial.Serial(
            self.port,
            baudrate=self.baud,
            bytesize=self.data_bits,
            parity=parities[self.parity],
            stopbits=self.stop_bits,
            xonxoff=self.flow_control == "software",
            rtscts=self.flow_control == "hardware",
            timeout=0,
            exclusive=True,
        )


class _GoneError(OSError):
    """The port is there no more; the sentence says why."""


_REASONS = {
    errno.ENOENT: "there is no such port: plug the device in",
    errno.EACCES: "this user may not open it: add the user to the group that owns it",
    errno.EAGAIN: "another program has it open: end that one",
    errno.EBUSY: "another program has it open: end that one",
}


def _reason_of(error: OSError | termios.error) -> str:
    """Why a port could not be opened, or is gone: half a sentence of ours."""
    if isinstance(error, _GoneError):
        return str(error)
    code = error.errno if isinstance(error, OSError) else error.args[0]
    return _REASONS.get(code or 0) or reason_of(OSError(code, "") if code else OSError())


Reading = Callable[[bytes], tuple[int, Any]]
Hear = Callable[[Framed], None]


class _Port:
    """One port, opened again and again."""

    def __init__(
        self,
        where: str,
        name: str,
        opened: Callable[[], Serial],
        framing: Callable[[], Framing],
        read: Reading,
    ) -> None:
        self._where, self._name, self._opened = where, name, opened
        self._framing, self._read = framing, read

    async def listen(self, hear: Hear) -> None:
        """Hand over every line or frame until cancelled."""
        pause_s, said = _PAUSE_S, ""
        while True:
            try:
                port = self._opened()
            except (OSError, termios.error) as error:  # pyserial's own error is an OSError
                why = _reason_of(error)
                if why != said:
                    _LOG.warning("%s: port %s cannot be opened: %s", self._where, self._name, why)
                said = why
            except ValueError:
                raise SourceError(
                    f"{self._where}: port {self._name} does not take its settings: check baud, data_bits, "
                    "parity, stop_bits and flow_control"
                ) from None
            else:
                pause_s, said = _PAUSE_S, ""
                framing = self._framing()
                try:
                    await self._listen(port.fileno(), framing, hear)
                except OSError as error:
                    _LOG.warning("%s: port %s is gone: %s", self._where, self._name, _reason_of(error))
                finally:
                    port.close()
                for one in framing.end():
                    hear(one)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _listen(self, file: int, framing: Framing, hear: Hear) -> None:
        """Read until the port is gone, which raises `OSError`."""
        while True:
            if not await _readable(file):
                found, here = os.stat(self._name), os.fstat(file)  # noqa: PTH116 - of a device
                if (found.st_rdev, found.st_ino) != (here.st_rdev, here.st_ino):
                    raise _GoneError("another device has its name now")
                continue
            try:
                data = os.read(file, _READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                raise _GoneError("it was unplugged")
            for one in framing.feed(data):
                hear(one)

    def record(self, one: Framed) -> tuple[int, Any]:
        """The event time and the record of a line or frame; raises `ValueError`."""
        try:
            if one.problem:
                raise ValueError(one.problem)
            return self._read(one.raw)
        except ValueError as error:
            raise ValueError(f"port {self._name}: {error}") from None


async def _readable(file: int) -> bool:
    """Whether something came within a while."""
    loop = asyncio.get_running_loop()
    is_there = asyncio.Event()
    loop.add_reader(file, is_there.set)
    try:
        async with asyncio.timeout(_LOOK_S):
            await is_there.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(file)
    return True

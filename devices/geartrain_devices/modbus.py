"""Modbus devices that are asked again and again, over TCP or a serial line, as records.

For meters, drives and controllers, which answer and never speak by themselves. A source without positions.
Guarantees: requests go out one at a time, at fixed times of the clock; a turn that is missed is left out. An
exception, a timeout and an answer that is no record leave as a dead letter that names unit and registers. A
unit that does not answer is asked ever less often, and does not hold up the others. A line is opened again
for ever, with growing pauses.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from geartrain.adapters.system import SystemClock
from geartrain.concurrency.cancelling import heed_cancellation
from geartrain.declarations.options import Count, Port, Positive
from geartrain.errors import SourceError
from geartrain.ports import Clock
from geartrain.schema import RowCodec
from geartrain.schema.derive import field_names, is_record_type
from geartrain.source import Source, Split
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.modbus_registers import Layout, Register, Span, parse_register
from geartrain_devices.no_record import NOT_A_RECORD, NoRecordError, code_of
from geartrain_devices.sharing import ExclusiveSplit

if TYPE_CHECKING:
    from pymodbus.client import AsyncModbusSerialClient, AsyncModbusTcpClient

    Client = AsyncModbusSerialClient | AsyncModbusTcpClient

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

UNREACHABLE, NO_ANSWER = "unreachable", "no_answer"
EXCEPTION, WRONG_ANSWER = "modbus_exception", "wrong_answer"
"""Codes of rejects."""
_PAUSE_S, _PAUSE_S_MAX = 1.0, 60.0
_FUNCTIONS: Mapping[str, int] = {"coil": 1, "discrete": 2, "holding": 3, "input": 4}
_MEANINGS: Mapping[int, str] = {
    1: "illegal function",
    2: "illegal data address",
    3: "illegal data value",
    4: "server device failure",
    5: "acknowledge",
    6: "server device busy",
    8: "memory parity error",
    10: "gateway path unavailable",
    11: "gateway target device failed to respond",
}

Units = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=255)]], msgspec.Meta(min_length=1, max_length=256)
]
"""Addresses of devices on one line."""


class _Modbus(Source[T]):
    """What both kinds of line have in common.

    Args:
        units: the addresses of the devices there; each gives a record a turn. A field `unit` says which.
        registers: what stands where, by field, such as `holding 100 float32`.
        every_s: how long from one turn to the next, seconds.
        timeout_s: how long to wait for an answer, seconds.
        nan: whether NaN and infinity are read from registers of floats; else they are dead letters.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    each_its_own: ClassVar[tuple[str, ...]] = ("out_of_orderness_ms",)
    since_1970 = True
    is_serial: ClassVar[bool] = False

    units: Units = field(default_factory=lambda: [1])
    registers: dict[str, str] = field(default_factory=dict)
    every_s: Positive = 1.0
    timeout_s: Positive = 1.0
    nan: bool = False
    out_of_orderness_ms: Count = 0

    def clock(self) -> Clock:
        """The clock that `every_s` is measured by; a test may have its own."""
        return SystemClock()

    @abstractmethod
    def line(self) -> str:
        """What is asked, as sentences call it."""

    @abstractmethod
    def client(self) -> Client:
        """A new client of pymodbus, not connected; it neither asks nor connects again by itself."""

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        self._parse_registers(f"source {step}", out)

    def _parse_registers(self, where: str, out: type[T]) -> dict[str, Register]:
        """What stands where; raises `SourceError` for registers that cannot be."""
        if self.is_serial and 0 in self.units:
            raise SourceError(
                f"{where}: units: 0 is the broadcast of a serial line, which no device answers: name the "
                "devices, from 1 to 247"
            )
        found = {n: parse_register(f"{where}: registers.{n}", text) for n, text in self.registers.items()}
        names = field_names(out) if is_record_type(out) else ("value",)
        if unknown := sorted(set(found) - set(names)):
            raise SourceError(f"{where}: there is no field {unknown[0]!r}; its fields: {', '.join(names)}")
        for name, one in zip(names, RowCodec(out).schema.fields, strict=True):
            if name in found and found[name].nones and not one.optional:
                raise SourceError(
                    f"{where}: registers.{name} = {self.registers[name]!r} may be None, which the field does "
                    f"not take: declare it as {name}: float | None, or int | None"
                )
        return found

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        where = f"source {step}"
        try:
            import pymodbus.client  # noqa: F401 - an extra: only who uses it has it
        except ImportError:
            raise SourceError(
                f'{where}: Modbus needs pymodbus: pip install "geartrain-devices[modbus]"'
            ) from None
        if not self.registers:
            raise SourceError(f'{where} reads nothing: set registers = {{FIELD = "holding 100 float32"}}')
        found = self._parse_registers(where, out)
        fields = JsonFields(where, out, "", ValueOptions(nan=self.nan), {})
        poll = _Poll(where, self.line(), self.client, Layout(found), fields, self.clock())
        silence_s = self.timeout_s if self.is_serial else None
        listen = partial(poll.listen, self.units, self.every_s, silence_s)
        bound_us = self.out_of_orderness_ms * 1_000
        return [
            ExclusiveSplit(
                where, device, step, self, _Turn, listen, poll.record, out_of_orderness_us=bound_us
            )
        ]


class ModbusTcp(_Modbus[T]):
    """Records of type `T` from the registers of devices that speak Modbus over TCP.

    Args:
        host: of the device, or of the gateway of a line.
        port: of the device or gateway.
        units: the addresses of the devices there; each gives a record a turn. A field `unit` says which. 0 or
            255 is usual for a device that is no gateway.
        registers: what stands where, by field, such as `holding 100 float32`.
        every_s: how long from one turn to the next, seconds.
        timeout_s: how long to wait for an answer, seconds.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    host: str = ""
    port: Port = 502

    def line(self) -> str:
        """What is asked, as sentences call it."""
        return f"{self.host}, port {self.port}"

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if not self.host:
            raise SourceError(f'source {step} has no host: set host = "192.0.2.7" under [sources.{step}]')
        return super().open(device, step, out)

    def client(self) -> Client:
        """A new client of pymodbus."""
        from pymodbus.client import AsyncModbusTcpClient

        return AsyncModbusTcpClient(
            self.host, port=self.port, timeout=self.timeout_s, retries=0, reconnect_delay=0
        )


class ModbusRtu(_Modbus[T]):
    """Records of type `T` from the registers of devices on a serial line (RS-485).

    Args:
        port: the serial port, such as `/dev/ttyUSB0`.
        baud: bits a second.
        data_bits: of a byte.
        parity: `none`, `even` or `odd`.
        stop_bits: after each byte.
        units: the addresses of the devices on the line; each gives a record a turn. A field `unit` says
            which.
        registers: what stands where, by field, such as `holding 100 float32`.
        every_s: how long from one turn to the next, seconds.
        timeout_s: how long to wait for an answer, seconds.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    exclusive: ClassVar[tuple[str, ...]] = ("port",)
    is_serial: ClassVar[bool] = True

    port: str = ""
    baud: Annotated[int, msgspec.Meta(ge=50, le=4_000_000)] = 9_600
    data_bits: Literal[7, 8] = 8
    parity: Literal["none", "even", "odd"] = "even"
    stop_bits: Literal[1, 2] = 1

    def line(self) -> str:
        """What is asked, as sentences call it."""
        return f"port {self.port}"

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if not self.port:
            raise SourceError(f'source {step} has no port: set port = "/dev/ttyUSB0" under [sources.{step}]')
        return super().open(device, step, out)

    def client(self) -> Client:
        """A new client of pymodbus."""
        from pymodbus.client import AsyncModbusSerialClient

        return AsyncModbusSerialClient(
            self.port,
            baudrate=self.baud,
            bytesize=self.data_bits,
            parity={"none": "N", "even": "E", "odd": "O"}[self.parity],
            stopbits=self.stop_bits,
            timeout=self.timeout_s,
            retries=0,
            reconnect_delay=0,
        )


class _Turn(msgspec.Struct, frozen=True):
    """What became of one unit's turn: the bytes of its registers, or why there are none."""

    raw: bytes
    problem: str = ""
    unit: int = 0
    time_us: int = 0
    code: str = NOT_A_RECORD


class _BadAnswerError(Exception):
    """A unit has answered with something else than its registers; raw: what it said; code: of the reject."""

    def __init__(self, problem: str, code: str, raw: bytes = b"") -> None:
        super().__init__(problem)
        self.raw, self.code = raw, code


class _SilentError(_BadAnswerError):
    """A unit has not answered: what comes later must not be taken for the next answer."""


class _Poll:
    """The turns of one line."""

    def __init__(
        self,
        where: str,
        line: str,
        client: Callable[[], Client],
        layout: Layout,
        fields: JsonFields,
        clock: Clock,
    ) -> None:
        self._where, self._line, self._new, self._layout = where, line, client, layout
        self._fields, self._clock = fields, clock
        self._client: Client | None = None
        self._failed = dict[int, int]()
        self._due_s = dict[int, float]()

    async def listen(
        self,
        units: Sequence[int],
        every_s: float,
        silence_s: float | None,
        hear: Callable[[_Turn], None],
    ) -> None:
        """Hand over what each unit says in each turn until cancelled.

        silence_s: how long nothing is asked after a unit has not answered; None to connect anew.
        """
        began_s = self._clock.monotonic_s()
        try:
            while True:
                for unit in units:
                    if self._due_s.get(unit, -math.inf) <= self._clock.monotonic_s():
                        await self._turn(unit, every_s, silence_s, hear)
                past_s = self._clock.monotonic_s() - began_s
                await self._clock.sleep(every_s - past_s % every_s)
        finally:
            self._close()

    async def _turn(
        self, unit: int, every_s: float, silence_s: float | None, hear: Callable[[_Turn], None]
    ) -> None:
        client = await self._connected(hear)
        try:
            raw = b"".join([await self._ask(client, unit, span) for span in self._layout.spans])
        except _BadAnswerError as error:
            hear(_Turn(error.raw, f"unit {unit}: {error}", code=error.code))
            failed = self._failed[unit] = self._failed.get(unit, 0) + 1
            wait_s = min(every_s * 2 ** min(failed, 16), max(_PAUSE_S_MAX, every_s))
            self._due_s[unit] = self._clock.monotonic_s() + wait_s - every_s / 2
            if isinstance(error, _SilentError):
                await self._silence(silence_s)
            return
        self._failed.pop(unit, None)
        self._due_s.pop(unit, None)
        hear(_Turn(raw, "", unit, self._clock.now_us()))

    async def _connected(self, hear: Callable[[_Turn], None]) -> Client:
        """The open line; returns once there is one."""
        pause_s = _PAUSE_S
        while self._client is None or not self._client.connected:
            self._close()
            self._client = self._new()  # before it is open, so that whoever is cancelled closes it
            if await self._connect(self._client):
                break
            self._close()
            if pause_s == _PAUSE_S:  # once for each time that it is away
                hear(
                    _Turn(
                        b"",
                        "it cannot be reached: see its address, its power and the way there",
                        code=UNREACHABLE,
                    )
                )
            _LOG.warning("%s: %s cannot be reached; again in %.0f s", self._where, self._line, pause_s)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return self._client

    @staticmethod
    async def _connect(client: Client) -> bool:
        from pymodbus.exceptions import ModbusException

        try:
            return bool(await heed_cancellation(client.connect()))
        except (OSError, ModbusException):
            return False

    async def _ask(self, client: Client, unit: int, span: Span) -> bytes:
        """The bytes of a span; raises `_BadAnswerError`."""
        from pymodbus.exceptions import ModbusException

        ask = {
            "coil": client.read_coils,
            "discrete": client.read_discrete_inputs,
            "holding": client.read_holding_registers,
            "input": client.read_input_registers,
        }[span.table]
        asked = f"{span.table} {span.address} to {span.address + span.count - 1}"
        try:
            answer: Any = await heed_cancellation(ask(span.address, count=span.count, device_id=unit))
        except (ModbusException, OSError):
            raise _SilentError(f"{asked}: no answer", NO_ANSWER) from None
        function = _FUNCTIONS[span.table]
        if answer.function_code == function | 0x80:
            code = answer.exception_code
            meaning = _MEANINGS.get(code, "unknown to the standard")
            raise _BadAnswerError(
                f"{asked}: exception {code}, {meaning}", EXCEPTION, bytes([function | 0x80, code & 0xFF])
            )
        found = answer.bits if span.table in ("coil", "discrete") else answer.registers
        if answer.function_code != function or len(found) < span.count:
            raise _SilentError(f"{asked}: the answer is one to another question", WRONG_ANSWER)
        width = span.size // span.count
        return b"".join(int(one).to_bytes(width, "big") for one in found[: span.count])

    async def _silence(self, silence_s: float | None) -> None:
        """Let what comes too late be gone: over TCP with the connection, on a line with the time."""
        if silence_s is None:
            self._close()
        else:
            await self._clock.sleep(silence_s)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def record(self, turn: _Turn) -> tuple[int, Any]:
        """The event time and the record of a turn; raises `ValueError`."""
        if turn.problem:
            raise NoRecordError(f"{self._line}: {turn.problem}", turn.code)
        try:
            return turn.time_us, self._fields.pick({"unit": turn.unit, **self._layout.values(turn.raw)})[1]
        except ValueError as error:
            raise NoRecordError(f"{self._line}, unit {turn.unit}: {error}", code_of(error)) from None

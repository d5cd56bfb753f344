"""Control and a fleet of devices on their control lanes: the real classes of both ends over simulated ports.

It covers the path from the control store to the processes of apps. Guarantees: the run is a function of its
seed. Kills, power losses, cuts, a rough broker and old publishes that come again strike at random. At every
step a device applies only what its disk holds, each serial once and never a lower one, and nothing that was
superseded before it connected. Control answers only what it has stored. In the end a submit reaches every
device within `REACH_S`, and each runs what is wanted of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from random import Random

from geartrain.control.codec import decode_desired, decode_state, encode_state
from geartrain.control.states import (
    App,
    AppReport,
    AppState,
    RunningProgram,
    SealedSecret,
    SecretReport,
    State,
)
from geartrain.errors import GeartrainError, WireError
from geartrain_cloud.control.clones import Clones
from geartrain_cloud.control.lane import ControlLane
from geartrain_edge.parent.apps import Apps, AppsPolicy
from geartrain_edge.parent.bundled import BundledApps
from geartrain_edge.parent.lane import DeviceLane
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.clock import SimClock
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.net import SimConnection, SimNet
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import Node, Process, StoppedError, World
from geartrain_simulation.stores.children import SimStarter, lacks_of
from geartrain_simulation.stores.lanes import ControlBook, SimDesiredStore, SimKept, kept_on

REACH_S = 30.0
"""Virtual seconds within which a submit reaches every device that is online."""
DAY_S = 86_400.0
_TROUBLE_S, _CALM_S, _LAG_S = 60.0, 200.0, 10.0
_LIMIT_S = 1_000.0
NAMED_S = 90.0
"""Virtual seconds within which two devices of one name are named: each reports once a minute."""
PROGRAMS, NO_PROGRAM = ("a" * 64, "b" * 64), "c" * 64
"""Of devices, and one that no device can have."""
NOT_HERE = "there is no such program"
_LOSS = 0.05
"""Of the publishes of the last submit so many are lost, on each leg of their way."""


class LaneFleet:
    """One run. `log` says what happened, as counts."""

    def __init__(self, seed: int, devices: int = 0, *, calm: bool = False, away_s: float = 0.0) -> None:
        """`devices`: how many, 0 for as the seed draws; calm: nothing goes wrong; away_s: control is gone for
        so long before the end.
        """
        self.seed, self.world, self._calm, self._away_s = seed, World(seed), calm, away_s
        random = Random(f"{seed}/lanes")
        count = devices or random.choice((1, 2, 3, 5))
        self.names = [f"device-{n}" for n in range(1, count + 1)]
        self.climate = Faults() if calm else Faults.climate(random)
        self.broker = SimBroker(self.world, self.climate)
        self.book = ControlBook(self.names)
        self.book.on_older = lambda detail: self.fail("reports in order", detail)
        self.platters = {name: Platter(self.world.random(f"{name}/platter")) for name in self.names}
        self.live: dict[str, dict[str, bool]] = {name: {} for name in self.names}
        self.applied: dict[str, list[tuple[str, int]]] = {name: [] for name in self.names}
        self.programs: dict[str, str] = dict.fromkeys(self.names, "")
        """What each device runs, as its disk says."""
        self.connected_s: dict[str, float] = {}
        self.kills: list[tuple[str, int]] = []
        self.frozen: dict[str, int] = {}
        self._old: list[tuple[str, bytes]] = []
        self._submits = 0
        self.broker.observers.append(self._observe)

    def run(self) -> int:
        """Run to the end; raises the first breach of a rule, or any other failure; returns the crashes."""
        try:
            self.world.run(self._story(), _LIMIT_S + self._away_s)
            return sum(node.crashes for node in self.world.nodes.values())
        finally:
            self.world.close()

    async def _story(self) -> None:
        starts = self.world.random("starts")
        for name in self.names:
            node = self.world.node(name, self._device)
            node.on_power_loss(self.platters[name].power_loss)
        self.control = self.world.node("control", self._control)
        for node in self.world.nodes.values():
            node.faults = self.climate
            self.world.later(starts.uniform(0, 2), node.start)
        for name, number in self.kills:
            self.world.nodes[name].kill_at_point(number, power=self.world.nodes[name].keeps_files)
        if not self._calm:
            await self._trouble(list(self.world.nodes.values()))
        await asyncio.sleep(10.0 if self._calm else _CALM_S)
        await self.middle()
        if self._away_s:
            await self._without_control()
        if not self._calm:
            self.broker.faults = replace(self.climate, drop=_LOSS)
        self.submit(self.names)
        await asyncio.sleep(REACH_S)
        for name in self.names:
            self._check_reached(name)

    async def middle(self) -> None:
        """What a kind of run does between its troubles and the last submit."""

    async def _trouble(self, nodes: list[Node]) -> None:
        random = self.world.random("trouble")
        self.broker.faults = Faults(
            drop=random.choice((0.0, 0.1, 0.3)),
            duplicate=random.choice((0.0, 0.1, 0.3)),
            reorder=random.choice((0.0, 0.2)),
            delay=random.choice((0.0, 0.05)),
            delay_s_max=30.0,
            latency_s_max=self.climate.latency_s_max,
            pause_s_max=self.climate.pause_s_max,
        )
        for _ in range(random.randint(2, 14)):
            await asyncio.sleep(random.uniform(0, 2 * _TROUBLE_S / 14))
            node = random.choice(nodes)
            self._strike(random, node)
            if random.random() < 0.6:
                self.submit([name for name in self.names if random.random() < 0.8])
        for node in nodes:
            node.spare()
        self.broker.faults = self.climate

    def _strike(self, random: Random, node: Node) -> None:
        kind = random.choice(
            ("kill", "power", "point", "cut", "broker", "silence", "forget", "again", "child")
        )
        if kind in ("kill", "power"):
            node.crash(power=kind == "power" and node.keeps_files)
        elif kind == "point":
            node.kill_at_point(
                node.points + random.randint(1, 60), power=node.keeps_files and random.random() < 0.5
            )
        elif kind == "broker":
            self.broker.crash(random.uniform(0, 5))
        elif kind == "forget":
            self.broker.forget(node.name)
        elif kind == "again":
            for topic, payload in random.sample(self._old, min(len(self._old), 10)):
                self.broker.inject(topic, payload)
        elif kind == "child":
            for instance in self.live.get(node.name, {}):
                self.live[node.name][instance] = False
        else:
            what = self.broker.cut if kind == "cut" else self.broker.silence
            what(node.name, random.uniform(0, 10))

    async def _without_control(self) -> None:
        """Control is gone: whatever else happens, what runs stays what it is."""
        before = {name: sorted(self.live[name]) for name in self.names}
        self.control.start_again = False
        self.control.crash()
        random = self.world.random("away")
        for _ in range(4):
            await asyncio.sleep(self._away_s / 4)
            self.world.nodes[random.choice(self.names)].crash()
            self.broker.crash(random.uniform(0, 5))
            await asyncio.sleep(60.0)
            now = {name: sorted(self.live[name]) for name in self.names}
            if now != before:
                raise ViolationError("control gone", f"{before} ran before, and now {now}")
        self.control.start_again = True
        self.control.start()
        await asyncio.sleep(_CALM_S)

    # What is wanted

    def submit(self, names: list[str]) -> None:
        """Want another set of apps on these devices."""
        self._submits += 1
        random = self.world.random(f"submit/{self._submits}")
        for name in names:
            serial = self.book.serial(name) + 1
            apps = [
                App(f"app{n}.{serial if random.random() < 0.3 else 1}", "m:f")
                for n in range(random.randint(0, 2))
            ]
            program = random.choice(("", PROGRAMS[0], PROGRAMS[1], NO_PROGRAM))
            secrets = tuple(
                SealedSecret(f"app{n}", "db", serial, b"sealed") for n in range(random.randint(0, 2))
            )
            state = State(serial, tuple(apps), program=program, secrets=secrets)
            self.book.want(name, encode_state(state), self.world.loop.time())

    # The programs

    async def _device(self, process: Process) -> None:
        name, clock, chance = self.name_of(process), SimClock(process), SimRandomness(process)
        apps = self._apps(process)
        store, net = SimKept(process, self.platters[process.node.name]), self.net_of(process)
        programs = _Programs(self, process.node.name, apps)
        runs = RunningProgram("0.0", programs.runs, "3.11 x86_64")
        told, secrets = _Watched(self, process, apps), _Secrets(name, apps)
        lane = DeviceLane(name, net, store, told, clock, chance, runs, None, programs, secrets)
        stopped: StoppedError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(apps.run())
                group.create_task(lane.run())
                group.create_task(programs.run())
        except* GeartrainError as errors:
            stopped = StoppedError(str(errors.exceptions[0]))
        if stopped is not None:
            raise stopped

    def name_of(self, process: Process) -> str:
        """Under which name a device speaks."""
        return process.node.name

    def net_of(self, process: Process) -> SimNet:
        """How a device reaches the broker."""
        return SimNet(process, self.broker)

    def _apps(self, process: Process) -> Apps | BundledApps:
        starter = SimStarter(
            process, self.live[process.node.name], lambda detail: self.fail("one process an app", detail)
        )
        policy = AppsPolicy(look_s=20.0 if self._away_s else 2.0, stop_s=3.0)
        return Apps(starter, SimClock(process), SimRandomness(process), policy)

    async def _control(self, process: Process) -> None:
        store, net = SimDesiredStore(process, self.book), SimNet(process, self.broker)
        clones = _Clones(process.node.world.loop.time, self.found_clones)
        await ControlLane(store, net, SimClock(process), SimRandomness(process), clones=clones).run_alone()

    def found_clones(self, device: str) -> None:
        """Control has found two devices of one name; there are none."""
        self.fail("clones", f"control takes {device} for two devices")

    # The rules

    def check_applied(self, process: Process, state: State) -> None:
        """A device applies a desired state now."""
        name, before = process.node.name, self.applied[process.node.name]
        process.point("apply", str(state.serial))
        highest = max((serial for _, serial in before), default=0)
        mine = [serial for life, serial in before if life == process.name]
        if state.serial < highest or state.serial in mine:
            self.fail("once, in order", f"{name} applies {state.serial} after {[s for _, s in before]}")
        kept = kept_on(self.platters[name])
        if kept is None or not kept.state or decode_state(kept.state).serial < state.serial:
            self.fail("applied => kept", f"{name} applies {state.serial}, which its disk does not hold")
        since_s = self.connected_s.get(process.name, 0.0) - _LAG_S
        if state.serial != highest and state.serial < self.book.serial_at(name, since_s):
            self.fail("of this connection", f"{name} applies {state.serial}, superseded before it connected")
        if state.serial > self.frozen.get(name, state.serial):
            self.fail("refused", f"{name} applies {state.serial} of a restored store, which nobody accepted")
        before.append((process.name, state.serial))

    def _observe(self, node: str, topic: str, payload: bytes) -> None:
        if topic.endswith("/reported"):
            process = self.world.nodes[node].process
            if process is not None:
                self.connected_s.setdefault(process.name, self.world.loop.time())
            return
        try:
            desired = decode_desired(payload)
        except WireError:
            return
        if desired.state:
            self._old = [*self._old[-200:], (topic, payload)]
            if desired.state not in self.book.ever[desired.device]:
                self.fail("sent => stored", f"{desired.device} is sent what no store held")
        if (desired.life, desired.number) > self.book.order(desired.device):
            self.fail("answered => stored", f"{desired.device}, report {desired.life}.{desired.number}")

    def _check_reached(self, name: str) -> None:
        wanted, report = decode_state(self.book.state(name)), self.book.reports.get(name)
        applied = self.applied[name][-1][1] if self.applied[name] else 0
        if applied != wanted.serial:
            raise ViolationError("reached", f"{name} has applied {applied} and not {wanted.serial}")
        if report is None or report.serial != wanted.serial:
            raise ViolationError("reached", f"control has not heard that {name} applied {wanted.serial}")
        runs, due = sorted(self.live[name]), sorted(app.instance for app in wanted.apps)
        if runs != due:
            raise ViolationError("runs what is wanted", f"{name} runs {runs} and not {due}")
        heard = sorted(app.instance for app in report.apps if app.state is AppState.RUNNING)
        if heard != due:
            raise ViolationError("reported", f"control has heard that {name} runs {heard} and not {due}")
        program = wanted.program or self.programs[name]
        is_refused = program == NO_PROGRAM
        due_program = (self.programs[name] if is_refused else program, NOT_HERE if is_refused else "")
        said = (report.program_code, report.program_why)
        if due_program != said or report.program_went_back != is_refused or report.machine != "3.11 x86_64":
            heard_program = f"{report.program_code[:8]} {report.program_why!r} on {report.machine}"
            raise ViolationError("reported", f"control has heard that {name} has program {heard_program}")
        secrets = tuple(SecretReport(one.app, one.name, one.version) for one in wanted.secrets)
        if (report.secrets, report.certificate) != (secrets, name.encode() if secrets else b""):
            raise ViolationError("reported", f"control has heard that {name} has secrets {report.secrets}")
        lacks = {app.instance: app.lacks for app in report.apps}
        if lacks != {instance: lacks_of(instance) for instance in due}:
            raise ViolationError("reported", f"control has heard that {name} lacks {lacks}")

    def fail(self, rule: str, detail: str) -> None:
        """A rule is broken."""
        self.world.fail(ViolationError(rule, detail))


class RestoredStore(LaneFleet):
    """A run in which the control store goes back to a copy while devices have applied what came after it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 2, calm=True)

    async def middle(self) -> None:
        """Copy, submit, restore, submit; nothing is applied until somebody accepts the store."""
        self.submit(self.names)
        await asyncio.sleep(REACH_S)
        copy = self.book.copy()
        for _ in range(3):
            self.submit(self.names)
            await asyncio.sleep(REACH_S)
        self.control.crash()
        self.book.restore(copy)
        self.frozen = {name: self.applied[name][-1][1] for name in self.names}
        await asyncio.sleep(REACH_S)
        for _ in range(6):
            self.submit(self.names)
            await asyncio.sleep(REACH_S)
        self.frozen = {}
        for name in self.names:
            self.book.accept(name, self.applied[name][-1][1])
        await asyncio.sleep(REACH_S)


class RestoredDevice(LaneFleet):
    """A run in which the disk of a device goes back to a copy, or another machine takes the device's name."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 2, calm=True)

    async def middle(self) -> None:
        """Crashes, so that lives count up; then the disk goes back, and with it what it knew of them."""
        name, platter = self.names[0], self.platters[self.names[0]]
        self.submit(self.names)
        await asyncio.sleep(REACH_S)
        copy = platter.save() if self.seed % 2 else {}
        for _ in range(4):
            self.world.nodes[name].crash()
            await asyncio.sleep(REACH_S)
            self.submit(self.names)
        await asyncio.sleep(REACH_S)
        self.world.nodes[name].crash()
        platter.restore(copy)
        self.applied[name].clear()
        for topic, payload in self._old[:-4]:  # as if somebody had published one of them to be retained
            self.broker.retain(topic, payload)
        await asyncio.sleep(REACH_S)


class ClonedDevice(LaneFleet):
    """A run in which a copy of a device's card runs beside it for some minutes, with its key and name."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 2, calm=True)
        self.name, self.copy, self._named = self.names[0], "device-1-copy", False

    async def middle(self) -> None:
        """The copy begins; control names the two, and with one of them gone all is as it was."""
        self.submit(self.names)
        await asyncio.sleep(REACH_S)
        random = self.world.random("clones")
        platter = self.platters[self.copy] = Platter(self.world.random(f"{self.copy}/platter"))
        platter.restore(self.platters[self.name].save())
        self.live[self.copy], self.applied[self.copy] = {}, []
        twin = self.world.node(self.copy, self._device)
        twin.on_power_loss(platter.power_loss)
        twin.start()
        await asyncio.sleep(random.uniform(60, 2 * NAMED_S))
        self.submit(self.names)
        await asyncio.sleep(NAMED_S)
        if not self._named:
            raise ViolationError("clones", f"{self.name} was two for {NAMED_S:g} s, and nobody says so")
        twin.start_again = False
        twin.crash()
        self._named = False
        await asyncio.sleep(_CALM_S)

    def name_of(self, process: Process) -> str:
        """The copy speaks as the device."""
        return self.name if process.node.name == self.copy else process.node.name

    def net_of(self, process: Process) -> SimNet:
        """Over TLS a client id ends in something that nobody else knows, so that no copy takes it over."""
        return _OwnIds(process, self.broker)

    def check_applied(self, process: Process, state: State) -> None:
        """What the two apply is what was wanted; each has serials of its own."""
        name, device = process.node.name, self.name_of(process)
        if encode_state(state) not in self.book.ever[device]:
            self.fail("applied => stored", f"{name} applies what no store held")
        self.applied[name].append((process.name, state.serial))

    def found_clones(self, device: str) -> None:
        """Control has found two devices of one name; it must be this one."""
        if device != self.name:
            super().found_clones(device)
        self._named = True


class _OwnIds(SimNet):
    def connect(self, client_id: str) -> AbstractAsyncContextManager[SimConnection]:
        """Under an id that tells the node."""
        return super().connect(f"{client_id}-{self._process.node.name}")


class _Clones(Clones):
    """What control has found, with the rules looking on."""

    def __init__(self, now_s: Callable[[], float], found: Callable[[str], None]) -> None:
        super().__init__(now_s)
        self._found = found

    def note(self, device: str) -> bool:
        """As its base does."""
        self._found(device)
        return super().note(device)


class _Programs:
    """`Programs` of a device, which has each one at once and begins anew with it."""

    def __init__(self, fleet: LaneFleet, name: str, apps: Apps | BundledApps) -> None:
        self._fleet, self._name, self._apps = fleet, name, apps
        self.runs, self._other = fleet.programs.get(name, ""), asyncio.Event()
        self.why, self.went_back = "", False

    def want(self, program: str) -> None:
        """Change to it, or say why not."""
        self.went_back = program == NO_PROGRAM
        self.why = NOT_HERE if self.went_back else ""
        if program not in ("", NO_PROGRAM, self.runs):
            self._fleet.programs[self._name] = program
            self._other.set()
        self._apps.changed.set()

    def heard(self) -> None:
        """Nothing follows from it."""

    async def run(self) -> None:
        """End the process where another program takes its place."""
        await self._other.wait()
        raise StoppedError("another program takes its place")


class _Secrets:
    """`HeldSecrets` of a device, which has each one at once."""

    def __init__(self, name: str, apps: Apps | BundledApps) -> None:
        self._name, self._apps = name, apps
        self._held: tuple[SealedSecret, ...] = ()

    def want(self, secrets: tuple[SealedSecret, ...]) -> None:
        """Have them."""
        self._held = secrets
        self._apps.changed.set()

    def reports(self) -> tuple[SecretReport, ...]:
        """All that is wanted."""
        return tuple(SecretReport(one.app, one.name, one.version) for one in self._held)

    def certificate(self) -> bytes:
        """What stands for it."""
        return self._name.encode() if self._held else b""


class _Watched:
    """The apps of a device, with the rules looking on."""

    def __init__(self, fleet: LaneFleet, process: Process, apps: Apps | BundledApps) -> None:
        self._fleet, self._process, self._apps = fleet, process, apps

    @property
    def changed(self) -> asyncio.Event:
        """The apps' own."""
        return self._apps.changed

    def apply(self, state: State) -> None:
        """Look, then apply."""
        self._fleet.check_applied(self._process, state)
        self._apps.apply(state)

    def reports(self) -> tuple[AppReport, ...]:
        """The apps' own."""
        return self._apps.reports()

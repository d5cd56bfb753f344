"""A fleet whose roster lives: apps and devices come, go and come back, while ingest runs and is killed.

Real agents and a real ingest that follows a roster, over simulated ports. Guarantees: the run is a function
of its seed. At every step the rules of `geartrain_simulation.checkers` hold, those of membership among them.
Ingest is never started again for a change of the roster. In the end the log has just the members that the
roster wants, and of each device the rows that it read, or their count as dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random

import msgspec

from geartrain.graph.graph import CLAIMS
from geartrain.planning import Plan, make_plan
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.log.roster import RosterChannel, RosterDocument
from geartrain_cloud.ports import NO_SOURCE
from geartrain_edge.settings import Policy
from geartrain_simulation.checkers import Checkers
from geartrain_simulation.fleet.devices import Device, agent_settings, draw_ingest
from geartrain_simulation.fleet.fleet import SECTOR_BYTES, Outcome
from geartrain_simulation.fleet.lives import LOOK_S, Lives, Programs
from geartrain_simulation.fleet.readings import expected_rows, make_graph, members
from geartrain_simulation.fleet.troubles import HEALED_S, INGEST, LOG_POINTS, NET_POINTS
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import Node, Process, World
from geartrain_simulation.stores.ledger_book import LedgerBook
from geartrain_simulation.stores.rosters import RosterBook, SimRoster
from geartrain_simulation.stores.segments import Row
from geartrain_simulation.stores.spools import SpoolBook

ROSTER_POINTS = ("roster.read", "roster.read done")
LATE_S = 3.0
"""By so much, virtual seconds, a device may hear later or sooner than ingest that it is to run an app."""
_LIMIT_S = 900.0
_FOLLOWED_S = 60.0
"""Virtual seconds within which the log says what the roster wants, once nothing goes wrong any more."""


@dataclass(slots=True)
class Post:
    """One device in one instance. sources: those it has; runs: whether its agent is to run; heeds: whether it
    stops when it is told to, and is not offline with its spool.
    """

    device: Device
    instance: str
    sources: tuple[str, ...]
    node: Node
    spool: SpoolBook
    runs: bool = False
    heeds: bool = True

    @property
    def place(self) -> tuple[str, str]:
        """(device, flow)."""
        return self.device.name, self.instance


class RosterFleet:
    """One run. `moved` counts what was done to the roster, by its name."""

    def __init__(self, seed: int) -> None:
        self.seed, self.world = seed, World(seed)
        random = Random(f"{seed}/rosters")
        self.climate = Faults.climate(self.world.random("climate"))
        self.broker = SimBroker(self.world, self.climate)
        self.devices = [_device(seed, number) for number in range(1, random.choice((2, 2, 3, 4)) + 1)]
        self.instances = [f"fleet.{number}" for number in range(1, random.choice((1, 2, 3)) + 1)]
        self.plan = self._plan(self.instances[0])
        self.platter = self._platter(INGEST)
        self.ledger, self.roster = LedgerBook(self.platter), RosterBook()
        above = {channel.id: channel.sources for channel in self.plan.channels}
        self.checkers = Checkers(self.world, self.broker, self.platter, self.ledger, above)
        self.checkers.members.claim = True
        self.moved: dict[str, int] = {}
        self._config = self._ingest_config(random)
        least_s = min(self._document.join_timeout_s, self._document.idle_after_s)
        self.checkers.clocks.waits(self.world.loop.time, least_s)
        self.ingest = self.world.node(INGEST, self._ingest)
        self.ingest.on_power_loss(self.platter.power_loss)
        self.lives = {instance: self._lives(instance) for instance in self.instances}
        self.posts = [self._post(device, one) for one in self.instances for device in self.devices]
        for node in self.world.nodes.values():
            node.faults = self.climate

    # What there is

    def _plan(self, instance: str) -> Plan:
        records = {device.name: device.records for device in self.devices if device.records}
        others = {device.name: device.others for device in self.devices if device.others}
        graph = make_graph(self.seed, records, self.climate.read_s_max, None, others or None)
        return make_plan(graph.named(instance), "edge")

    def _ingest_config(self, random: Random) -> IngestConfig:
        names = [device.name for device in self.devices]
        self._has = members(self.plan, names)
        config, told = draw_ingest(self.seed, self.plan, self._has, self.devices)
        if random.random() < 0.5:  # as control does, which knows of no device what it lacks
            self._has = dict.fromkeys(self._has, tuple(names))
        self._document = RosterDocument(
            told.channels | {CLAIMS: RosterChannel(tuple(sorted(self._has)))},
            tuple(sorted(self._has)),
            bounded=random.random() < 0.6,
            join_timeout_s=told.join_timeout_s,
            idle_after_s=told.idle_after_s,
        )
        return config

    def _platter(self, node: str) -> Platter:
        return Platter(self.world.random(f"{node}/platter"), sector_bytes=SECTOR_BYTES)

    def _lives(self, instance: str) -> Lives:
        log = self.ledger, self.platter
        return Lives(Programs(), self._plan(instance), self.broker, self.checkers, *log, frozenset())

    def _post(self, device: Device, instance: str) -> Post:
        name = f"{device.name} {instance}"
        spool = SpoolBook(self._platter(name))
        main = self.lives[instance].agent(agent_settings(self.seed, device), device.name, spool)
        node = self.world.node(name, main)
        node.on_power_loss(spool.platter.power_loss)
        has = tuple(sorted(source for source, devices in self._has.items() if device.name in devices))
        return Post(device, instance, has, node, spool)

    async def _ingest(self, process: Process) -> None:
        roster = SimRoster(process, self.roster, self.climate)
        await self.lives[self.instances[0]].ingest(process, self._config, roster)

    # What happens

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        try:
            self.world.run(self._story(), _LIMIT_S)
            self._check()
            return Outcome(
                self.world.trace.digest,
                self.world.loop.steps,
                self.world.loop.time(),
                sum(node.crashes for node in self.world.nodes.values()),
                {**self.broker.counters, **self.moved},
                dict(self.ledger.counters),
            )
        finally:
            self.world.close()

    async def _story(self) -> None:
        starts = self.world.random("starts")
        self.world.later(starts.uniform(0, 2), self.ingest.start)
        self.broker.faults = self._rough()
        self._doom_ingest()
        await self._change_for(HEALED_S)
        self._heal()
        self._settle()
        for post in self.posts:
            if post.runs:
                await post.node.finished
        await self._followed()
        await self.lives[self.instances[0]].end(self.ingest)
        self.platter.power_loss()

    def _rough(self) -> Faults:
        random = self.world.random("rough")
        return replace(
            self.climate,
            drop=random.choice((0.0, 0.1, 0.3)),
            duplicate=random.choice((0.0, 0.1, 0.3)),
            reorder=random.choice((0.0, 0.2)),
        )

    def _doom_ingest(self) -> None:
        """Have ingest die at some of the points around its effects."""
        random = self.world.random("dooms")
        self.roster.unreadable = random.choice((0.0, 0.0, 0.3))
        for _ in range(random.choice((0, 1, 2, 4))):
            points = random.choice((LOG_POINTS, ROSTER_POINTS, NET_POINTS))
            power = random.random() < 0.3
            self.ingest.kill_at_point(random.randint(1, 40), random.choice(points), power=power)

    async def _change_for(self, seconds: float) -> None:
        random, loop = self.world.random("changes"), self.world.loop
        self._submit(random, self.instances[0])
        while loop.time() < seconds:
            await asyncio.sleep(random.uniform(0, 2.0))
            post = random.choice(self.posts)
            if post.instance not in self.roster.rows:
                self._submit(random, post.instance)
            elif self._is_ended(post.instance) or random.random() < 0.3:
                self._strike(random, post)
            elif random.random() < 0.12:
                self._kill(random, post.instance)
            elif random.random() < 0.2:
                self._revise(random, post.instance)
            elif post.device.name in self.roster.document(post.instance).devices:
                if not post.device.records and random.random() < 0.5:
                    self._change_sources(random, post)
                else:
                    self._retire(random, post)
            else:
                self._assign(random, post)

    def _is_ended(self, instance: str) -> bool:
        return instance in self.roster.rows and self.roster.document(instance).ended

    def _submit(self, random: Random, instance: str) -> None:
        """The roster knows an instance from now on, with some devices."""
        self._note("submit", instance)
        posts = [post for post in self.posts if post.instance == instance and random.random() < 0.6]
        devices = {post.device.name: post.sources for post in posts}
        self.roster.put(instance, msgspec.structs.replace(self._document, devices=devices))
        for post in posts:
            self._tell(random, post, runs=True)

    def _revise(self, random: Random, instance: str) -> None:
        """The flow is to go over to another revision, sometimes to the one after that before it is logged."""
        for _ in range(random.choice((1, 1, 2))):
            self._note("revise", instance)
            self.roster.revise(instance)

    def _kill(self, random: Random, instance: str) -> None:
        """An instance is over; some of its devices hear of it, and others go on."""
        self._note("end", instance)
        self.roster.end(instance)
        for post in self.posts:
            if post.instance == instance and post.runs:
                self._tell(random, post, runs=False)

    def _retire(self, random: Random, post: Post) -> None:
        self._note("retire", " ".join(post.place))
        self.roster.retire(post.instance, post.device.name)
        self._tell(random, post, runs=False)

    def _assign(self, random: Random, post: Post) -> None:
        self._note("assign", " ".join(post.place))
        self.roster.assign(post.instance, post.device.name, post.sources)
        if random.random() < 0.3:
            self._exchange(post)
        self._tell(random, post, runs=True)

    def _change_sources(self, random: Random, post: Post) -> None:
        """A device that has no split of any source is said to have all of them, or none."""
        self._note("change", " ".join(post.place))
        post.sources = random.choice(((), tuple(sorted(self._has))))
        self.roster.assign(post.instance, post.device.name, post.sources)

    def _exchange(self, post: Post) -> None:
        """New hardware takes the device's name: its spool begins with nothing."""
        if post.node.finished.done() or not post.spool.epoch:
            return
        self._note("exchange", " ".join(post.place))
        post.node.crash()
        self.checkers.repeats(*post.place, is_lost=True)
        post.spool.put_back({})

    def _strike(self, random: Random, post: Post) -> None:
        kind = random.choice(("kill", "ingest", "cut", "broker", "silence", "exchange"))
        if kind == "kill":
            post.node.crash(power=random.random() < 0.5)
        elif kind == "ingest":
            self.ingest.crash(power=random.random() < 0.5)
        elif kind == "broker":
            self.broker.crash(random.uniform(0, 2))
        elif kind == "exchange":
            self._exchange(post)
        else:
            what = self.broker.cut if kind == "cut" else self.broker.silence
            what(random.choice((post.node.name, INGEST)), random.uniform(0, 4))

    def _tell(self, random: Random, post: Post, *, runs: bool) -> None:
        """Have the device hear of it some time later, or have it be one that never hears of its end."""
        post.runs = runs or (post.runs and random.random() < 0.4)
        self.world.later(random.uniform(0, LATE_S), self._heed, post)

    def _heed(self, post: Post) -> None:
        post.node.start_again = post.runs
        if post.runs:
            post.node.start()
        elif post.node.process is not None:
            post.node.stop()

    def _note(self, what: str, detail: str) -> None:
        self.moved[what] = self.moved.get(what, 0) + 1
        self.world.note("world", "roster", f"{what} {detail}")

    # The end

    def _heal(self) -> None:
        self.world.note("world", "heal")
        self.broker.faults = self.climate
        self.roster.unreadable = 0.0
        for node in self.world.nodes.values():
            node.spare()

    def _settle(self) -> None:
        """Let the devices of living instances run to their end; of those that have left, some do, too.

        One that was never heard of before it left is answered nothing, and keeps what it has.
        """
        for post in self.posts:
            if post.instance in self.roster.rows and not self._is_ended(post.instance):
                is_wanted = post.device.name in self.roster.document(post.instance).devices
                has_joined = (post.device.name, post.instance) in self.ledger.cursors
                post.runs = is_wanted or (post.runs and has_joined)
            self._heed(post)

    async def _followed(self) -> None:
        """Wait until ingest follows the newest change of the roster, and the log says what that wants.

        The log alone does not tell: a device that was assigned and retired at once leaves the log as it was,
        while ingest may have taken only the first of the two.
        """
        for _ in range(int(_FOLLOWED_S / LOOK_S)):
            members, revisions = self.checkers.members, self._revisions()
            has_taken = self.roster.taken == self.roster.serial
            has_crossed = all(members.revisions.get(place, 1) == n for place, n in revisions.items())
            has_followed = has_taken and has_crossed and members.all == self._wanted()
            if has_followed and self.checkers.clocks_have_ended():
                return
            await asyncio.sleep(LOOK_S)

    def _wanted(self) -> set[tuple[str, str, str]]:
        return {
            (instance, source, device)
            for instance in self.roster.rows
            for device, sources in self.roster.document(instance).devices.items()
            for source in sources or (NO_SOURCE,)
        }

    def _revisions(self) -> dict[tuple[str, int], int]:
        """Of each partition of the flows that live, as the roster wants it."""
        return {
            (instance, partition): self.roster.document(instance).revision
            for instance in self.roster.rows
            if not self._is_ended(instance)
            for partition in range(self._config.partitions)
        }

    def _check(self) -> None:
        ended = {instance for instance in self.roster.rows if self._is_ended(instance)}
        self.checkers.members.check(self._wanted(), ended)
        self.checkers.members.check_revisions(self._revisions())
        if self.ingest.generation > self.ingest.crashes + 1:
            lives = f"{self.ingest.generation} lives and {self.ingest.crashes} kills"
            raise ViolationError("never restarted", f"ingest has had {lives}")
        self.checkers.check_log(self._expected(ended), ended=ended)

    def _expected(self, ended: set[str]) -> dict[tuple[str, str], dict[str, list[Row]]]:
        """The rows of all devices whose agents have run to their end in an instance that lives."""
        return {
            post.place: expected_rows(self.lives[post.instance].plan, post.device.name)
            for post in self.posts
            if post.runs and post.instance in self.roster.rows and post.instance not in ended
        }


def _device(seed: int, number: int) -> Device:
    """A device; in some worlds all but the first have no split of any source."""
    random = Random(f"{seed}/device-{number}/rosters")
    records, others = random.choice((8, 16, 24)), random.choice((0, 0, 6))
    if number > 1 and Random(f"{seed}/device-{number}/bare").random() < 0.3:
        records, others = 0, 0
    return Device(
        f"device-{number}",
        records,
        others=others,
        policy=Policy.BLOCK,
        spool_bytes_max=random.choice((2_000, 10_000)),
    )

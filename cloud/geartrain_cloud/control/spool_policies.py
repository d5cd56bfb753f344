"""Whether a device has its sources wait while its spool is full, though one of a flow cannot.

Asked when a flow is submitted or an app goes over to another one, before a device reads anything. A device of
this machine gets its spool's policy from `[local]` of platform.toml; any other says of its own file what its
report tells. Guarantees: a refusal names the device, the source and the key to change. What a device has not
reported yet, it refuses itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from geartrain.control.codec import decode_reported
from geartrain.control.states import WAITS
from geartrain.operators.source import ENABLED
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Device, Options, Outline, merged
from geartrain_cloud.control_store.sources import not_for
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import LocalSection

_BLOCK = "block"
"""The policy by which sources wait, as `spool.policy` of a device's file has it."""


class SpoolPolicies:
    """What the platform knows of the policies of spools."""

    def __init__(self, store: ControlStore, local: LocalSection) -> None:
        self._store, self._local = store, local

    def check(
        self,
        app: str,
        outline: Outline,
        devices: Iterable[Device],
        options: Options,
        device_options: dict[str, Options],
    ) -> None:
        """Raise `ConflictError` where one of the devices has sources wait, and one that it has cannot.

        app: its name; options, device_options: as they were submitted, for all devices and for single ones.
        """
        restless = [source.id for source in outline.sources if not source.waits]
        for device in devices if restless else ():
            own = merged(options, device_options.get(device.device, {}))
            elsewhere = not_for(outline, device)
            source = next((one for one in restless if one not in elsewhere and _is_enabled(own, one)), "")
            if source and (key := self._key(app, device)):
                raise ConflictError(
                    f"source {source} cannot wait while the spool of device {device.device} is full, as "
                    f"'{_BLOCK}' asks: leave {key} out, or choose drop_oldest, drop_newest or downsample"
                )

    def _key(self, app: str, device: Device) -> str:
        """The key by which sources of a device wait, as a sentence names it; "" where they do not."""
        if device.local:
            own: dict[str, Any] = self._local.apps.get(app, {}).get("spool") or {}
            where, spool = (f"local.apps.{app}", own) if "policy" in own else ("local", self._local.spool)
            return f"{where}.spool.policy of platform.toml" if spool.get("policy") == _BLOCK else ""
        said = self._store.reports.last(device.device)
        return "spool.policy of its file" if said and WAITS in decode_reported(said).can else ""


def _is_enabled(options: Options, source: str) -> bool:
    return options.get(source, {}).get(ENABLED, True) not in (False, "false")

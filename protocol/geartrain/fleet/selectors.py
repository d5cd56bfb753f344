"""Which devices: `kind=truck,site!=north`, a device's name, or `all`.

It stands between what a person writes, for an app or for a source of a flow, and the devices of a fleet.
Guarantees: a selector is a pure function of a device's name and labels, and is written back as it was read. A
comma means and. A platform has a device of its own beside the data centre's processes, for sources in the
cloud. A selector means it only by its name or its label, so `all` is all devices of a fleet.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from geartrain.errors import SelectorError
from geartrain.fleet.labels import check_device, check_label_key, check_label_value, shown

ALL = "all"
SELECTOR_CHARS_MAX = 1_024
TERMS_MAX = 16
CLOUD_DEVICE = "cloud-1"
"""The name of a platform's own device."""
CLOUD_LABELS: Mapping[str, str] = {"tier": "cloud"}
"""Its labels, which no other device may have."""
IN_CLOUD = "tier=cloud"
"""The selector of a source in the cloud."""


class Term(msgspec.Struct, frozen=True):
    """One condition: the label `key` equals `value`, or not. A device that lacks the label differs."""

    key: str
    value: str
    equal: bool = True

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a device with these labels meets it."""
        return (labels.get(self.key) == self.value) is self.equal


class Selector(msgspec.Struct, frozen=True):
    """What `parse_selector` made of a text; with no name and no terms it is all devices."""

    name: str = ""
    terms: tuple[Term, ...] = ()

    def matches(self, device: str, labels: Mapping[str, str]) -> bool:
        """Whether the device of this name and these labels is meant."""
        if is_cloud_device(device, labels) and not self._says_cloud:
            return False
        return self.name in ("", device) and all(term.holds(labels) for term in self.terms)

    @property
    def _says_cloud(self) -> bool:
        return self.name == CLOUD_DEVICE or any(str(Selector("", (term,))) == IN_CLOUD for term in self.terms)

    def __str__(self) -> str:
        terms = [f"{term.key}{'=' if term.equal else '!='}{term.value}" for term in self.terms]
        return ",".join([self.name, *terms] if self.name else terms) or ALL


def is_cloud_device(device: str, labels: Mapping[str, str]) -> bool:
    """Whether a device of this name and these labels is the platform's own."""
    return device == CLOUD_DEVICE and CLOUD_LABELS.items() <= labels.items()


def parse_selector(text: str) -> Selector:
    """The selector that `text` says; raises `SelectorError` with what to write instead."""
    if len(text) > SELECTOR_CHARS_MAX:
        raise SelectorError(f"a selector has at most {SELECTOR_CHARS_MAX} characters, not {len(text)}")
    parts = [part.strip() for part in text.split(",")]
    if parts == [ALL]:
        return Selector()
    if len(parts) > TERMS_MAX:
        raise SelectorError(f"a selector has at most {TERMS_MAX} terms, not {len(parts)}")
    if not all(parts):
        raise SelectorError(
            f"selector {shown(text)}: a term is empty: write KEY=VALUE, KEY!=VALUE, a device's name or {ALL}"
        )
    names = [check_device(part) for part in parts if "=" not in part]
    if len(names) > 1:
        raise SelectorError(
            f"selector {shown(text)}: no device has two names: a comma means and, so give the devices a label"
        )
    return Selector(names[0] if names else "", tuple(_term(part) for part in parts if "=" in part))


def _term(part: str) -> Term:
    key, _, value = part.partition("=")
    equal = not key.endswith("!")
    key = check_label_key(key.removesuffix("!").strip())
    return Term(key, check_label_value(key, value.strip()), equal)

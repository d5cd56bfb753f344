"""A bundle: a flow's code as one archive, which a device runs without an installation of it. A program: the
same of all that runs on a device.

It stands before every record: packed where a flow is submitted, unpacked on devices and in the data centre.
Guarantees: an archive is a pure function of the files. What is read is bounded before anything is decoded,
and whatever bytes come, nothing but a `BundleError` is raised.
"""

from geartrain.bundle.archive import Archive, entries_of
from geartrain.bundle.manifest import AUTHOR_FIELD, MANIFEST, Manifest, code_hash, target_path
from geartrain.bundle.packing import pack
from geartrain.bundle.program import ProgramArchive, ProgramManifest, pack_program, unpacked_wheels
from geartrain.bundle.project import PROJECT, Project, project_of

__all__ = [
    "AUTHOR_FIELD",
    "MANIFEST",
    "PROJECT",
    "Archive",
    "Manifest",
    "ProgramArchive",
    "ProgramManifest",
    "Project",
    "code_hash",
    "entries_of",
    "pack",
    "pack_program",
    "project_of",
    "target_path",
    "unpacked_wheels",
]

"""Values, calls and exceptions to JSON with type tags, and back."""

from __future__ import annotations

from holdfast.codec.blobs import Blobs, Directory
from holdfast.codec.chain import Transform
from holdfast.codec.codec import Codec
from holdfast.codec.exceptions import RemoteTraceback
from holdfast.codec.hints import CallHints
from holdfast.codec.references import Reference, digest, refer_to
from holdfast.codec.types import TypeRegistry

__all__ = [
    "Blobs",
    "CallHints",
    "Codec",
    "Directory",
    "Reference",
    "RemoteTraceback",
    "Transform",
    "TypeRegistry",
    "digest",
    "refer_to",
]

"""What may stand between the codec's JSON and the store: transforms (compression, encryption), and pickle,
which is signed so that only what this app wrote is ever loaded."""

from __future__ import annotations

import hmac
import importlib
import importlib.util
import pickle
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.codec.blobs import own_io
from holdfast.codec.paths import Misfit
from holdfast.errors import TransformError
from holdfast.printing import show, show_error


class Transform(Protocol):
    """One link of the chain. `decode(encode(data)) == data`; `name` is written into what it made."""

    @property
    def name(self) -> str: ...
    def encode(self, data: bytes) -> bytes: ...
    def decode(self, data: bytes) -> bytes: ...


class Chain:
    """Applies transforms in order, and undoes those that an envelope names."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._transforms = tuple(transforms)
        self._by_name = {transform.name: transform for transform in self._transforms}

    def seal(self, data: bytes) -> bytes:
        """An envelope that is itself JSON, so it can be embedded wherever a bare value can."""
        if not self._transforms:
            return data
        for transform in self._transforms:
            try:
                with own_io():
                    data = transform.encode(data)
            except Exception as exc:  # a service that holds the key is away, for example
                raise _failed(transform.name, "written", exc) from exc
        names = [transform.name for transform in self._transforms]
        return msgspec.json.encode({"$": "x", "t": names, "v": b64encode(data).decode()})

    def open(self, envelope: dict[str, Any]) -> bytes:
        name: object = "base64"
        try:
            data = b64decode(envelope["v"], validate=True)
            for name in reversed(envelope["t"]):
                if name not in self._by_name:
                    raise Misfit(f"was written through {name!r}; give that to Codec(transforms=...)")
                data = self._undo(name, data)
        except (Misfit, TransformError):
            raise
        except Exception as exc:  # a damaged envelope
            raise Misfit(f"can't be read back through {name!r}: {show_error(exc)}") from exc
        return data

    def _undo(self, name: str, data: bytes) -> bytes:
        try:
            with own_io():
                return self._by_name[name].decode(data)
        except Exception as exc:  # its own failure: a wrong key, damaged data, a service that is away
            raise _failed(name, "read back", exc) from exc


def _failed(name: str, what: str, exc: Exception) -> TransformError:
    return TransformError(f"a value can't be {what} through {name!r}: {show_error(exc)}")


class SignedPickle:
    """Pickle behind an HMAC. Loading a pickle runs code, so nothing unsigned is ever loaded."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError(f"pickle_key has {len(key)} bytes; use at least 16, e.g. secrets.token_bytes(32)")
        self._key = key
        found = importlib.util.find_spec("cloudpickle")
        self._dumps: Any = importlib.import_module("cloudpickle").dumps if found else pickle.dumps

    def dump(self, value: object) -> dict[str, object]:
        try:
            data: bytes = self._dumps(value)
        except Exception as exc:  # pickle raises anything
            raise Misfit(f"{show(value)} can't be pickled: {show_error(exc)}") from exc
        return {"$": "pickle", "v": b64encode(data).decode(), "hmac": self._sign(data)}

    def load(self, tagged: dict[str, Any]) -> object:
        data = b64decode(tagged["v"], validate=True)
        if not hmac.compare_digest(self._sign(data).encode(), str(tagged["hmac"]).encode()):
            raise Misfit("this pickle's signature doesn't match pickle_key, so it isn't loaded")
        return pickle.loads(data)

    def _sign(self, data: bytes) -> str:
        return hmac.digest(self._key, b"holdfast pickle\0" + data, "sha256").hex()

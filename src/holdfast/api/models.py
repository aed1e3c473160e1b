"""Which type a payload has, by name: of hooks and requests, for one app or for all of this process."""

from __future__ import annotations

from types import UnionType
from typing import Any, _SpecialForm

from holdfast.codec import Codec
from holdfast.errors import DecodeError, DefinitionError, HoldfastError

TypeForm = UnionType | _SpecialForm | type[Any]
"""A type that is no class, as type checkers see it: `int | None`, `Literal["a"]`. What it stands for is lost on them."""


class Models:
    """Types by name. What an app has defined itself comes before what is defined for all."""

    def __init__(self, what: str, common: Models | None = None) -> None:
        self._what = what
        self._common = common
        self._known: dict[str, Any] = {}

    def add(self, name: str, model: Any) -> None:
        known = self._known.get(name)
        # The same name in the same place is the same class, loaded again.
        if known is not None and known != model and _home_of(known) != _home_of(model):
            raise DefinitionError(
                f"{self._what} {name!r} is defined with payload {known!r} already; use another name, or define each for its own "
                f"app, with app.define_{self._what}"
            )
        self._known[name] = model

    def find(self, name: str) -> Any:
        """The type, None if nobody has said one."""
        found = self._known.get(name)
        return found if found is not None or self._common is None else self._common.find(name)

    def names(self) -> list[str]:
        return sorted({*self._known, *([] if self._common is None else self._common.names())})


def encode_checked(codec: Codec, payload: object, model: Any, what: str, refusal: type[HoldfastError]) -> bytes:
    """A payload as it is recorded, checked against its model if it has one."""
    if model is not None and not (isinstance(model, type) and isinstance(payload, model)):
        try:
            payload = codec.from_plain(payload, model)
        except DecodeError as error:
            raise refusal(f"{what} takes {title_of(model)}: {error}") from None
    elif model is not None:
        codec.types.learn_hint(model)
    return codec.encode(payload, f"the payload of {what}")


def _home_of(model: Any) -> tuple[str, str]:
    return str(getattr(model, "__module__", "")), title_of(model)


def title_of(model: Any) -> str:
    return str(getattr(model, "__qualname__", model))

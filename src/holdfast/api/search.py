"""What runs are searched by: ranges and beginnings of what they have published with `wf.set_data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.api.checks import check_text
from holdfast.codec import Codec
from holdfast.codec.ordering import LAST_CHARACTER, next_kind, order_key
from holdfast.errors import ArgumentError
from holdfast.ports import DataSpan
from holdfast.printing import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values between two bounds, for `app.runs(data={"amount": Range(at_least=100, below=200)})`. Numbers compare as
    numbers, times as times, texts letter by letter."""

    above: Any = None
    at_least: Any = None
    below: Any = None
    at_most: Any = None

    def __post_init__(self) -> None:
        for one, other in (("above", "at_least"), ("below", "at_most")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ArgumentError(f"Range({one}=..., {other}=...): both say the same bound; give one of them")
        if all(getattr(self, name) is None for name in ("above", "at_least", "below", "at_most")):
            raise ArgumentError("Range(): give a bound: above, at_least, below or at_most")

    def span(self, key: str, codec: Codec) -> DataSpan:
        """Where such values are."""
        low = None if (least := _either(self.above, self.at_least)) is None else order_key(codec.encode(least))
        high = None if (most := _either(self.below, self.at_most)) is None else order_key(codec.encode(most))
        some = low or high
        assert some is not None
        if (low or some)[0] != (high or some)[0] or some[0] == "J":
            raise ArgumentError(
                f"data {key!r}: {show(self)}: give bounds of one kind: numbers, texts, or times of which all have a zone, or none"
            )
        return DataSpan(
            key=key, low=low or some[0], high=high or next_kind(some), above=self.above is not None, upto=self.at_most is not None
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prefix:
    """Texts that begin so, for `app.runs(data={"customer": Prefix("ac")})`."""

    text: str

    def __post_init__(self) -> None:
        check_text("Prefix", self.text)

    def span(self, key: str, codec: Codec) -> DataSpan:
        """Where such values are."""
        begins = order_key(codec.encode(self.text))
        return DataSpan(key=key, low=begins, high=begins + LAST_CHARACTER)


def _either(one: Any, other: Any) -> Any:
    return other if one is None else one


def conditions_of(data: dict[str, Any], codec: Codec) -> tuple[dict[str, str], tuple[DataSpan, ...]]:
    """What a query asks for of data: values that are equal, and those that are between."""
    equal: dict[str, str] = {}
    spans: list[DataSpan] = []
    for key, value in data.items():
        check_text("a key of data", key)
        if isinstance(value, Range | Prefix):
            spans.append(value.span(key, codec))
        else:
            equal[key] = codec.encode(value).decode(errors="replace")
    return equal, tuple(spans)

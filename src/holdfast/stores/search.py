"""How a page of runs is found among very many: the statement for a RunQuery.

Each of several statuses or names is looked for by itself, as an index has the runs of each in the order of their numbers,
and no database merges them well. Where a condition leads to few runs those are looked at, whatever else is asked; where
it fits many, the newest runs are looked at until there are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.codec.ordering import EXACT, LAST_CHARACTER, order_key
from holdfast.ports import RunQuery, Status

VALUE_LIMIT = 200
LAST_NUMBER = 2**63 - 1
FEW, FEW_IDS = 2_000, 20_000
MANY_NAMES = 50
DISORDER = 60 * 1_000_000
"""A run with a lower number than another was created before it, or at most so many microseconds later: clocks are set, and
transactions overtake others."""
NEWEST = "ORDER BY no DESC LIMIT :limit"
NEWEST_OF_FEW = "ORDER BY no + 0 DESC LIMIT :limit"
"""In the order of no index: PostgreSQL would read all runs from the newest on until some have such ids."""
OFF = "{unindexed}"

Ask = Callable[[str, dict[str, Any]], list[Any]]
"""The first column of what a statement finds; the statement is one of those by name, or a text of its own."""


class _Place(NamedTuple):
    """Where a value is looked for: the one at `low`, or those between two."""

    low: str
    high: str = ""
    body: bytes | None = None
    from_low: str = "="
    to_high: str = ""


class Search:
    """The conditions of a query, and the one that leads to few runs, if there is one."""

    def __init__(self, app: str, query: RunQuery, ask: Ask) -> None:
        self._app = app
        self._query = query
        self._ask = ask
        self._where = ["app = :app"]
        self.parameters: dict[str, Any] = {"app": app, "limit": query.limit}
        self._leads = False
        self._few_ids = False
        self._attributes = 0
        self._by_family()
        self._by_attributes()
        self._by_id()
        self._by_reason()
        self._by_time_and_number()

    def statement(self, columns: str, spread: bool = False) -> str:
        """If it is `spread`, several names and statuses share the limit evenly, and come in any order."""
        branches = self._branches()
        newest = NEWEST_OF_FEW if self._few_ids else NEWEST
        selects = [f"SELECT {columns} FROM runs WHERE {' AND '.join(branch)} {newest}" for branch in branches]
        if len(selects) == 1:
            return selects[0]
        union = " UNION ALL ".join(f"SELECT * FROM ({select}) b{i}" for i, select in enumerate(selects))
        if not spread:
            return f"SELECT * FROM ({union}) found {NEWEST}"
        self.parameters["limit"] = -(-self._query.limit // len(selects))
        return union

    def _add(self, condition: str, **parameters: Any) -> None:
        self._where.append(condition)
        self.parameters.update(parameters)

    def _follow(self) -> None:
        """What was added last leads to few runs: no index of all runs of the app is needed."""
        self._leads = True
        self._where[0] = f"{OFF}app = :app"

    def _are_few(self, inside: str, parameters: dict[str, Any], few: int) -> bool:
        if self._leads:
            return False
        return sum(self._ask(f"SELECT count(*) FROM (SELECT 1 FROM {inside} LIMIT {few}) found", parameters)) < few

    def _by_family(self) -> None:
        if self._query.parent is not None:
            self._add("parent_id = :parent", parent=self._query.parent)
            self._leads = True
        if self._query.owner is not None:
            self._add("owner = :owner", owner=self._query.owner)
            self._follow()

    def _by_attributes(self) -> None:
        """By what runs are kept under. Older versions wrote the encoded value itself, newer ones a text that sorts as it."""
        if self._query.schedule is not None:
            self._by_attribute("schedule", [_Place(self._query.schedule)])
        if self._query.forked_from is not None:
            self._by_attribute("forked_from", [_Place(self._query.forked_from)])
        for key, value in self._query.data.items():
            order, body = order_key(value.encode()), value.encode()
            exact = order[0] in EXACT and len(order) < VALUE_LIMIT
            self._by_attribute(
                f"data.{key}",
                [
                    _Place(order[:VALUE_LIMIT], body=None if exact else body),
                    _Place(value[:VALUE_LIMIT], body=body),
                ],
            )
        for span in self._query.spans:
            places = []
            for one in (span, *span.others):
                low, high = one.low[:VALUE_LIMIT], one.high[: VALUE_LIMIT + 1]
                places.append(_Place(low, high, None, ">" if one.above else ">=", "<=" if one.upto else "<"))
            self._by_attribute(f"data.{span.key}", places)

    def _by_attribute(self, key: str, places: list[_Place]) -> None:
        """Runs with `key` at one of these places."""
        n = self._attributes = self._attributes + 1
        parameters: dict[str, Any] = {f"key{n}": key}
        found, exactly = [], []
        for j, place in enumerate(places):
            condition = f"key = :key{n} AND value {place.from_low} :low{n}_{j}"
            parameters[f"low{n}_{j}"] = place.low
            if place.to_high:
                condition += f" AND value {place.to_high} :high{n}_{j}"
                parameters[f"high{n}_{j}"] = place.high
            found.append(condition)
            if place.body is not None:
                condition += f" AND body = :body{n}_{j}"
                self.parameters[f"body{n}_{j}"] = place.body
            exactly.append(condition)
        inside = " UNION ALL ".join(f"SELECT 1 FROM attributes WHERE {each}" for each in found)
        if self._are_few(f"({inside}) those", parameters, FEW):
            those = " UNION ALL ".join(f"SELECT run FROM attributes WHERE {each}" for each in exactly)
            self._add(f"no IN ({those})", **parameters)
            self._follow()
        else:
            those = " OR ".join(f"({each})" for each in exactly)
            self._add(f"EXISTS (SELECT 1 FROM attributes a WHERE a.run = runs.no AND ({those}))", **parameters)

    def _by_id(self) -> None:
        if not self._query.prefix:
            return
        values = {"prefix": self._query.prefix, "beyond": self._query.prefix + LAST_CHARACTER}
        inside = "runs WHERE app = :app AND id >= :prefix AND id < :beyond"
        few = self._are_few(inside, {**values, "app": self._app}, FEW_IDS)
        column = "id" if few else f"{OFF}id"
        self._add(f"{column} >= :prefix AND {column} < :beyond", **values)
        self._few_ids = few
        self._leads = self._leads or few

    def _by_reason(self) -> None:
        """By a part of the text. LIKE would take capitals for small letters in SQLite alone."""
        given = {f"reason{i}": text for i, text in enumerate(self._query.reasons)}
        if given:
            those = " OR ".join(f"replace(reason, :{name}, '') <> reason" for name in given)
            self._add(f"({those})", **given)

    def _by_time_and_number(self) -> None:
        number = f"{OFF}no" if self._leads else "no"
        below = self._query.after
        since, until = self._query.since, self._query.until
        if since is not None:
            before = self._number_at("last_before", since - DISORDER, 0)
            self._add(f"{OFF}created_at >= :since AND {number} > :before", since=since, before=before)
        if until is not None:
            first = self._number_at("first_from", until + DISORDER, LAST_NUMBER)
            self._add(f"{OFF}created_at < :until", until=until)
            below = min(first, LAST_NUMBER if below is None else below)
        if below is not None:
            self._add(f"{number} < :below", below=below)

    def _number_at(self, query: str, time: int, default: int) -> int:
        found = self._ask(query, {"app": self._app, "time": time})
        return found[0] if found else default

    # -- statuses and names

    def _branches(self) -> list[list[str]]:
        names = self._names()
        branches: list[list[str]] = []
        for i, status in enumerate(dict.fromkeys(self._query.statuses) or [None]):
            for j, name in enumerate(names):
                branch = list(self._where)
                # Most runs have succeeded; of the others there are fewer than of most workflows.
                by_status = status is not None and (name is None or status != Status.SUCCESS)
                if status is not None:
                    branch.append(f"{'' if by_status and not self._leads else OFF}status = :status{i}")
                    self.parameters[f"status{i}"] = str(status)
                if name is not None:
                    branch.append(f"{OFF if by_status or self._leads else ''}workflow = :workflow{j}")
                    self.parameters[f"workflow{j}"] = name
                elif self._query.workflow is not None:
                    branch.append(f"{OFF}workflow >= :begins AND {OFF}workflow < :ends")
                branches.append(branch)
        return branches or [["1 = 0"]]

    def _names(self) -> list[str] | list[None]:
        """The workflows that are meant; [None] for all of them, or if they are very many."""
        workflow = self._query.workflow
        if workflow is None:
            return [None]
        if not workflow.endswith("*"):
            return [workflow]
        ends = {"begins": workflow[:-1], "ends": workflow[:-1] + LAST_CHARACTER}
        found: list[str] = self._ask("workflow_names", {"app": self._app, "limit": MANY_NAMES, **ends})
        if len(found) < MANY_NAMES:
            return found
        self.parameters |= ends
        return [None]

"""Sales of several shops are fetched, cleaned, loaded and reported. What is not needed is skipped; one bad shop stops
the load, but never the clean-up."""

from __future__ import annotations

from typing import Any

from holdfast import App, Dag, FatalError

app = App("warehouse", "warehouse.db")
etl = Dag("nightly-etl", app=app)

SALES: dict[str, list[int]] = {"north": [12, 7, -3], "south": [30], "east": [5, 5, 5], "closed": []}


class Unreadable(FatalError):
    """The file is broken, and will be tomorrow too."""


@etl.step
def list_shops(ctx: dict[str, Any]) -> list[str]:
    return list(ctx["shops"])


@etl.step(map_over="list_shops", max_retries=5, retry_delay="exponential")
def fetch(shop: str) -> list[int]:
    """Executed for each shop, side by side; each is retried by itself."""
    if shop == "broken":
        raise Unreadable(f"the file of {shop} can't be read")
    return SALES[shop]


@etl.step(depends_on=["fetch"])
def clean(fetch: list[list[int]]) -> list[int]:
    return [amount for amounts in fetch for amount in amounts if amount >= 0]


@etl.step(depends_on=["clean", "fetch"], condition=lambda ctx: any(a < 0 for shop in ctx["fetch"] for a in shop))
def report_refunds(fetch: list[list[int]]) -> str:
    """Only on days with refunds."""
    return f"{sum(amount < 0 for amounts in fetch for amount in amounts)} refunds"


@etl.step(depends_on=["clean"], condition=lambda ctx: not ctx.get("dry_run"))
def load(clean: list[int]) -> int:
    return len(clean)


@etl.step(depends_on=["load"])
def refresh_dashboards(load: int) -> str:
    """Follows `load`: skipped with it."""
    return f"refreshed with {load} rows"


@etl.step(depends_on=["clean", "refresh_dashboards", "report_refunds"], run_if="none_failed")
def summarize(clean: list[int], report_refunds: str = "no refunds", refresh_dashboards: str = "dry run") -> str:
    return f"{sum(clean)} EUR in {len(clean)} sales, {report_refunds}, {refresh_dashboards}"


@etl.step(depends_on=["summarize", "fetch"], run_if="all_done")
def remove_files(ctx: dict[str, Any]) -> str:
    """Whatever happened."""
    return "files removed"

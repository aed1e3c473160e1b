"""`python examples/drip_onboarding`: a month with three customers, in a second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from onboarding import Customer, app, look_up, onboard, send_mail

from holdfast.testing import TestApp

BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)


def main() -> None:
    with TestApp(app, start=BEGIN) as world:

        def what_they_do(email: str) -> Customer:
            """Ann buys after a week, Bob leaves at once, and Eve never does anything."""
            week = world.now >= BEGIN + timedelta(days=7)
            return Customer(has_bought=email.startswith("ann") and week, has_left=email.startswith("bob"))

        world.mock(look_up, what_they_do)

        def show(email: str, mail: str) -> None:  # on several threads at once, so the end of the line is part of it
            print(f"{world.now:%a %d %b %H:%M}  {email:<17} {mail}\n", end="")

        world.mock(send_mail, show)
        runs = [onboard.options(id=name).start(f"{name}@example.com") for name in ("ann", "bob", "eve")]
        world.advance("30d")
        for run in runs:
            print(f"{run.id}: {run.result()}")


if __name__ == "__main__":
    main()

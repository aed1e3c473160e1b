"""`python examples/document_approval`: four documents, a week each, in a second."""

from __future__ import annotations

from datetime import UTC, datetime

from approval import Decision, Document, app, approve, write

from holdfast.testing import TestApp

STORIES = {
    "quick": ("3h", Decision(True, "rita")),
    "late": ("2d6h", Decision(False, "rita", "the numbers of March are missing")),
    "escalated": ("3d1h", Decision(True, "max")),
    "forgotten": ("7d", None),
}
"""When somebody decides, and what."""


def main() -> None:
    for name, (after, answer) in STORIES.items():
        print(f"\n{name}")
        with TestApp(app, start=datetime(2026, 6, 1, 9, tzinfo=UTC)) as world:

            def show(to: str, text: str, world: TestApp = world) -> None:
                print(f"  {world.now:%a %H:%M}  to {to}: {text}")

            world.mock(write, show)
            run = approve.start(Document(name, f"report {name}", reviewer="rita", manager="max"))
            world.advance(after)
            if answer is not None:
                app.send_hook(key=name, payload=answer)
            print(f"  {world.now:%a %H:%M}  {run.result()}")


if __name__ == "__main__":
    main()

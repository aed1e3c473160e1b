"""Mails to a new customer over three weeks, and a count of them each Monday morning."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import App, sleep, wf

app = App("onboarding")

MAILS = (
    ("0s", "welcome"),
    ("2d", "first steps"),
    ("5d", "what others do with it"),
    ("2w", "an offer"),
)
"""How long to wait after the last one, and what to send."""


@dataclass
class Customer:
    has_bought: bool = False
    has_left: bool = False


@app.step
def look_up(email: str) -> Customer:
    """Stands for a look into your database."""
    return Customer()


@app.step(max_retries=5, retry_delay="exponential")
def send_mail(email: str, mail: str) -> None:
    """Stands for your mail service. A real one is given `this_step.idempotency_key`."""
    print(f"to {email}: {mail}")


@app.workflow
async def onboard(email: str) -> str:
    """One run per customer. It holds nothing while it sleeps, and a deploy or a crash in between changes nothing."""
    for pause, mail in MAILS:
        await sleep(pause)
        customer = look_up(email)
        if customer.has_left:
            return "left"
        if customer.has_bought:
            send_mail(email, "thank you")
            return "bought"
        send_mail(email, mail)
        wf.set_data("last_mail", mail)
    return "was sent everything"


@app.step
def count_runs() -> dict[str, int]:
    """How many are at which mail."""
    counts: dict[str, int] = {}
    for run in app.runs(workflow="onboard", limit=1_000):
        if not run.status.is_final:
            mail = run.data.get("last_mail", "nothing yet")
            counts[mail] = counts.get(mail, 0) + 1
    return counts


@app.workflow(schedule="0 8 * * MON", tz="Europe/Berlin")
def weekly_report() -> None:
    assert wf.scheduled_at is not None
    lines = [f"{count} at {mail!r}" for mail, count in sorted(count_runs().items())]
    send_mail("team@example.com", f"week {wf.scheduled_at:%V}: {', '.join(lines) or 'nobody is new'}")

"""A document waits for a decision: a reminder after two days, then the reviewer's manager, and then it expires."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import App, define_hook, wf

app = App("approval")


@dataclass
class Document:
    id: str
    title: str
    reviewer: str
    manager: str


@dataclass
class Decision:
    approved: bool
    by: str
    comment: str = ""


decision = define_hook("decision", Decision)


@app.step(max_retries=5, retry_delay="exponential")
def write(to: str, text: str) -> None:
    """Stands for your mail or chat. A real one puts a link to the decision into it."""
    print(f"to {to}: {text}")


@app.step
def file_away(document: Document, outcome: str) -> None:
    """Stands for your archive."""


@app.workflow
async def approve(document: Document) -> str:
    """One run per document. Whoever decides calls `app.send_hook(key=document.id, payload=Decision(...))`."""
    outcome = await decide(document)
    wf.set_data("outcome", outcome)
    file_away(document, outcome)
    return outcome


async def decide(document: Document) -> str:
    requests = (
        (document.reviewer, "please review", "2d"),
        (document.reviewer, "a reminder: please review", "1d"),
        (document.manager, f"{document.reviewer} has not answered, please decide on", "2d"),
    )
    for person, request, patience in requests:
        write(person, f"{request} {document.title!r}")
        try:
            answer = await decision(key=document.id, timeout=patience)
        except TimeoutError:
            continue
        verdict = "approved" if answer.approved else "rejected"
        return f"{verdict} by {answer.by}" + (f": {answer.comment}" if answer.comment else "")
    write(document.manager, f"{document.title!r} has expired, as nobody decided")
    return "expired"

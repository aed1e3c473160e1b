"""An app with runs in every state, for the pictures of the monitor."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from holdfast import App, Dag, FatalError, define_hook, saga, sleep, this_step, wf

app = App("shop")
log = logging.getLogger("shop")


@dataclass
class Order:
    id: str
    customer: int
    total: float


@dataclass
class Decision:
    approved: bool
    by: str
    note: str = ""


approval = define_hook("approval", Decision)


@app.step
def check_stock(order: Order) -> int:
    time.sleep(0.12)
    log.info("%s: 3 of 3 items in stock", order.id)
    return 3


@app.step(max_retries=4, retry_delay="400ms")
def charge_card(order: Order) -> str:
    time.sleep(0.2)
    if this_step.attempt <= order.customer % 3:
        log.warning("the card network did not answer")
        raise ConnectionError("card network: no answer within 200 ms")
    return f"payment-{order.id}"


@app.step
def pack(item: int) -> str:
    time.sleep(0.15 + item % 3 * 0.1)
    return f"box-{item}"


@app.step
def book_courier(order_id: str) -> str:
    time.sleep(0.35)
    return f"track-{order_id}"


@app.step
async def send_mail(to: int, text: str) -> None:
    await asyncio.sleep(0.08)


@app.workflow
async def ship(order_id: str) -> str:
    label = book_courier(order_id)
    await sleep("600ms")
    return label


@app.workflow
async def fulfil_order(order: Order) -> dict[str, str]:
    wf.set_data("customer", order.customer)
    wf.set_data("total", order.total)
    check_stock(order)
    payment = charge_card(order)
    await asyncio.gather(*(pack.submit(i) for i in range(3)))
    label = await ship(order.id)
    await send_mail(order.customer, "your order is on its way")
    return {"payment": payment, "label": label}


@app.step(max_retries=0)
def pay_back(order_id: str, amount: float) -> None:
    time.sleep(0.1)
    raise FatalError(f"account of {order_id} is closed; {amount} can't be paid back")


@app.workflow
async def refund(order_id: str, amount: float) -> None:
    wf.set_data("order", order_id)
    log_refund(order_id)
    pay_back(order_id, amount)


@app.step
def log_refund(order_id: str) -> None:
    time.sleep(0.05)


@app.workflow
async def approve_expense(who: str, amount: int) -> str:
    wf.set_data("amount", amount)
    await send_mail(7, f"{who} asks for {amount}")
    answer = await approval(key=f"expense-{who}", timeout="2d")
    return f"{who}: {answer.approved}"


@app.workflow
async def onboarding(user: str) -> None:
    for day in range(3):
        await send_mail(1, f"tip {day} for {user}")
        await sleep("1d")


@app.step
def resize(photo: int) -> int:
    time.sleep(0.03)
    if photo == 17:
        raise FatalError("photo 17 is no picture")
    return photo


@app.workflow
async def import_photos(count: int) -> int:
    done = await asyncio.gather(*(resize.submit(i) for i in range(count)), return_exceptions=True)
    return len(done)


@app.step(max_retries=8, retry_delay="10m")
def fetch_rates(bank: str) -> float:
    raise ConnectionError(f"{bank} did not answer: 503 Service Unavailable")


@app.workflow
async def update_rates(bank: str) -> float:
    return fetch_rates(bank)


@app.step(timeout="1h")
async def train(model: str) -> str:
    for i in range(1000):
        this_step.progress(i, 1000, "batches")
        await asyncio.sleep(1)
    return model


@app.workflow
async def train_model(model: str) -> str:
    return await train(model)


@app.step
def book(what: str, city: str) -> str:
    time.sleep(0.2)
    if what == "car":
        raise FatalError(f"no car is left in {city}")
    return f"{what}-{city}"


@app.step
def cancel_booking(booking: str) -> None:
    time.sleep(0.1)


@app.workflow
async def book_trip(city: str) -> None:
    with saga() as s:
        for what in ("hotel", "flight", "car"):
            s.step(book, what, city, compensate=cancel_booking)


@app.workflow(schedule="0 2 * * *", tz="Europe/Berlin")
async def nightly_report() -> str:
    return "12 pages"


@app.step
def extract(table: str) -> int:
    time.sleep(0.2)
    return 1200


@app.step
def clean(orders: int) -> int:
    time.sleep(0.3)
    return orders


@app.step
def join(clean: int, customers: int) -> int:
    time.sleep(0.15)
    return clean + customers


@app.step
def render(page: int) -> str:
    time.sleep(0.02)
    if page == 31:
        raise FatalError("page 31 has no data")
    return f"page {page}"


report = Dag("sales_report", app=app)
report.add_step("orders", lambda ctx: extract("orders"))
report.add_step("customers", lambda ctx: extract("customers"))
report.add_step("clean", clean, depends_on=["orders"])
report.add_step("join", join, depends_on=["clean", "customers"])
report.add_step("chart", lambda ctx: ctx["join"], depends_on=["join"])
report.add_step("mail", lambda ctx: "sent", depends_on=["chart"])


@app.step
def collect(pages: list[str]) -> int:
    time.sleep(0.05)
    return len(pages)

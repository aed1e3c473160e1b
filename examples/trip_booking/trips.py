"""A trip is a flight, a hotel and a car. What was booked is cancelled if the rest can't be had.

The same trip twice: as a saga with a name, and as a block in a workflow that books side by side.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast import App, FatalError, RetryableError, Saga, saga, this_step

app = App("trips", "trips.db")


@dataclass
class Booking:
    what: str
    code: str


class SoldOut(FatalError):
    """There is none left: trying again won't help."""


# -- the desks, each a step that stands for a call to somebody else's service


@app.step
async def book_flight(traveller: str, to: str) -> Booking:
    return Booking("flight", f"{to[:3].upper()}-{traveller}")


@app.step
async def book_hotel(traveller: str, to: str) -> Booking:
    if to == "Venice":
        raise SoldOut(f"no room in {to}")
    return Booking("hotel", f"room-{traveller}")


@app.step
async def book_car(traveller: str, to: str) -> Booking:
    if to == "Oslo":
        raise SoldOut(f"no car in {to}")
    return Booking("car", f"car-{traveller}")


@app.step(max_retries=5, retry_delay="20ms")
def cancel(result: Booking) -> str:
    """Cancelling has retries of its own: the desk of the hotel doesn't answer at once."""
    if result.what == "hotel" and this_step.attempt < 3:
        raise RetryableError("the desk doesn't answer")
    return f"{result.what} {result.code} cancelled"


# -- a saga with a name: one step after the other, over one context

trip = Saga("book-trip", app=app)
trip.add_step("flight", book_flight, cancel)
trip.add_step("hotel", book_hotel, cancel)
trip.add_step("car", book_car, cancel)
trip.add_step("mail", lambda flight, hotel, car: f"booked: {flight.code}, {hotel.code}, {car.code}")


# -- a saga in a workflow: side by side


@app.workflow
async def book_at_once(traveller: str, to: str) -> list[Booking]:
    async with saga() as s:
        return await asyncio.gather(
            s.step(book_flight, traveller, to, compensate=cancel),
            s.step(book_hotel, traveller, to, compensate=cancel),
            s.step(book_car, traveller, to, compensate=cancel),
        )

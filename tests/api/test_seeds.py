"""Every code sample of the two articles that Holdfast grew from, in our API.

The first part is the order fulfilment of the article on workflows, whole: happy, replayed after a failure, payment
declined. The second is the article on steps, sample by sample, with the samples' own names.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import (
    App,
    FatalError,
    RetryableError,
    Run,
    WrongContextError,
    define_hook,
    hook,
    sleep,
    start_child_workflow,
    this_step,
    wf,
)
from holdfast.testing import TestApp

# -- the first article: an order is not one task

orders = App("workflow_order_fulfillment", ":memory:")
AVAILABLE_STOCK = 10


class TransientFulfillmentError(Exception):
    pass


@dataclass(frozen=True)
class Order:
    order_id: str
    item_count: int
    payment_token: str = "ok"
    simulate_transient_after_shipping: bool = False


@dataclass(frozen=True)
class ValidationResult:
    valid: bool
    validated_at: str


@dataclass(frozen=True)
class InventoryResult:
    reserved: bool
    reservation_id: str
    reason: str = ""


@dataclass(frozen=True)
class PaymentResult:
    approved: bool
    payment_id: str
    reason: str = ""


@dataclass(frozen=True)
class ReleaseResult:
    release_id: str


@dataclass(frozen=True)
class ShippingResult:
    shipment_id: str
    carrier: str
    tracking_number: str


@dataclass(frozen=True)
class FulfillmentWorkflowResult:
    workflow_id: str
    order_id: str
    status: str
    attempts: int = 1
    shipping: ShippingResult | None = None
    release_id: str | None = None
    failure_reason: str | None = None
    ids: list[str] = field(default_factory=list)


def _stable_id(prefix: str, namespace: str, *parts: object) -> str:
    raw = "|".join(str(part) for part in (namespace, *parts))
    digest = hashlib.sha1(raw.encode()).hexdigest()[:8]
    return f"{prefix}-{digest}"


@orders.step
def validate_order(order: Order, validated_at: str) -> ValidationResult:
    return ValidationResult(order.item_count > 0, validated_at)


@orders.step
def reserve_inventory(order_id: str, item_count: int, reservation_id: str) -> InventoryResult:
    if item_count > AVAILABLE_STOCK:
        return InventoryResult(False, reservation_id, "not_enough_stock")

    wf.set_data("reservation_id", reservation_id)
    return InventoryResult(True, reservation_id)


@orders.step
def charge_payment(order_id: str, payment_token: str, payment_id: str) -> PaymentResult:
    if payment_token == "decline":
        return PaymentResult(False, payment_id, "card_declined")

    wf.set_data("payment_id", payment_id)
    return PaymentResult(True, payment_id)


@orders.step
def release_inventory(reservation_id: str, release_id: str, reason: str) -> ReleaseResult:
    return ReleaseResult(release_id)


@orders.step
def choose_carrier(order_id: str) -> str:
    return "postal"


@orders.step
def create_shipping_label(order_id: str, carrier: str, shipment_id: str, tracking_number: str) -> ShippingResult:
    return ShippingResult(shipment_id, carrier, tracking_number)


@orders.step
def send_customer_confirmation(order_id: str, tracking_number: str) -> None: ...


@orders.workflow
def shipping_workflow(order_id: str, reservation_id: str, payment_id: str) -> ShippingResult:
    wf.set_data("order_id", order_id)
    wf.set_data("reservation_id", reservation_id)
    wf.set_data("payment_id", payment_id)

    carrier = choose_carrier(order_id)
    shipment_id = _stable_id("SHP", "shipment", order_id, carrier, wf.uuid())
    tracking_number = f"{carrier[:3].upper()}-{int(wf.random() * 1_000_000):06d}"
    label = create_shipping_label(order_id, carrier, shipment_id, tracking_number)

    wf.set_data("shipment_id", label.shipment_id)
    wf.set_data("tracking_number", label.tracking_number)
    return label


@orders.workflow(retry_for=(TransientFulfillmentError,), max_retries=1)
def fulfill_order_workflow(order: Order) -> FulfillmentWorkflowResult:
    workflow_id = wf.identity.workflow_id

    attempt = wf.get_data("attempt_count", 0) + 1
    wf.set_data("attempt_count", attempt)
    wf.set_data("order_id", order.order_id)
    wf.set_data("status", "started")

    validate_order(order, wf.utc_now().isoformat())

    reservation_id = _stable_id("RSV", "reservation", order.order_id, wf.uuid())
    reservation = reserve_inventory(order.order_id, order.item_count, reservation_id)

    payment_id = _stable_id("PAY", "payment", order.order_id, wf.uuid())
    payment = charge_payment(order.order_id, order.payment_token, payment_id)

    if not payment.approved:
        release = release_inventory(reservation.reservation_id, str(wf.uuid()), "payment_declined")
        wf.set_data("status", "payment_failed")
        wf.set_data("failure_reason", payment.reason)
        return FulfillmentWorkflowResult(
            workflow_id=workflow_id,
            order_id=order.order_id,
            status="payment_failed",
            release_id=release.release_id,
            failure_reason=payment.reason,
        )

    shipping = shipping_workflow(order.order_id, reservation.reservation_id, payment.payment_id)

    if order.simulate_transient_after_shipping and not wf.get_data("transient_probe_raised", False):
        wf.set_data("transient_probe_raised", True)
        wf.set_data("status", "retrying_after_transient")
        raise TransientFulfillmentError("controlled transient failure after shipment")

    send_customer_confirmation(order.order_id, shipping.tracking_number)
    wf.set_data("status", "fulfilled")
    return FulfillmentWorkflowResult(
        workflow_id=workflow_id,
        order_id=order.order_id,
        status="fulfilled",
        attempts=attempt,
        shipping=shipping,
        ids=[reservation_id, payment_id],
    )


SIDE_EFFECTS = (validate_order, reserve_inventory, charge_payment, choose_carrier, create_shipping_label)


def test_the_happy_order_is_fulfilled_through_a_sub_workflow() -> None:
    with TestApp(orders) as world:
        run = fulfill_order_workflow.start(Order("o-1", 2))
        result = run.result()
        assert (result.status, result.attempts, result.workflow_id) == ("fulfilled", 1, run.id)
        assert result.shipping is not None
        assert result.shipping.tracking_number.startswith("POS-")
        assert [step.name for step in run.steps] == [
            "validate_order", "reserve_inventory", "charge_payment", "shipping_workflow", "send_customer_confirmation",
        ]  # fmt: skip
        (shipping,) = run.children()
        assert shipping.parent_id == run.id
        assert [step.name for step in shipping.steps] == ["choose_carrier", "create_shipping_label"]
        assert shipping.data["shipment_id"] == result.shipping.shipment_id
        assert run.data["status"] == "fulfilled"
        assert run.data["reservation_id"] == result.ids[0]
        assert run.data["payment_id"] == result.ids[1]
        assert world.calls(send_customer_confirmation) == [("o-1", result.shipping.tracking_number)]


def test_the_replayed_order_repeats_nothing_that_was_done() -> None:
    with TestApp(orders) as world:
        run = fulfill_order_workflow.start(Order("o-2", 2, simulate_transient_after_shipping=True))
        result = run.result()
        assert (result.status, result.attempts) == ("fulfilled", 2)
        assert [len(world.calls(step)) for step in SIDE_EFFECTS] == [1] * 5
        replayed = [step.name for step in run.steps if step.reused]
        assert replayed == ["validate_order", "reserve_inventory", "charge_payment", "shipping_workflow"]
        assert len(run.children()) == 1
        statuses = [entry.status for entry in run.status_history()]
        assert statuses == ["PENDING", "RUNNING", "RETRY", "PENDING", "RUNNING", "SUCCESS"]
        failure = run.status_history()[2].error
        assert isinstance(failure, TransientFulfillmentError)
        assert run.data["attempt_count"] == 2


def test_the_declined_order_is_compensated() -> None:
    with TestApp(orders) as world:
        run = fulfill_order_workflow.start(Order("o-3", 2, payment_token="decline"))
        result = run.result()
        assert (result.status, result.failure_reason) == ("payment_failed", "card_declined")
        ((reservation_id, release_id, reason),) = world.calls(release_inventory)
        assert reservation_id == run.data["reservation_id"]
        assert (release_id, reason) == (result.release_id, "payment_declined")
        assert run.data["status"] == "payment_failed"
        assert run.children() == []


def test_workflow_runs_can_be_listed_by_type_and_family() -> None:
    with TestApp(orders):
        runs = [fulfill_order_workflow.start(Order(f"o-{n}", 1)) for n in range(3)]
        for run in runs:
            run.result()
        assert len(orders.runs(workflow="fulfill_order_workflow")) == 3
        assert len(orders.runs(workflow="shipping_workflow")) == 3
        assert [run.workflow for run in orders.runs(parent=runs[0].id)] == ["shipping_workflow"]
        assert orders.runs(data={"order_id": "o-1"}, workflow="fulfill_order_workflow") == [runs[1]]


def test_independent_work_is_a_run_of_a_single_step(app: App) -> None:
    @app.step
    def resize_image(image_id: str) -> str:
        return f"resized {image_id}"

    @app.step
    async def send_email(user_id: str) -> str:
        return f"mailed {user_id}"

    with TestApp(app):
        assert resize_image.delay("i-1").result() == "resized i-1"
        assert send_email.delay("u-1").result() == "mailed u-1"


def test_two_identical_calls_are_two_calls_and_each_is_kept(app: App) -> None:
    """The article's `execute_task` takes two identical calls for one. Ours are two: they are told apart by order."""

    @app.step
    def ticket() -> int:
        return len(world.calls(ticket))

    @app.workflow(max_retries=1)
    def flow() -> list[int]:
        found = [ticket(), ticket()]
        if wf.attempt == 1:
            raise TransientFulfillmentError("x")
        return found

    with TestApp(app) as world:
        assert flow.start().result() == [1, 2]
        assert len(world.calls(ticket)) == 2


# -- the second article: what is a step?


class EmailClient:
    sent: list[dict[str, str]]

    async def __aenter__(self) -> EmailClient:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def send(self, **mail: str) -> None:
        EmailClient.sent.append(mail)


@dataclass
class Response:
    status_code: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return self.body


def test_a_step_is_created_by_its_decorator(app: App) -> None:
    step = app.step
    EmailClient.sent = []

    @step()
    async def send_email(to: str, subject: str, body: str) -> dict[str, Any]:
        """Send an email - retries automatically on failure."""
        async with EmailClient() as client:
            await client.send(to=to, subject=subject, body=body)
        return {"sent": True, "to": to}

    with TestApp(app):
        assert send_email.start("me@x.org", "Hello", "!").result() == {"sent": True, "to": "me@x.org"}
    assert EmailClient.sent == [{"to": "me@x.org", "subject": "Hello", "body": "!"}]


def test_the_options_of_a_step_and_their_defaults(app: App) -> None:
    step = app.step

    @step(
        name="fetch_user_data",  # Custom step name
        max_retries=5,  # Retry up to 5 times
        retry_delay="exponential",  # Exponential backoff
        timeout="30s",  # Step timeout
    )
    async def fetch_user(user_id: str) -> None:
        pass

    @step()
    async def defaults() -> None: ...

    assert fetch_user.name == "fetch_user_data"
    options = app.definitions.find_step("fetch_user_data").options
    assert (options.max_retries, options.timeout) == (5, 30_000_000)
    options = app.definitions.find_step("defaults").options
    assert (options.max_retries, options.timeout, options.force_local) == (3, 60_000_000, False)


def retry_delays(run: Run[Any]) -> list[float]:
    return [(e.detail["retry_at"] - e.at).total_seconds() for e in run.history() if e.kind == "StepRetrying"]


def test_fixed_delay(app: App) -> None:
    step = app.step

    @step(max_retries=3, retry_delay="30s")
    async def call_api() -> None:
        # 30 s before each retry
        raise ConnectionError("down")

    with TestApp(app):
        run = call_api.start()
        with pytest.raises(ConnectionError):
            run.result()
        assert retry_delays(run) == [30, 30, 30]


def test_exponential_backoff(app: App) -> None:
    step = app.step

    @step(max_retries=5, retry_delay="exponential")
    async def call_external_api() -> None:
        # Retries at: 1s, 2s, 4s, 8s, 16s
        raise ConnectionError("down")

    with TestApp(app):
        run = call_external_api.start()
        with pytest.raises(ConnectionError):
            run.result()
        assert retry_delays(run) == [1, 2, 4, 8, 16]


def test_custom_delay_in_error(app: App) -> None:
    step = app.step
    responses = iter([Response(429, headers={"Retry-After": "17"}), Response(429), Response(200, {"ok": True})])

    async def call_api() -> Response:
        return next(responses)

    @step(max_retries=3)
    async def rate_limited_api() -> Any:
        response = await call_api()

        if response.status_code == 429:
            retry_after = response.headers.get("Retry-After", "60")
            raise RetryableError("Rate limited", retry_after=f"{retry_after}s")

        return response.json()

    with TestApp(app):
        run = rate_limited_api.start()
        assert run.result() == {"ok": True}
        assert retry_delays(run) == [17, 60]


def test_retryable_error(app: App) -> None:
    step = app.step
    answers: list[Any] = [ConnectionError(), TimeoutError(), {"rows": 3}]

    class external_api:
        @staticmethod
        async def get_data() -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    @step(max_retries=3)
    async def fetch_data() -> Any:
        try:
            return await external_api.get_data()
        except ConnectionError:
            raise RetryableError("Connection failed") from None
        except TimeoutError:
            raise RetryableError("Request timed out", retry_after="10s") from None

    with TestApp(app):
        run = fetch_data.start()
        assert run.result() == {"rows": 3}
        assert retry_delays(run) == [1, 10]


def test_fatal_error(app: App) -> None:
    step, workflow = app.step, app.workflow

    def is_valid_email(email: str) -> bool:
        return "@" in email

    @step()
    async def validate_input(data: dict[str, str]) -> dict[str, str]:
        if "email" not in data:
            raise FatalError("Email is required")

        if not is_valid_email(data["email"]):
            raise FatalError(f"Invalid email: {data['email']}")

        return data

    @workflow()
    async def flow(data: dict[str, str]) -> dict[str, str]:
        return await validate_input(data)

    with TestApp(app) as world:
        for data, words in (({}, "Email is required"), ({"email": "x"}, "Invalid email: x")):
            run = flow.start(data)
            with pytest.raises(FatalError, match=words):
                run.result()
            assert run.status == "FAILURE"
        assert len(world.calls(validate_input)) == 2
        assert flow.start({"email": "a@b"}).result() == {"email": "a@b"}


def test_step_results_and_caching(app: App) -> None:
    step, workflow = app.step, app.workflow

    @step()
    async def fetch_user(user_id: str) -> dict[str, str]:
        return {"email": f"{user_id}@x.org"}

    @step()
    async def send_email(to: str, text: str) -> None: ...

    @workflow()
    async def my_workflow() -> None:
        # First run: executes the step
        # After resume: returns cached result
        user = await fetch_user("user_123")

        await sleep("1h")

        # After 1 hour, workflow resumes
        # fetch_user is NOT called again - cached result is used
        await send_email(user["email"], "Hello!")

    with TestApp(app) as world:
        run = my_workflow.start()
        world.settle()
        run.pause()  # out of memory
        world.settle()
        run.resume()
        world.advance("1h")
        run.result()
        assert world.calls(fetch_user) == [("user_123",)]
        assert world.calls(send_email) == [("user_123@x.org", "Hello!")]


def test_parallel_step_execution(app: App) -> None:
    step, workflow = app.step, app.workflow

    @step()
    async def fetch_user(user_id: str) -> str:
        return f"user {user_id}"

    @step()
    async def fetch_orders(user_id: str) -> list[str]:
        return ["o1"]

    @step()
    async def fetch_preferences(user_id: str) -> dict[str, bool]:
        return {"dark": True}

    @workflow()
    async def load_dashboard(user_id: str) -> dict[str, Any]:
        # All three steps run in parallel
        user, orders, preferences = await asyncio.gather(
            fetch_user(user_id), fetch_orders(user_id), fetch_preferences(user_id)
        )

        return {"user": user, "orders": orders, "preferences": preferences}

    with TestApp(app):
        assert load_dashboard.start("7").result() == {"user": "user 7", "orders": ["o1"], "preferences": {"dark": True}}


def test_starting_child_workflows_from_steps(app: App) -> None:
    step, workflow = app.step, app.workflow

    @step()
    async def process_payment(order_id: str, amount: float) -> None: ...

    @workflow(durable=True)
    async def payment_workflow(order_id: str, amount: float) -> dict[str, Any]:
        await process_payment(order_id, amount)
        return {"paid": True, "amount": amount}

    @step()
    async def process_order(order_id: str) -> dict[str, Any]:
        # Wait for child workflow result
        result = await start_child_workflow(
            payment_workflow,
            order_id,
            99.99,
            wait_for_completion=True,
        )
        return {"order_id": order_id, "payment": result}

    @step()
    async def process_order_async(order_id: str) -> dict[str, Any]:
        # Fire-and-forget: returns a handle immediately
        handle = await start_child_workflow(
            payment_workflow,
            order_id,
            99.99,
            wait_for_completion=False,
        )
        return {"order_id": order_id, "payment_run_id": handle.child_run_id}

    with TestApp(app):
        assert process_order.start("o1").result() == {"order_id": "o1", "payment": {"paid": True, "amount": 99.99}}
        found = process_order_async.start("o2").result()
        assert app.get_run(found["payment_run_id"]).result() == {"paid": True, "amount": 99.99}


def test_sleeping_within_steps(app: App) -> None:
    step = app.step
    responses = [Response(429), Response(200, "body")]

    class httpx:
        @staticmethod
        async def get(url: str) -> Response:
            return responses.pop(0)

    @step()
    async def rate_limited_api_call(url: str) -> Any:
        response = await httpx.get(url)
        if response.status_code == 429:
            await sleep("30ms")  # Non-durable: uses asyncio.sleep on the worker
            response = await httpx.get(url)
        return response.json()

    with TestApp(app) as world:
        begin = world.now
        assert rate_limited_api_call.start("/").result() == "body"
        assert world.now == begin


def test_hooks_are_not_supported_from_steps(app: App) -> None:
    step = app.step
    approval = define_hook("seed_approval", payload=dict)

    @step(max_retries=0)
    async def asks(how: str) -> None:
        await (hook("approval") if how == "hook" else approval())

    with TestApp(app):
        for how in ("hook", "define_hook"):
            with pytest.raises(WrongContextError, match="move the hook to the workflow"):
                asks.start(how).result()


def test_force_local_execution(app: App) -> None:
    step, workflow = app.step, app.workflow

    @step(force_local=True, max_retries=1)
    async def merge_results(user: dict[str, str], orders: list[str]) -> dict[str, Any]:
        """Runs inline - no broker in between."""
        if this_step.attempt == 1:
            raise OSError("retry policies are respected")
        return {"user": user, "total_orders": len(orders), "latest_order": orders[0] if orders else None}

    @workflow()
    async def flow() -> dict[str, Any]:
        return await merge_results({"name": "x"}, ["o2", "o1"])

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == {"user": {"name": "x"}, "total_orders": 2, "latest_order": "o2"}
        assert world.kinds(run) == ["RunStarted", "StepRetrying", "StepCompleted", "RunCompleted"]


def test_use_idempotency_keys_when_calling_external_apis(app: App) -> None:
    step, workflow = app.step, app.workflow
    charges: dict[str, float] = {}

    class stripe:
        @staticmethod
        async def create(amount: float, idempotency_key: str) -> str:
            charges.setdefault(idempotency_key, amount)
            return idempotency_key

    @step()
    async def charge_payment(order_id: str, amount: float) -> str:
        # Use order_id as idempotency key
        return await stripe.create(amount=amount, idempotency_key=f"charge-{order_id}")

    @step(max_retries=1)
    async def charge_by_step(amount: float) -> str:
        # or the step's own: the same for all of its attempts
        key = await stripe.create(amount=amount, idempotency_key=this_step.idempotency_key)
        if this_step.attempt == 1:
            raise OSError("after the charge")
        return key

    @workflow()
    async def flow() -> list[str]:
        return [await charge_payment("o1", 5.0), await charge_by_step(7.0)]

    with TestApp(app):
        flow.start().result()
    assert sorted(charges.values()) == [5.0, 7.0]

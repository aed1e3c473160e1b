"""What users would write: `manage.py test` runs it."""

from __future__ import annotations

from unittest.mock import ANY

from django.test import TestCase, TransactionTestCase

from holdfast.testing import TestApp
from shop.flows import app
from shop.models import Order
from shop.steps import pack
from shop.workflows import fulfil


class Steps(TestCase):
    def test_a_plain_call_is_part_of_the_test_s_transaction(self) -> None:
        order = Order.objects.create(item="tea")
        pack(order.pk)
        order.refresh_from_db()
        assert order.status == "packed"


class Workflows(TransactionTestCase):
    def test_a_run_writes_with_the_orm(self) -> None:
        order = Order.objects.create(item="tea")
        with TestApp(app):
            result = fulfil.start(order.pk).result()
        assert result == {"item": "tea", "weighed_by": ANY, "open": ANY}
        order.refresh_from_db()
        assert order.status == "shipped"

    def test_a_request_starts_a_run(self) -> None:
        with TestApp(app):
            made = self.client.post("/orders", {"item": "milk"})
            assert made.status_code == 202
            seen = self.client.get(f"/orders/{made.json()['order']}")
            assert seen.json()["status"] == "shipped"

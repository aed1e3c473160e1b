"""What every store has to do, as tests. A backend subclasses `StoreContract` and gives a `store` fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore("orders", tmp_path, self.clock)
            yield store
            store.close()

The fixture's store is empty, belongs to the app `orders`, and takes its time from `self.clock`. Only the port is used.
"""

from __future__ import annotations

from holdfast.testing.contract.arranging import LEASE, NAMES, MovableClock, record
from holdfast.testing.contract.attempts import AttemptContract
from holdfast.testing.contract.claims import ClaimContract
from holdfast.testing.contract.clocks import ClockContract
from holdfast.testing.contract.domain_events import EventContract
from holdfast.testing.contract.inboxes import InboxContract
from holdfast.testing.contract.limits import LimitContract
from holdfast.testing.contract.queries import QueryContract
from holdfast.testing.contract.runs import RunContract
from holdfast.testing.contract.schedules import ScheduleContract
from holdfast.testing.contract.workers import WorkerContract

__all__ = ["LEASE", "NAMES", "MovableClock", "StoreContract", "record"]


class StoreContract(
    RunContract,
    ClaimContract,
    InboxContract,
    QueryContract,
    ClockContract,
    WorkerContract,
    ScheduleContract,
    EventContract,
    AttemptContract,
    LimitContract,
):
    """Tests of the Store port, for every backend the same."""

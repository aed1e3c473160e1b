"""An app whose workers write their spans to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from holdfast import App, hook
from holdfast.telemetry.otel import OpenTelemetryInstrument


def _line(span: ReadableSpan) -> str:
    return json.dumps(json.loads(span.to_json())) + "\n"


provider = TracerProvider(shutdown_on_exit=False)
if "SPANS" in os.environ:
    file = Path(os.environ["SPANS"]).open("a", buffering=1)  # noqa: SIM115
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=_line)))
tracer = provider.get_tracer("the shop")
app = App("traced", os.environ.get("TRACED_STORE"), instruments=[OpenTelemetryInstrument(provider)])


@app.step
def load(order: int) -> int:
    with tracer.start_as_current_span("query"):
        return order


@app.step(pool="process")
def render(order: int) -> str:
    with tracer.start_as_current_span("draw"):
        return f"label {order}"


@app.step
async def notify(order: int) -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@app.workflow
async def ship(order: int) -> list[str]:
    load(order)
    await hook("go on")
    return [render(order), await tell(order)]


@app.workflow
async def tell(order: int) -> str:
    return await notify(order)

from __future__ import annotations

from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop.flows import app
from shop.models import Order
from shop.workflows import fulfil


@csrf_exempt
def create(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        run = fulfil.options(id=f"order-{order.pk}")
        transaction.on_commit(partial(run.start, order.pk))
    return JsonResponse({"order": order.pk}, status=202)


def show(request: HttpRequest, pk: int) -> JsonResponse:
    result = app.get_run(f"order-{pk}").result(timeout=30)
    return JsonResponse({"status": Order.objects.get(pk=pk).status, "result": result})


async def show_async(request: HttpRequest, pk: int) -> JsonResponse:
    run = await app.aget_run(f"order-{pk}")
    return JsonResponse({"status": await run.astatus()})


urlpatterns = [path("orders", create), path("orders/<int:pk>", show), path("runs/<int:pk>", show_async)]

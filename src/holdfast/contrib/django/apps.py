"""What Django reads when it starts."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models import Model, QuerySet
from django.utils.module_loading import autodiscover_modules

from holdfast.codec.values import REMEDIES
from holdfast.contrib.django.configuration import configured_app, read_configuration


class HoldfastConfig(AppConfig):
    name = "holdfast.contrib.django"
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        from holdfast.contrib.django import attempts  # not at the top: it needs the registry that is being filled

        REMEDIES[Model] = "pass its primary key (order.pk), and let the step load it: by then it may have changed"
        REMEDIES[QuerySet] = "pass list(queryset.values_list('pk', flat=True)), and let the step load what it needs"
        app = configured_app()
        for around in (attempts.fresh_connections_async, attempts.fresh_connections):
            app.around_step(around)
            arounds = app.definitions.arounds
            arounds.insert(0, arounds.pop())  # outermost: what wraps attempts may use the database too
        autodiscover_modules(*read_configuration().modules)

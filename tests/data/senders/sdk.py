"""A service that counts its calls with OpenTelemetry's SDK: `sdk.py ROUTER`, all else by OTEL_ variables.

Each line that it reads is `good bad`: so many calls more. It says the line again when they are counted. On stderr it
says of each export whether it was taken, and its points: metric, time (ms), good or bad, number of calls.
"""

import json
import sys

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource


class Exporter(OTLPMetricExporter):
    def export(self, metrics_data, *args, **options):
        result = super().export(metrics_data, *args, **options)
        points = [
            (metric.name, point.time_unix_nano // 1_000_000, point.attributes["http.response.status_code"] < 500, count)
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if (count := getattr(point, "count", None) or getattr(point, "value", 0))
        ]
        print(
            json.dumps({"taken": result is MetricExportResult.SUCCESS, "points": points}), file=sys.stderr, flush=True
        )
        return result


router = sys.argv[1]
reader = PeriodicExportingMetricReader(Exporter())
provider = MeterProvider([reader], Resource.create({"service.name": "shop"}))
meter = provider.get_meter("shop")
requests = meter.create_counter("requests")
duration = meter.create_histogram("http.client.request.duration", "s")
for line in sys.stdin:
    good, bad = map(int, line.split())
    for count, status, seconds in ((good, 200, 0.02), (bad, 503, 2.0)):
        if count:
            requests.add(count, {"router_id": router, "http.response.status_code": status})
        for _ in range(count):
            duration.record(seconds, {"server.address": router, "http.response.status_code": status})
    print(line, end="", flush=True)
provider.shutdown()

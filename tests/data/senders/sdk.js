// A service that counts its calls with OpenTelemetry's SDK: `sdk.js ROUTER EXPORTER`, all else by OTEL_ variables.
// Each line that it reads is `good bad`: so many calls more. It says the line again when they are counted.
const { createInterface } = require('node:readline')
const { MeterProvider, PeriodicExportingMetricReader } = require('@opentelemetry/sdk-metrics')
const [router, kind] = process.argv.slice(2)
const { OTLPMetricExporter } = require(kind)

const reader = new PeriodicExportingMetricReader({
  exporter: new OTLPMetricExporter(),
  exportIntervalMillis: Number(process.env.OTEL_METRIC_EXPORT_INTERVAL),
  exportTimeoutMillis: Number(process.env.OTEL_METRIC_EXPORT_INTERVAL),
})
const provider = new MeterProvider({ readers: [reader] })
const meter = provider.getMeter('shop')
const requests = meter.createCounter('requests')
const duration = meter.createHistogram('http.client.request.duration', { unit: 's' })
const lines = createInterface({ input: process.stdin })
lines.on('line', (line) => {
  const [good, bad] = line.split(' ').map(Number)
  for (const [count, status, seconds] of [[good, 200, 0.02], [bad, 503, 2]]) {
    if (count) requests.add(count, { router_id: router, 'http.response.status_code': status })
    for (let n = 0; n < count; n++) {
      duration.record(seconds, { 'server.address': router, 'http.response.status_code': status })
    }
  }
  console.log(line)
})
lines.on('close', () => provider.shutdown())

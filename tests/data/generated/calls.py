"""What a user of the generated Python client does: `calls.py URL KEY PROJECT_ID`, with the client on the path."""

import sys
import time
from uuid import UUID

from circuit_breakers_over_metric_samples_client import AuthenticatedClient
from circuit_breakers_over_metric_samples_client.api.breakers import (
    create_breaker,
    get_state,
    get_states,
    list_breakers,
)
from circuit_breakers_over_metric_samples_client.api.events import list_events
from circuit_breakers_over_metric_samples_client.api.ingest import ingest
from circuit_breakers_over_metric_samples_client.models import (
    Accepted,
    BreakerCreate,
    BreakerCreateKind,
    BreakerCreateOp,
    MetricSample,
    Samples,
    StateBatchType0,
)

url, key, project = sys.argv[1], sys.argv[2], UUID(sys.argv[3])
client = AuthenticatedClient(base_url=url, token=key)
rule = BreakerCreate(
    name="generated", metric="latency", kind=BreakerCreateKind.AVG, op=BreakerCreateOp.GT, threshold=100,
    window_ms=1_000, eval_interval_ms=50, min_state_duration_ms=0, cooldown_ms=60_000,
)  # fmt: skip
made = create_breaker.sync(project, client=client, body=rule)
assert "generated" in {row.name for row in list_breakers.sync(project, client=client).breakers}
now_ms = int(time.time() * 1000)
sample = MetricSample(router_id=str(made.router_id), metric="latency", value=500.0, ts_ms=now_ms)
taken = ingest.sync(project, client=client, body=Samples(samples=[sample] * 3))
assert isinstance(taken, Accepted), taken
assert taken.accepted == 3
deadline = time.monotonic() + 20
while get_state.sync(project, made.breaker.id, client=client).state != "open":
    assert time.monotonic() < deadline
    time.sleep(0.05)
batch = get_states.sync(project, client=client, body=StateBatchType0(breaker_ids=[made.breaker.id]))
assert [row.state for row in batch.states] == ["open"]
events = list_events.sync(project, client=client, breaker_id=made.breaker.id)
assert [event.to_state for event in events.events] == ["open"]
print("done")

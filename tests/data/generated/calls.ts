// What a user of the generated TypeScript types does: `node calls.js URL KEY PROJECT_ID`.
import createClient from "openapi-fetch";
import type { paths } from "./api.d.ts";

const [baseUrl, key, project_id] = process.argv.slice(2) as [string, string, string];
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });
const path = { project_id };

function known<T>(value: T | undefined, error: unknown): T {
  if (value === undefined) throw new Error(JSON.stringify(error));
  return value;
}

const rule = {
  name: "generated-ts", metric: "latency", kind: "avg", op: "gt", threshold: 100,
  window_ms: 1000, eval_interval_ms: 50, min_state_duration_ms: 0, cooldown_ms: 60000,
} as const;
const created = await client.POST("/v1/projects/{project_id}/breakers", { params: { path }, body: rule });
const made = known(created.data, created.error);
const listed = await client.GET("/v1/projects/{project_id}/breakers", { params: { path } });
if (!known(listed.data, listed.error).breakers.some((row) => row.name === "generated-ts")) throw new Error("list");
const sample = { router_id: made.router_id!, metric: "latency", value: 500, ts_ms: Date.now() };
const sent = await client.POST("/v1/projects/{project_id}/ingest", { params: { path }, body: { samples: [sample] } });
if (known(sent.data, sent.error).accepted !== 1) throw new Error("ingest");
const breaker_id = made.breaker.id;
const deadline = Date.now() + 20000;
for (;;) {
  const answer = await client.GET("/v1/projects/{project_id}/breakers/{breaker_id}/state", {
    params: { path: { project_id, breaker_id } },
  });
  if (known(answer.data, answer.error).state === "open") break;
  if (Date.now() > deadline) throw new Error("state");
  await new Promise((resolve) => setTimeout(resolve, 50));
}
const batch = await client.POST("/v1/projects/{project_id}/breakers/state:batch", {
  params: { path }, body: { breaker_ids: [breaker_id] },
});
if (known(batch.data, batch.error).states[0]?.state !== "open") throw new Error("batch");
const events = await client.GET("/v1/projects/{project_id}/events", { params: { path, query: { breaker_id } } });
if (known(events.data, events.error).events[0]?.to_state !== "open") throw new Error("events");
console.log("done");

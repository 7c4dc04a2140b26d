/*
 * Puts a task, takes and acknowledges it, and reads an access token, by a client whose types are
 * generated from the node's own description:
 *
 *   export TIDEWARDEN_URL=http://127.0.0.1:7421 TIDEWARDEN_TOKEN=admin:SECRET ACCOUNT=shop/ada
 *   npm install && npm run generate && npm run build && npm start
 */
import createClient from "openapi-fetch";
import type { components, paths } from "./tidewarden.js";

type Problem = components["schemas"]["Error"];

const client = createClient<paths>({
  baseUrl: process.env.TIDEWARDEN_URL ?? "http://127.0.0.1:7421",
  headers: { Authorization: `Bearer ${process.env.TIDEWARDEN_TOKEN ?? ""}` },
});

/** What was answered, or an exception with the error's word. */
function need<T>({ data, error }: { data?: T; error?: Problem }): T {
  if (data === undefined) throw new Error(`${error?.error}: ${error?.message}`);
  return data;
}

const queue = { path: { queue: "typescript" } };

need(
  await client.POST("/v1/queues/{queue}/tasks", {
    params: queue,
    body: { id: "welcome-1", payload: "hello" },
  }),
);

const { tasks } = need(
  await client.POST("/v1/queues/{queue}/take", {
    params: queue,
    body: { wait_ms: 20_000, lease_ms: 60_000 },
  }),
) as components["schemas"]["TakenTasks"];

for (const task of tasks) {
  console.log(`took ${task.id}: ${task.payload}`);
  const { acked } = need(
    await client.POST("/v1/queues/{queue}/tasks/{id}/ack", {
      params: { path: { queue: task.queue, id: task.id } },
      body: { lease: task.lease, result: "sent" },
    }),
  );
  console.log(`done: ${acked}`);
}

const [provider = "", account = ""] = (process.env.ACCOUNT ?? "shop/ada").split(/\/(.*)/s);
const token = need(
  await client.GET("/v1/tokens/{provider}/{account}", {
    params: { path: { provider, account }, query: { min_ttl: 60, wait: 5 } },
  }),
);
console.log(`${provider}/${account}: a token of generation ${token.generation}`);

const { error } = await client.GET("/v1/tokens/{provider}/{account}", {
  params: { path: { provider, account: "nobody" } },
});
console.log(`no account ${provider}/nobody: ${error?.error}`);

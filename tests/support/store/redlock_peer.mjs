// Enters a section under npm's redlock again and again:
// node redlock_peer.mjs SECONDS NAME WITNESS MASTER…
import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const Redis = require("ioredis");
const Redlock = require("redlock");

const [seconds, name, ...urls] = process.argv.slice(2);
const options = { retryStrategy: () => 50, maxRetriesPerRequest: 1, enableOfflineQueue: true };
const [witness, ...masters] = urls.map((url) => new Redis(url, options));
for (const one of masters) one.on("error", () => undefined);
const redlock = new Redlock(masters, { retryCount: 200, retryDelay: 20, retryJitter: 20 });
let [sections, overlaps] = [0, 0];
const end = Date.now() + 1000 * Number(seconds);
while (Date.now() < end || !sections) {
  let lock;
  try {
    lock = await redlock.lock(name, 20000);
  } catch {
    continue;
  }
  if (await witness.incr("inside") !== 1) overlaps += 1;
  await new Promise((resolve) => setTimeout(resolve, 2));
  await witness.decr("inside");
  sections += 1;
  await lock.unlock().catch(() => undefined);
}
console.log(JSON.stringify({ sections, overlaps }));
process.exit(0);

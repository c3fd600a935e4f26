// What an application does with the client of the npm package ioredis: argv = socket path.
import { Redis } from "ioredis";

const client = new Redis({ path: process.argv[2], username: "kv", password: "x", db: 1 });
client.on("error", (error) => { console.error(error); process.exit(1); });
const found = {};
found.set = await client.set("a", "1");
found.get = await client.get("a");
found.none = await client.get("none");
found.mget = await client.mget("a", "none");
const pipeline = client.pipeline();
for (let n = 0; n < 100; n++) pipeline.set(`k${n}`, `v${n}`);
found.many = (await pipeline.exec()).length;
found.multi = (await client.multi().set("b", "2").get("b").exec()).map(([, answer]) => answer);
found.put = await client.call("SF.PUT", "other", "x", "y");
found.window = await client.call("SF.WPUT", "win", "k", "0", "w");
found.fetch = await client.call("SF.WFETCH", "win", "k", "0", "10");
found.commit = await client.call("SF.COMMIT", "SEQ", "1", "GROUP", "app", "OFFSETS", "flights", "1", "12");
found.offsets = await client.call("SF.OFFSETS");
found.keys = 0;
for await (const keys of client.scanStream({ match: "k*", count: 30 })) found.keys += keys.length;
found.refused = await client.call("EXPIRE", "a", "5").catch((error) => error.message);
console.log(JSON.stringify(found));
client.disconnect();

// What an application does with the client of the npm package redis: argv = socket path, version of the protocol.
import { createClient } from "redis";

const [, , path, resp] = process.argv;
const client = createClient({
  socket: { path }, username: "kv", password: "x", database: 1, RESP: Number(resp),
});
client.on("error", (error) => { console.error(error); process.exit(1); });
await client.connect();
const found = {};
found.set = await client.set("a", "1");
found.get = await client.get("a");
found.none = await client.get("none");
found.mget = await client.mGet(["a", "none"]);
found.many = (await Promise.all(Array.from({ length: 100 }, (_, n) => client.set(`k${n}`, `v${n}`)))).length;
found.multi = await client.multi().set("b", "2").get("b").exec();
found.put = await client.sendCommand(["SF.PUT", "other", "x", "y"]);
found.window = await client.sendCommand(["SF.WPUT", "win", "k", "0", "w"]);
found.fetch = await client.sendCommand(["SF.WFETCH", "win", "k", "0", "10"]);
found.commit = await client.sendCommand(["SF.COMMIT", "SEQ", "1", "GROUP", "app", "OFFSETS", "flights", "1", "12"]);
found.offsets = await client.sendCommand(["SF.OFFSETS"]);
found.keys = [];
for await (const keys of client.scanIterator({ MATCH: "k*", COUNT: 30 })) found.keys.push(...keys);
found.keys = found.keys.length;
found.refused = await client.sendCommand(["EXPIRE", "a", "5"]).catch((error) => error.message);
console.log(JSON.stringify(found));
await client.close();

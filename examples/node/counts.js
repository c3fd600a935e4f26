// Counts records by key, with the state in a sidecar: node counts.js RUN_DIRECTORY BROKER TOPIC
//
//   standfast serve --set app.name=counts --set app.log=kafka://HOST:9092 --set app.state_dir=./state
//   node counts.js ./state/counts/run HOST:9092 clicks
//
// Kafka's consumer group decides which partitions are ours; the sidecar follows. Counts and offsets are committed as
// one, so that after a kill of either process no record is lost and none is counted twice.

import { readFile } from 'node:fs/promises'
import { Kafka, logLevel } from 'kafkajs'
import { createClient } from 'redis'

const [runDirectory, broker, topic] = process.argv.slice(2)
const info = JSON.parse(await readFile(`${runDirectory}/INFO.json`, 'utf8'))

// On any error this process ends and its supervisor starts it again: it then reads on where the state stands.
const fail = (error) => { console.error(error); process.exit(1) }

async function control(method, path, body) {
  const headers = { 'content-type': 'application/json', ...(info.token && { authorization: `Bearer ${info.token}` }) }
  const response = await fetch(info.http + path, { method, headers, body: body && JSON.stringify(body) })
  const answer = await response.json()
  if (!response.ok) throw new Error(`${answer.reason}: ${answer.message}`)
  return answer
}

const kafka = new Kafka({ clientId: info.app, brokers: [broker], logLevel: logLevel.ERROR })
const admin = kafka.admin()
const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
await admin.disconnect()
await control('PUT', '/v1/stores', {
  partitions: topics[0].partitions.length,
  stores: [{ name: 'counts', kind: 'keyvalue' }],
})

let tasks = new Map() // partition -> its connection, its epoch, the next offset to process
let generation = -1
let assigned = Promise.resolve()

async function assign(partitions) {
  for (const task of tasks.values()) task.redis.destroy()
  tasks = new Map()
  generation = (await control('GET', '/v1/assignment')).generation + 1
  const wanted = partitions.map((partition) => ({ partition, role: 'active', sources: [{ topic, partition }] }))
  await control('PUT', '/v1/assignment', { generation, tasks: wanted })
  let gate
  do { gate = await control('GET', '/v1/ready?wait=10000') } while (!gate.ready)
  for (const { partition, epoch } of gate.tasks) {
    // The database number is the partition; a connection that breaks is fenced if it had written.
    const redis = createClient({ socket: { path: info.resp_socket, reconnectStrategy: false }, database: partition })
    redis.on('error', fail)
    await redis.connect()
    // SF.OFFSETS binds the connection to its task: the sidecar then keeps it open, however quiet the topic is.
    const next = Number((await redis.sendCommand(['SF.OFFSETS']))[2] ?? 0) // topic, partition, offset
    tasks.set(partition, { redis, epoch, next })
    consumer.seek({ topic, partition, offset: String(next) })
  }
}

async function count({ redis, epoch }, partition, messages) {
  const keys = messages.map((message) => message.key.toString())
  const counts = new Map()
  for (const key of new Set(keys)) counts.set(key, Number(await redis.sendCommand(['SF.GET', 'counts', key]) ?? 0))
  for (const key of keys) counts.set(key, counts.get(key) + 1)
  const puts = redis.multi()
  for (const [key, value] of counts) puts.addCommand(['SF.PUT', 'counts', key, String(value)])
  await puts.exec()
  const next = Number(messages.at(-1).offset) + 1
  const offsets = ['GROUP', info.app, 'OFFSETS', topic, String(partition), String(next)]
  // Only the commit makes writes durable. EPOCH names the opening of the task: a commit of an older one is refused.
  await redis.sendCommand(['SF.COMMIT', 'SEQ', String(next), 'EPOCH', String(epoch), ...offsets])
  return next
}

const consumer = kafka.consumer({ groupId: info.app, sessionTimeout: 10_000, heartbeatInterval: 1_000 })
consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  assigned = assign(payload.memberAssignment[topic] ?? [])
  assigned.catch(fail)
})
consumer.on(consumer.events.CRASH, ({ payload }) => fail(payload.error))
// Renews the lease. If it has run out, or a newer generation began, the next command fails.
setInterval(() => generation >= 0 && control('POST', '/v1/heartbeat', { generation }).catch(() => {}), 2_000)
for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => consumer.disconnect().finally(() => process.exit(0)))

await consumer.connect()
await consumer.subscribe({ topic, fromBeginning: true })
await consumer.run({
  autoCommit: false, // SF.COMMIT commits the offsets
  eachBatch: async ({ batch, isStale }) => {
    try {
      await assigned
      const task = tasks.get(batch.partition)
      const messages = batch.messages.filter((message) => task && Number(message.offset) >= task.next)
      if (messages.length && !isStale()) task.next = await count(task, batch.partition, messages)
    } catch (error) {
      fail(error)
    }
  },
})

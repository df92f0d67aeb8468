// kafkajs, the pure JavaScript client.
//
// It reads only as a member of a group, and pushes records instead of being polled: a consumer here collects what is
// pushed, and reading from a chosen place is a seek in a group of its own.

'use strict'

const readline = require('readline')
const crypto = require('crypto')

const root = process.argv[3] // the folder whose node_modules holds what package.json asks for
const load = (name) => require(require.resolve(name, { paths: [root] }))

const { Kafka, CompressionTypes, CompressionCodecs, logLevel, ConfigResourceTypes } = load('kafkajs')
const lz4 = load('lz4js')
const xxh32 = load('lz4js/xxh32.js')
const zstd = load('@bokuweb/zstd-wasm')

const STEP_MS = 50
const TOPIC_ALREADY_EXISTS = 36

const LACKS = {
  reset_none: 'kafkajs always resets, to the beginning or the end',
  static_members: 'kafkajs has no group.instance.id',
  fencing: 'kafkajs has no group.instance.id',
}

// Kafka wants frames of independent blocks, and lz4js does not set that flag. Its blocks hold 4 MB, so our frames have
// one block, which depends on nothing: set the flag, and the header's checksum anew.
function lz4Frame(data) {
  const frame = Buffer.from(lz4.compress(data))
  frame[4] |= 0x20
  frame[6] = xxh32.hash(0, frame, 4, 2) >> 8
  return frame
}

CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4Frame(encoder.buffer),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const kafka = new Kafka({
  clientId: 'kafkajs-driver',
  brokers: [process.argv[2]],
  logLevel: logLevel.WARN,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${JSON.stringify(log)}\n`),
  retry: { initialRetryTime: 50, maxRetryTime: 1000, retries: 8 },
})
const admin = kafka.admin({ retry: { initialRetryTime: 50, retries: 4 } }) // few: it retries also what is final
const consumers = new Map()

const decode = (text) => (text === null ? null : Buffer.from(text, 'base64'))
const encode = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

class Refused extends Error {
  constructor(code, message) {
    super(message)
    this.code = code
  }
}

// What the broker said is wrapped once or twice, each kind of error in its own way.
function refusal(error) {
  const inner = (each) => {
    const part = (each.errors || each.groups || each.partitions || [])[0]
    return each.cause || each.originalError || (part && part.error) || part
  }
  for (let each = error; each; each = inner(each)) {
    if (typeof each.code === 'number') return { code: each.code, message: String(each.message) }
  }
  return { code: null, message: String(error && error.stack) }
}

function headersToObject(pairs) {
  const headers = {}
  for (const [name, data] of pairs) (headers[name] = headers[name] || []).push(decode(data))
  return headers
}

function headersToPairs(headers) {
  return Object.entries(headers || {}).flatMap(([name, data]) =>
    (Array.isArray(data) ? data : [data]).map((each) => [name, encode(each)])
  )
}

class Consumer {
  constructor(spec) {
    this.waiting = [] // pushed, not yet polled
    this.positions = new Map() // of each partition, after what was polled
    this.assigned = []
    this.crash = null
    this.starts = spec.assign || []
    this.group = spec.group || `kafkajs-${crypto.randomUUID()}`
    this.consumer = kafka.consumer({
      groupId: this.group,
      heartbeatInterval: 300,
      sessionTimeout: 45000,
      maxWaitTimeInMs: 100,
      allowAutoTopicCreation: true,
      retry: { initialRetryTime: 50, retries: 8, restartOnFailure: async () => true },
    })
    this.topics = spec.topics || [...new Set(this.starts.map((start) => start.topic))]
    this.fromBeginning = spec.reset === 'earliest'
  }

  async start() {
    const { GROUP_JOIN, CRASH } = this.consumer.events
    this.consumer.on(GROUP_JOIN, ({ payload }) => {
      this.assigned = Object.entries(payload.memberAssignment).flatMap(([topic, numbers]) =>
        numbers.map((number) => [topic, number])
      )
    })
    this.consumer.on(CRASH, ({ payload }) => (this.crash = payload.error))
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: this.topics, fromBeginning: this.fromBeginning })
    // What needs the network is asked before running: the seek itself must stand before the first fetch.
    const seeks = await Promise.all(
      this.starts.map(async ({ topic, partition, at }) => ({ topic, partition, offset: await offsetAt(topic, partition, at) }))
    )
    await this.consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        if (!this.wants(topic, partition)) return
        this.waiting.push({
          topic,
          partition,
          offset: Number(message.offset),
          timestamp: Number(message.timestamp),
          key: encode(message.key),
          value: encode(message.value),
          headers: headersToPairs(message.headers),
        })
      },
    })
    for (const { topic, partition, offset } of seeks) {
      this.consumer.seek({ topic, partition, offset: String(offset) })
    }
  }

  wants(topic, partition) {
    return !this.starts.length || this.starts.some((each) => each.topic === topic && each.partition === partition)
  }

  commit(offsets) {
    return this.consumer.commitOffsets(
      offsets.map(([topic, partition, offset]) => ({ topic, partition, offset: String(offset) }))
    )
  }

  async close() {
    await this.consumer.disconnect()
  }
}

async function offsetAt(topic, partition, at) {
  if (typeof at === 'number') return at
  if (typeof at === 'object') {
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, at.time)
    return Number(found.find((each) => each.partition === partition).offset)
  }
  const found = (await admin.fetchTopicOffsets(topic)).find((each) => each.partition === partition)
  return Number(at === 'earliest' ? found.low : found.high)
}

const session = {
  async open({ consumer, ...spec }) {
    const opened = new Consumer(spec)
    consumers.set(consumer, opened)
    await opened.start()
  },

  async poll({ consumer, count, timeout_ms }) {
    const opened = consumers.get(consumer)
    const deadline = Date.now() + timeout_ms
    while (opened.waiting.length < count && Date.now() < deadline) {
      if (opened.crash && !opened.crash.retriable) throw opened.crash
      await pause(STEP_MS)
    }
    const records = opened.waiting.splice(0, count)
    for (const { topic, partition, offset } of records) {
      opened.positions.set(`${topic}/${partition}`, [topic, partition, offset + 1])
    }
    return { records }
  },

  async settle({ consumers: names, partitions, timeout_ms }) {
    const deadline = Date.now() + timeout_ms
    for (;;) {
      const assignments = Object.fromEntries(names.map((name) => [name, consumers.get(name).assigned]))
      const held = Object.values(assignments).flat()
      const distinct = new Set(held.map(String))
      const all = Object.values(assignments).every((each) => each.length > 0)
      if (all && held.length === partitions && distinct.size === partitions) return { assignments }
      if (Date.now() > deadline) {
        throw new Refused(null, `the group did not settle on ${partitions} partitions: ${JSON.stringify(assignments)}`)
      }
      await pause(STEP_MS)
    }
  },

  async commit({ consumer, offsets }) {
    const opened = consumers.get(consumer)
    await opened.commit(offsets || [...opened.positions.values()])
  },

  async close({ consumer }) {
    const opened = consumers.get(consumer)
    consumers.delete(consumer)
    if (opened) await opened.close()
  },

  async reset() {
    for (const consumer of [...consumers.keys()]) await session.close({ consumer })
  },
}

const commands = {
  ...session,

  async hello() {
    await zstd.init()
    await admin.connect()
    const { version } = load('kafkajs/package.json')
    return { client: `kafkajs ${version}, node ${process.version}`, lacks: LACKS }
  },

  async produce({ topic, codec, idempotent, acks, records }) {
    const producer = kafka.producer({ idempotent, allowAutoTopicCreation: true })
    await producer.connect()
    try {
      const messages = records.map((record) => ({
        key: decode(record.key),
        value: decode(record.value),
        partition: record.partition,
        headers: headersToObject(record.headers),
        ...(record.timestamp === null ? {} : { timestamp: String(record.timestamp) }),
      }))
      const sent = await producer.send({ topic, acks, compression: CODECS[codec], messages })
      if (acks === 0) return { results: records.map(() => ({ partition: null, offset: null })) }
      // One answer a partition, with the offset of its first record.
      const next = new Map(sent.map((each) => [each.partition, Number(each.baseOffset)]))
      return {
        results: records.map(({ partition }) => {
          const offset = next.get(partition)
          next.set(partition, offset + 1)
          return { partition, offset }
        }),
      }
    } catch (error) {
      return { results: records.map(() => ({ error: refusal(error) })) }
    } finally {
      await producer.disconnect()
    }
  },

  async committed({ consumer, topic, partition }) {
    return commands.group_offsets({ group: consumers.get(consumer).group, topic, partition })
  },

  async create_topic({ topic, partitions, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const created = await admin.createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries }],
    })
    if (!created) throw new Refused(TOPIC_ALREADY_EXISTS, 'kafkajs answers false when the topic exists')
  },

  delete_topic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),

  list_topics: async () => ({ topics: await admin.listTopics() }),

  async describe_topic({ topic }) {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    return { partitions: topics[0].partitions.length }
  },

  create_partitions: ({ topic, count }) => admin.createPartitions({ topicPartitions: [{ topic, count }] }),

  async alter_config({ topic, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }],
    })
  },

  async describe_config({ topic }) {
    const { resources } = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
    })
    const entries = resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue])
    return { configs: Object.fromEntries(entries) }
  },

  async delete_records({ topic, partition, before }) {
    await admin.fetchTopicOffsets(topic) // makes it learn the leader, which deleting looks for without asking
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
  },

  async list_offsets({ topic, partition, at }) {
    return { offset: await offsetAt(topic, partition, at) }
  },

  async list_groups() {
    const { groups } = await admin.listGroups()
    return { groups: groups.map(({ groupId }) => groupId) }
  },

  async describe_group({ group }) {
    const { groups } = await admin.describeGroups([group])
    return { state: groups[0].state, members: groups[0].members.length }
  },

  delete_group: ({ group }) => admin.deleteGroups([group]),

  async group_offsets({ group, topic, partition }) {
    const found = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    const offset = Number(found[0].partitions.find((each) => each.partition === partition).offset)
    return { offset: offset < 0 ? null : offset }
  },
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { op, ...fields } = JSON.parse(line)
    let reply
    try {
      reply = { ok: (await commands[op](fields)) || {} }
    } catch (error) {
      const refused = refusal(error)
      const own = error.name && (error.name.startsWith('KafkaJS') || error instanceof Refused)
      reply = own ? { error: refused } : { bug: String(error.stack) }
    }
    process.stdout.write(JSON.stringify(reply) + '\n')
  }
  await session.reset()
  await admin.disconnect()
}

main()

import { setTimeout as pause } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../../config.ts'
import type { Metrics } from '../../telemetry/metrics.ts'
import {
  CLOCK_TOLERANCE, createCounters, joinCommonCounters, measureAlone, type Counted, type Counters, type Counting,
  type GivenBack, type OwnCounters, type Query
} from './counters.ts'

// The timeout of a response: about a hundred times the round trip to a Redis in the local network.
const TIMEOUT_MS = 200
// The start waits this long for the connection, so that Redis also counts the first requests.
const START_TIMEOUT_MS = 1_000
// The timeout to connect. After this time without a response, the client also replaces an open connection.
const CONNECTION_TIMEOUT_MS = 1_000
const MAX_RECONNECT_DELAY_MS = 1_000
// A key may contain a client address, and a proxy may forward an address of any length.
const MAX_KEY_LENGTH = 200
// Hash tag: puts all keys in one cluster slot, because one script counts all requests of a turn of the event loop.
const PREFIX = '{strongroom}:limit:'
const NO_RESPONSE = 'no answer'
// This key is counted for a query without requests, to test whether Redis accepts writes: a full Redis answers PING.
const PROBE = [[`${PREFIX}probe`], [1_000]] as const

// Counts requests atomically, so that no key is left without an expiry. The clock of Redis determines the end of a
// window, so that the end is the same for all instances. The response starts with the time of Redis, because an
// instance's clock may differ. A window starts again if its key is not a hash, its count is invalid, or its end is too
// late: then another program wrote the key, or a clock was set. HSET is the first write, because a full Redis refuses
// only the first write of a script.
const COUNT = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local response = { now }
for i, key in ipairs(KEYS) do
  local kept = redis.pcall('HMGET', key, 'count', 'end')
  if kept.err then
    if not string.find(kept.err, 'WRONGTYPE') then return kept end
    redis.call('DEL', key)
  end
  local count, last = tonumber(kept[1]), tonumber(kept[2])
  local isNew = not (count and count >= 0 and count + 1 < 2^53 and last and last > now and last <= now + ARGV[i])
  if isNew then count, last = 0, now + ARGV[i] end
  count = count + 1
  local text = string.format('%.0f', last)
  redis.call('HSET', key, 'count', string.format('%.0f', count), 'end', text)
  if isNew then redis.call('PEXPIREAT', key, text) end
  response[2 * i], response[2 * i + 1] = count, last
end
return response`

// Implements `Counters.giveBack`. HSET keeps the expiry of the key.
const GIVE_BACK = `
local kept = redis.pcall('HMGET', KEYS[1], 'count', 'end')
if kept.err then return string.find(kept.err, 'WRONGTYPE') and 0 or kept end
local count = tonumber(kept[1])
if count and tonumber(kept[2]) == tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], 'count', string.format('%.0f', math.max(0, math.min(count, ARGV[1]) - 1)))
end
return 0`

/**
 * Counters in Redis, which all instances share. One round trip counts all requests of a turn of the event loop. While
 * Redis is slow, unreachable or refuses writes, `own` counts, starting from the last counts of Redis. Logs a warning
 * when `own` begins to count and when Redis counts again. Waits at most one second for the first connection.
 */
export async function countInRedis (
  app: FastifyInstance, { tls, ...server }: NonNullable<Config['redis']>, own: OwnCounters = createCounters(),
  metrics?: Metrics
): Promise<Counters> {
  const { Redis } = await import('ioredis')
  const client = new Redis({
    ...server,
    ...tls && { tls: {} },
    lazyConnect: true,
    connectTimeout: CONNECTION_TIMEOUT_MS,
    socketTimeout: CONNECTION_TIMEOUT_MS,
    retryStrategy: (times) =>
      Math.min(MAX_RECONNECT_DELAY_MS, 25 * 2 ** Math.min(times, 10)) * (0.5 + Math.random() / 2),
    // `own` counts a request without a response in time, so commands are neither queued nor resent.
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    // The ready check is not needed, because the first count also checks whether Redis accepts writes.
    enableReadyCheck: false,
    protocol: 2,
    disableClientInfo: true
  })
  client.defineCommand('countRequests', { lua: COUNT })
  client.defineCommand('giveBackRequest', { lua: GIVE_BACK, numberOfKeys: 1 })
  const { countRequests, giveBackRequest } = client as unknown as {
    countRequests (keys: number, ...keysAndLengths: (string | number)[]): Promise<unknown>
    giveBackRequest (key: string, limit: number, end: number): Promise<unknown>
  }

  let reason = NO_RESPONSE
  // Milliseconds by which the clock of this machine is ahead of the clock of Redis.
  let ahead = 0
  const learnReason = (error: Error & { code?: string }) => { reason = reasonOf(error) ?? reason }
  const measure = measureAlone(metrics, 'redis')
  const member = joinCommonCounters(send, (isAlone) => {
    measure(isAlone)
    if (isAlone) app.log.warn({ reason }, 'Redis cannot count: each instance counts its limits by itself')
    else app.log.warn('limits are counted over all instances again, in Redis')
    reason = NO_RESPONSE
  }, { timeout: TIMEOUT_MS, own })
  client.on('error', learnReason)
  client.on('ready', member.ask)
  app.addHook('onClose', async () => { client.disconnect() })
  await Promise.race([client.connect().catch(learnReason), pause(START_TIMEOUT_MS, undefined, { ref: false })])
  if (client.status !== 'ready') member.ask()
  return member

  function send ({ counting, of, back }: Query): boolean {
    if (client.status !== 'ready') return false
    const counted = back === undefined ? countAll(of) : giveBack(back)
    counted.then((are) => {
      if (are === undefined) member.giveUp(counting)
      else member.receive({ counted: counting, are })
    }, (error: Error) => {
      learnReason(error)
      member.giveUp(counting)
    })
    return true
  }

  // `countAll` and `giveBack` return undefined if the response does not come from the script.
  async function countAll (of: Counting[]): Promise<Counted[] | undefined> {
    const [keys, lengths] = of.length === 0 ? PROBE : [of.map(keyOf), of.map(([, , length]) => length)]
    const response = await countRequests.call(client, keys.length, ...keys, ...lengths)
    return isResponse(response, keys.length) ? read(response) : undefined
  }

  // If a clock was set since the request was counted, the end differs from the end in Redis: the request stays counted.
  async function giveBack ([counting, end]: GivenBack): Promise<Counted[] | undefined> {
    const [, , , limit] = counting
    const response = await giveBackRequest.call(client, keyOf(counting), limit, end - ahead)
    return response === 0 ? [] : undefined
  }

  // Converts the ends of the windows to the clock of this machine.
  function read ([now = 0, ...pairs]: number[]): Counted[] {
    const difference = Date.now() - now
    if (Math.abs(difference - ahead) > CLOCK_TOLERANCE) ahead = difference
    const counted: Counted[] = []
    for (let i = 0; i < pairs.length; i += 2) counted.push([pairs[i]!, pairs[i + 1]! + ahead])
    return counted
  }
}

const keyOf = ([group, key]: Counting) => `${PREFIX}${group}:${key}`.slice(0, MAX_KEY_LENGTH)

// Checks the response, because the server may be another product than Redis, or may have renamed commands.
const isResponse = (response: unknown, keys: number): response is number[] =>
  Array.isArray(response) && response.length === 1 + 2 * keys && response.every(Number.isSafeInteger)

// The error code to log, such as ECONNREFUSED, READONLY or OOM. The rest of the message may contain the sent command.
const reasonOf = ({ code, message }: Error & { code?: string }): string | undefined =>
  code ?? /^[A-Z]{2,20}(?= )/.exec(message)?.[0]

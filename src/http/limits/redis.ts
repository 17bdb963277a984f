import { setTimeout as pause } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../../config.ts'
import type { Metrics } from '../../telemetry/metrics.ts'
import {
  CLOCK_TOLERANCE, createCounters, joinCommonCounters, measureAlone, type Counted, type Counters, type Counting,
  type GivenBack, type OwnCounters, type Query
} from './counters.ts'

// For the result of a request: a hundred times the round trip to a Redis nearby.
const TIMEOUT_MS = 200
// For the first connection, so that the first requests are counted in Redis.
const START_TIMEOUT_MS = 1_000
// For a new connection, and for a silent connection, which is replaced.
const CONNECTION_TIMEOUT_MS = 1_000
const MAX_RECONNECT_DELAY_MS = 1_000
// A proxy may forward an address of any length.
const MAX_KEY_LENGTH = 200
// Hash tag: all keys are in one cluster slot, because one script counts the requests of a turn of the event loop.
const PREFIX = '{strongroom}:limit:'
const NO_RESPONSE = 'no answer'
// Counted when no request is, to find out whether Redis can be written to. A PING succeeds on a full Redis.
const PROBE = [[`${PREFIX}probe`], [1_000]] as const

// Creates a window and its end in one step, so that no key is without an end. The end goes by the clock of Redis, so
// that it is the same for all instances; the result has the time of Redis for instances whose clock differs. A window
// begins anew if its key is not a hash, its count is not a count, or its end is too late: another program wrote it, or
// a clock was set since. HSET comes before the other writes: after a first write, a full Redis does not refuse HSET.
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

// Removes one request from the window with this end, as `Counters.giveBack` says. HSET keeps the expiry of the key.
const GIVE_BACK = `
local kept = redis.pcall('HMGET', KEYS[1], 'count', 'end')
if kept.err then return string.find(kept.err, 'WRONGTYPE') and 0 or kept end
local count = tonumber(kept[1])
if count and tonumber(kept[2]) == tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], 'count', string.format('%.0f', math.max(0, math.min(count, ARGV[1]) - 1)))
end
return 0`

/**
 * Counters in Redis, which all instances share. The requests of one turn of the event loop are one round trip. While
 * Redis is slow, away or refuses writes, `own` counts, from the last counts of Redis. Each change between the two logs
 * one warning. Waits at most a second for the first connection.
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
    // A request without a response in time is counted by `own`.
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    // The first count checks more: whether Redis can be written to.
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
  // By how many milliseconds the clock of this machine is ahead of that of Redis.
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

  // Both results are undefined if the response is not that of the script.
  async function countAll (of: Counting[]): Promise<Counted[] | undefined> {
    const [keys, lengths] = of.length === 0 ? PROBE : [of.map(keyOf), of.map(([, , length]) => length)]
    const response = await countRequests.call(client, keys.length, ...keys, ...lengths)
    return isResponse(response, keys.length) ? read(response) : undefined
  }

  // If a clock was set since the request was counted, the ends differ, and the request stays counted.
  async function giveBack ([counting, end]: GivenBack): Promise<Counted[] | undefined> {
    const [, , , limit] = counting
    const response = await giveBackRequest.call(client, keyOf(counting), limit, end - ahead)
    return response === 0 ? [] : undefined
  }

  // Converts the ends to the clock of this machine.
  function read ([now = 0, ...pairs]: number[]): Counted[] {
    const difference = Date.now() - now
    if (Math.abs(difference - ahead) > CLOCK_TOLERANCE) ahead = difference
    const counted: Counted[] = []
    for (let i = 0; i < pairs.length; i += 2) counted.push([pairs[i]!, pairs[i + 1]! + ahead])
    return counted
  }
}

const keyOf = ([group, key]: Counting) => `${PREFIX}${group}:${key}`.slice(0, MAX_KEY_LENGTH)

// The server may not be a Redis, or may have changed the commands.
const isResponse = (response: unknown, keys: number): response is number[] =>
  Array.isArray(response) && response.length === 1 + 2 * keys && response.every(Number.isSafeInteger)

// A word such as ECONNREFUSED, WRONGPASS, READONLY or OOM. The rest of an error may contain the command that was sent.
const reasonOf = ({ code, message }: Error & { code?: string }): string | undefined =>
  code ?? /^[A-Z]{2,20}(?= )/.exec(message)?.[0]

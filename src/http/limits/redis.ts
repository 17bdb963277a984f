import { setTimeout as pause } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../../config.ts'
import type { Metrics } from '../../telemetry/metrics.ts'
import { CLOCK_TOLERANCE, shareCounters, type Counted, type Counters, type Counting } from './counters.ts'

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

// Counts requests atomically, so that no key is left without an expiry. The clock of Redis determines the end of a
// window, so that the end is the same for all instances. The response starts with the time of Redis, because an
// instance's clock may differ. A window starts again if its key is not a hash, its count is invalid, or its end is too
// late: then another program wrote the key, or a clock was set. HSET is the first write, because a full Redis refuses
// only the first write of a script. `back` is the end of the window from which a request is removed; 0: counts one. The
// request stays counted if a clock was set since then, because the ends differ.
const COUNT = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local response = { now }
for i, key in ipairs(KEYS) do
  local length, limit, back = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local kept = redis.pcall('HMGET', key, 'count', 'end')
  if kept.err then
    if not string.find(kept.err, 'WRONGTYPE') then return kept end
    redis.call('DEL', key)
  end
  local count, last = tonumber(kept[1]), tonumber(kept[2])
  local isNew = not (count and count >= 0 and count + 1 < 2^53 and last and last > now and last <= now + length)
  if isNew then count, last = 0, now + length end
  if back == 0 then count = count + 1 elseif back == last then count = math.max(0, math.min(count, limit) - 1) end
  if back == 0 or back == last then
    local text = string.format('%.0f', last)
    redis.call('HSET', key, 'count', string.format('%.0f', count), 'end', text)
    if isNew then redis.call('PEXPIREAT', key, text) end
  end
  response[2 * i], response[2 * i + 1] = count, last
end
return response`

/**
 * Counters in Redis, which all instances share. One round trip counts all requests of a turn of the event loop. While
 * Redis is slow, unreachable or refuses writes, `own` counts, starting from the last counts of Redis. Logs a warning
 * when `own` begins to count and when Redis counts again. Waits at most one second for the first connection.
 */
export async function countInRedis (
  app: FastifyInstance, { tls, ...server }: NonNullable<Config['redis']>, own: Counters, metrics?: Metrics
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
  const { countRequests } = client as unknown as {
    countRequests (keys: number, ...keysAndNumbers: (string | number)[]): Promise<unknown>
  }

  let lastError: Error | undefined
  // Milliseconds by which the clock of this machine is ahead of the clock of Redis.
  let ahead = 0
  const counters = shareCounters(count, {
    at: 'redis',
    timeout: TIMEOUT_MS,
    metrics,
    own,
    onChange (error) {
      if (error === undefined) app.log.warn('limits are counted over all instances again, in Redis')
      else app.log.warn({ reason: reasonOf(error) }, 'Redis cannot count: each instance counts its limits by itself')
    }
  })
  client.on('error', (error) => { lastError = error })
  client.on('ready', counters.ask)
  app.addHook('onClose', async () => { client.disconnect() })
  await Promise.race([client.connect().catch(() => {}), pause(START_TIMEOUT_MS, undefined, { ref: false })])
  if (client.status !== 'ready') counters.ask()
  return counters

  async function count (of: Counting[]): Promise<Counted[]> {
    if (client.status !== 'ready') throw lastError ?? new Error('not connected')
    const response = await countRequests.call(client, of.length, ...of.map(keyOf),
      ...of.flatMap(([, , length, limit, end]) => [length, limit, end === undefined ? 0 : end - ahead]))
    if (!isResponse(response, of.length)) throw new Error('not a response of the script')
    const difference = Date.now() - response[0]!
    if (Math.abs(difference - ahead) > CLOCK_TOLERANCE) ahead = difference
    // Converts the ends of the windows to the clock of this machine.
    return of.map((_, i) => [response[2 * i + 1]!, response[2 * i + 2]! + ahead])
  }
}

const keyOf = ([group, key]: Counting) => `${PREFIX}${group}:${key}`.slice(0, MAX_KEY_LENGTH)

// Checks the response, because the server may be another product than Redis, or may have renamed commands.
const isResponse = (response: unknown, keys: number): response is number[] =>
  Array.isArray(response) && response.length === 1 + 2 * keys && response.every(Number.isSafeInteger)

// The error code to log, such as ECONNREFUSED, READONLY or OOM. The rest of the message may contain the sent command.
const reasonOf = ({ code, message }: Error & { code?: string }): string =>
  code ?? /^[A-Z]{2,20}(?= )/.exec(message)?.[0] ?? 'no answer'

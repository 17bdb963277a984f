import { setTimeout as pause } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../config.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import {
  createCounters, joinCommonCounters, measureAlone, SAME_CLOCK, type Counted, type Counters, type Counting,
  type GivenBack, type OwnCounters, type Question
} from './counters.ts'

// Milliseconds. A request that is counted waits for no longer; it is a hundred times what a Redis nearby takes.
const DEADLINE = 200
// How long a start waits for the first connection, so that its first requests are counted together already.
const START = 1_000
// A connection on which nothing comes for so long is made anew, and so is one that does not come about.
const SILENCE = 1_000
const LONGEST_PAUSE = 1_000
// What a proxy passes on as an address may be anything, at any length.
const MOST_KEY = 200
// One slot, where slots are: all that is counted in one turn is one script.
const PREFIX = '{strongroom}:limit:'
const SILENT = 'no answer'
// Asked by who does not know whether it may write there.
const PROBE = [[`${PREFIX}probe`], [1_000]] as const

// A window and its end begin with its first request, in one step: no key is without an end. The clock is that of Redis,
// so that a window has one end, whoever asks; and it is told, for those whose own is another. What none of this window
// can have, as a key that is no hash, a count that is none, or an end too far away, was written by somebody else, or by
// a clock that was set since: the window begins anew. What needs room is written first: behind anything else that
// writes, as DEL, a Redis that is full would take it all the same.
const COUNT = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = { now }
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
  answer[2 * i], answer[2 * i + 1] = count, last
end
return answer`

// Takes one request out of the window with this end, as `Counters.giveBack` says. HSET keeps the end of the key.
const GIVE_BACK = `
local kept = redis.pcall('HMGET', KEYS[1], 'count', 'end')
if kept.err then return string.find(kept.err, 'WRONGTYPE') and 0 or kept end
local count = tonumber(kept[1])
if count and tonumber(kept[2]) == tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], 'count', string.format('%.0f', math.max(0, math.min(count, ARGV[1]) - 1)))
end
return 0`

/**
 * Counters in Redis, which all instances share: one round trip for what is counted in a turn of the event loop. While
 * Redis does not answer, is not there or refuses, `own` counts, from what was heard last on. Each change between the
 * two is one warning. Waits for the first connection for a second at most, and for nothing afterwards.
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
    connectTimeout: SILENCE,
    socketTimeout: SILENCE,
    retryStrategy: (times) => Math.min(LONGEST_PAUSE, 25 * 2 ** Math.min(times, 10)) * (0.5 + Math.random() / 2),
    // What was not answered in time is counted elsewhere by then.
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    // The first count is the check, and shows more: whether it may be written there.
    enableReadyCheck: false,
    protocol: 2,
    disableClientInfo: true
  })
  client.defineCommand('countRequests', { lua: COUNT })
  client.defineCommand('giveBackRequest', { lua: GIVE_BACK, numberOfKeys: 1 })
  const { countRequests, giveBackRequest } = client as unknown as {
    countRequests (keys: number, ...all: (string | number)[]): Promise<unknown>
    giveBackRequest (key: string, most: number, end: number): Promise<unknown>
  }

  let reason = SILENT
  let ahead = 0
  const learnReason = (error: Error & { code?: string }) => { reason = reasonOf(error) ?? reason }
  const measure = measureAlone(metrics, 'redis')
  const member = joinCommonCounters(send, (isAlone) => {
    measure(isAlone)
    if (isAlone) app.log.warn({ reason }, 'Redis cannot count: each instance counts its limits by itself')
    else app.log.warn('limits are counted over all instances again, in Redis')
    reason = SILENT
  }, { deadline: DEADLINE, own })
  client.on('error', learnReason)
  client.on('ready', member.ask)
  app.addHook('onClose', async () => { client.disconnect() })
  await Promise.race([client.connect().catch(learnReason), pause(START, undefined, { ref: false })])
  if (client.status !== 'ready') member.ask()
  return member

  function send ({ counting, of, back }: Question): boolean {
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

  // Both are undefined when the answer is not that of the script.
  async function countAll (of: Counting[]): Promise<Counted[] | undefined> {
    const [keys, windows] = of.length === 0 ? PROBE : [of.map(keyOf), of.map(([, , window]) => window)]
    const answer = await countRequests.call(client, keys.length, ...keys, ...windows)
    return isAnswer(answer, keys.length) ? read(answer) : undefined
  }

  // If the clocks were set since the request was counted, the ends differ, and the request stays counted.
  async function giveBack ([counting, end]: GivenBack): Promise<Counted[] | undefined> {
    const [, , , most] = counting
    const answer = await giveBackRequest.call(client, keyOf(counting), most, end - ahead)
    return answer === 0 ? [] : undefined
  }

  // The ends by this machine's clock, however wrong it is.
  function read ([now = 0, ...pairs]: number[]): Counted[] {
    const difference = Date.now() - now
    if (Math.abs(difference - ahead) > SAME_CLOCK) ahead = difference
    const counted: Counted[] = []
    for (let i = 0; i < pairs.length; i += 2) counted.push([pairs[i]!, pairs[i + 1]! + ahead])
    return counted
  }
}

const keyOf = ([group, key]: Counting) => `${PREFIX}${group}:${key}`.slice(0, MOST_KEY)

// What speaks like a Redis may be none, or have been told to do something else.
const isAnswer = (answer: unknown, keys: number): answer is number[] =>
  Array.isArray(answer) && answer.length === 1 + 2 * keys && answer.every(Number.isSafeInteger)

// A word, as ECONNREFUSED, WRONGPASS, READONLY or OOM: what else an error says may hold what was sent.
function reasonOf ({ code, message }: Error & { code?: string }): string | undefined {
  return code ?? /^[A-Z]{2,20}(?= )/.exec(message)?.[0]
}

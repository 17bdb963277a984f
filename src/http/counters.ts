import { LRUCache } from 'lru-cache'
import type { Metrics } from '../telemetry/metrics.ts'

// Counters kept per group; the ones that nobody used for longest go first.
const MOST_KEYS = 20_000

/**
 * A request to count: in which group and under which key, in a window of how many milliseconds, and how many may be in
 * it.
 */
export type Counting = [group: string, key: string, window: number, most: number]
/** How many requests are in the window, this one included, and when the window ends. */
export type Counted = [count: number, end: number]

/** Counts requests in fixed windows. */
export interface Counters {
  count (counting: Counting, done: (...counted: Counted) => void): void
  /**
   * Takes a counted request out of its window again, which is the one with this `end`; a later window stays as it is.
   * Requests past the limit used nothing up, so what is left afterwards is one request more, however many were refused
   * meanwhile.
   */
  giveBack (counting: Counting, end: number, done: () => void): void
  /** Whether the last request of this key was past its limit, and its window goes on. Counts nothing. */
  isPast (group: string, key: string): boolean
}

/** Measures whether those who are to count together count alone; answers what to call when that changes. */
export function measureAlone (
  metrics: Metrics | undefined, without: 'redis' | 'supervisor'
): (isAlone: boolean) => void {
  const name = `strongroom_limits_without_${without}`
  const times = metrics?.counter(`${name}_total`, 'How often each process began to count limits for itself')
  let alone = 0
  metrics?.watch('gauge', name, 'Whether each process counts limits for itself', () => alone)
  return (isAlone) => {
    alone = Number(isAlone)
    times?.inc(alone)
  }
}

/** Clocks that differ by less milliseconds are taken for the same: a window then has one end to the millisecond. */
export const SAME_CLOCK = 1_000

// One that ends later than a window that begins now is of a time that the clock was set back from.
const goesOn = (end: number, window: number) => {
  const left = end - Date.now()
  return left > 0 && left <= window + SAME_CLOCK
}

/** Counters that go on where others, which count for more than this process, have left off. */
export interface OwnCounters extends Counters {
  /** The key is past its limit until the window ends. */
  mark (counting: Counting, end: number): void
  /** The moment until which the key is past its limit; 0 where it is not known to be. */
  pastUntil (group: string, key: string): number
  /** What others counted, so that whoever is past a limit stays so when they do not answer any more. */
  learn (counting: Counting, ...counted: Counted): void
}

/** Counters of this process alone. */
export function createCounters (): OwnCounters {
  const groups = new Map<string, LRUCache<string, { count: number, end: number }>>()
  const past = new LRUCache<string, { end: number, window: number }>({ max: MOST_KEYS })
  const mark = ([group, key, window]: Counting, end: number) => { past.set(`${group} ${key}`, { end, window }) }
  const pastUntil = (group: string, key: string) => {
    const until = past.get(`${group} ${key}`)
    return until !== undefined && goesOn(until.end, until.window) ? until.end : 0
  }
  const countersOf = (group: string) => {
    let counters = groups.get(group)
    if (counters === undefined) groups.set(group, counters = new LRUCache({ max: MOST_KEYS }))
    return counters
  }

  return {
    mark,
    pastUntil,
    isPast: (group, key) => pastUntil(group, key) > 0,
    count (counting, done) {
      const [group, key, window, most] = counting
      const counters = countersOf(group)
      let counter = counters.get(key)
      if (counter === undefined || !goesOn(counter.end, window)) {
        counters.set(key, counter = { count: 0, end: Date.now() + window })
      }
      if (++counter.count > most) mark(counting, counter.end)
      done(counter.count, counter.end)
    },
    giveBack ([group, key, , most], end, done) {
      const counter = countersOf(group).peek(key)
      if (counter?.end === end) {
        counter.count = Math.max(0, Math.min(counter.count, most) - 1)
        past.delete(`${group} ${key}`)
      }
      done()
    },
    learn (counting, count, end) {
      const [group, key, window, most] = counting
      const counters = countersOf(group)
      const counter = counters.get(key)
      // What was counted here meanwhile, the others do not know.
      if (counter === undefined || !goesOn(counter.end, window)) counters.set(key, { count, end })
      else if (count > counter.count) Object.assign(counter, { count, end })
      if (count > most) mark(counting, end)
    }
  }
}

/** What a member asks for: to count requests, or to give one back. The answer has the same number. */
export interface Question { counting: number, of: Counting[], back?: GivenBack }
export type GivenBack = [counting: Counting, end: number]
export interface Answer { counted: number, are: Counted[] }
interface Notice { past: [counting: Counting, end: number][] }

/** Counts for all members: what each of them sends is answered with how many there were in all. */
export function createCommonCounters () {
  const counters = createCounters()
  const members = new Set<(message: Answer | Notice) => void>()

  /** `send` reaches the member; the answer takes what it sends. */
  function join (send: (message: Answer | Notice) => void) {
    members.add(send)
    return {
      receive (message: unknown) {
        const { counting, of, back } = message as Question
        if (back !== undefined) counters.giveBack(...back, () => {})
        const are: Counted[] = []
        const past: Notice['past'] = []
        for (const one of of) {
          counters.count(one, (count, end) => {
            are.push([count, end])
            // Who sent it knows by the answer.
            if (count === one[3] + 1) past.push([one, end])
          })
        }
        send({ counted: counting, are })
        if (past.length > 0) for (const other of members) if (other !== send) other({ past })
      },
      leave () { members.delete(send) }
    }
  }

  return { join }
}

// Milliseconds. Whoever counts for all does little else and answers in less than one, on a busy machine in some more.
const DEADLINE = 1_000
// How often a member that counts by itself asks whether it has to.
const AGAIN = 1_000

interface Member extends OwnCounters {
  /** Takes what is sent to this member. */
  receive (message: unknown): void
  /** Asks whether somebody counts for all, and says by `onChange` when that has changed. */
  ask (): void
  /** Takes that a question will not be answered. */
  giveUp (number: number): void
}

interface MemberOptions {
  /** Milliseconds after which an answer is not waited for any longer. */
  deadline?: number
  /** What counts while nobody does for all. */
  own?: OwnCounters
}

/**
 * The counters of a member. What is counted in one turn of the event loop is one message. When no answer comes in
 * time, or nobody is there to send to, it counts by itself, from what it heard last on, until one does: no request
 * waits for longer than the deadline.
 *
 * @param send false when nobody is there any more
 * @param onChange called when it begins to count by itself (true), and when that ends (false)
 */
export function joinCommonCounters (
  send: (message: Question) => boolean, onChange: (isAlone: boolean) => void,
  { deadline = DEADLINE, own = createCounters() }: MemberOptions = {}
): Member {
  const open = new Map<number, { asked: Asked[], late: NodeJS.Timeout, done: () => void }>()
  let gathered: Asked[] = []
  let last = 0
  let isAlone = false
  let askedAt = 0

  return {
    isPast: own.isPast,
    mark: own.mark,
    pastUntil: own.pastUntil,
    learn: own.learn,
    giveUp,
    ask: () => ask([]),
    count (counting, done) {
      if (isAlone) {
        countAlone({ counting, done })
        if (performance.now() - askedAt > AGAIN) ask([])
      } else if (gathered.push({ counting, done }) === 1) {
        setImmediate(() => {
          const asked = gathered
          gathered = []
          ask(asked)
        })
      }
    },
    giveBack (counting, end, done) {
      own.giveBack(counting, end, () => {})
      if (isAlone) done()
      else ask([], [counting, end], done)
    },
    receive (message) {
      const { counted, are, past } = message as Partial<Answer & Notice>
      for (const one of past ?? []) own.mark(...one)
      if (counted !== undefined) answered(counted, are!)
    }
  }

  function ask (asked: Asked[], back?: GivenBack, done = () => {}) {
    askedAt = performance.now()
    const number = ++last
    // Where this process itself was busy for too long, the answer is read before it counts as late.
    const late = setTimeout(() => { setImmediate(giveUp, number) }, deadline).unref()
    open.set(number, { asked, late, done })
    const question = { counting: number, of: asked.map(({ counting }) => counting) }
    if (!send(back === undefined ? question : { ...question, back })) giveUp(number)
  }

  function answered (number: number, are: Counted[]) {
    const given = open.get(number)
    // Whoever answers late would be waited for again, and again in vain.
    if (given === undefined) return
    const { asked, late, done } = given
    open.delete(number)
    clearTimeout(late)
    if (isAlone) onChange(isAlone = false)
    for (const [i, { counting, done }] of asked.entries()) {
      const counted = are[i]!
      own.learn(counting, ...counted)
      done(...counted)
    }
    done()
  }

  function giveUp (number: number) {
    const given = open.get(number)
    if (given === undefined) return
    open.delete(number)
    clearTimeout(given.late)
    if (!isAlone) onChange(isAlone = true)
    for (const one of given.asked) countAlone(one)
    given.done()
  }

  // What counts instead may not know what was heard here.
  function countAlone ({ counting, done }: Asked) {
    const [group, key, , most] = counting
    const end = own.pastUntil(group, key)
    if (end > 0) done(most + 1, end)
    else own.count(counting, done)
  }
}

interface Asked { counting: Counting, done: (...counted: Counted) => void }

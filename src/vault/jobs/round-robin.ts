import { rest } from './background.ts'

/** The result of a step: continue from a place; waiting for a row that another transaction has locked; or finished. */
export type Left<Place> = { more: Place } | 'held' | 'nothing'

/** A source of jobs of many organizations, each in steps. */
export interface Works<One, Place> {
  /** A page of jobs after one, in a fixed order. Each round reads the list again. */
  list (after: One | undefined, limit: number): Promise<One[]>
  nameOf (one: One): string
  /** Does one step, from the place of the previous step if that is still known. */
  take (one: One, place: Place | undefined): Promise<Left<Place>>
  interrupted (error: unknown, one?: One): void
  /** Called with jobs that have been locked for a while. */
  waiting? (held: One[]): void
  /** Milliseconds until a failed job is retried. */
  putOff?: number | undefined
}

const PAGE = 100
// Shorter than the interval of the background, so that each run retries.
const PUT_OFF = 20_000
// Milliseconds until a locked job is checked again, doubled from `first` to `last`. A finished job waits for `last`
// while others continue.
const PAUSE = { first: 10, last: 1_000 }
// Maximum jobs whose state is kept. Others start from the beginning, where finished work is skipped.
const MOST_REMEMBERED = 1_000

interface Standing<Place> { place?: Place, pause: number, until: number, isHeld: boolean }

/**
 * Runs jobs round robin: one step of each job in a round, so that a large job does not delay others. A failed job is
 * postponed, even if the background is woken earlier.
 */
export function byTurns<One, Place> (
  { list, nameOf, take, interrupted, waiting, putOff = PUT_OFF }: Works<One, Place>
): (isStopped: () => boolean) => Promise<void> {
  const failed = new Map<string, number>()

  async function * all () {
    for (let page = await list(undefined, PAGE); ; page = await list(page.at(-1), PAGE)) {
      yield * page
      if (page.length < PAGE) return
    }
  }

  async function attempt (one: One, name: string, place: Place | undefined): Promise<Left<Place>> {
    const began = performance.now()
    try {
      return await take(one, place)
    } catch (error) {
      failed.set(name, performance.now() + putOff)
      interrupted(error, one)
      return 'nothing'
    } finally {
      await rest(began)
    }
  }

  async function work (isStopped: () => boolean) {
    for (const [name, until] of failed) if (until <= performance.now()) failed.delete(name)
    let standings = new Map<string, Standing<Place>>()
    for (;;) {
      const next: typeof standings = new Map()
      const stuck: One[] = []
      let isMore = false
      for await (const one of all()) {
        if (isStopped()) return
        const name = nameOf(one)
        if ((failed.get(name) ?? 0) > performance.now()) continue
        let standing = standings.get(name) ?? { pause: 0, until: 0, isHeld: false }
        if (standing.until <= performance.now()) {
          const left = await attempt(one, name, standing.place)
          if (typeof left === 'object') isMore = true
          if (left === 'held' && standing.pause === PAUSE.last) stuck.push(one)
          standing = after(left, standing)
        }
        if (next.size < MOST_REMEMBERED) next.set(name, standing)
      }
      standings = next
      if (stuck.length > 0) waiting?.(stuck)
      if (isMore) continue
      const held = [...standings.values()].filter(({ isHeld }) => isHeld)
      if (held.length === 0) return
      const soonest = Math.min(...held.map(({ until }) => until))
      await new Promise((resolve) => { setTimeout(resolve, soonest - performance.now()) })
    }
  }

  return async (isStopped) => work(isStopped).catch(interrupted)
}

function after<Place> (left: Left<Place>, { pause }: Standing<Place>): Standing<Place> {
  if (typeof left === 'object') return { place: left.more, pause, until: 0, isHeld: false }
  const next = left === 'held' ? Math.min(2 * pause || PAUSE.first, PAUSE.last) : PAUSE.last
  return { pause: next, until: performance.now() + next, isHeld: left === 'held' }
}

import { rest } from './background.ts'

/** What a turn left of its work: more, to go on from a place; what somebody else holds; or nothing that it could do. */
export type Left<Place> = { more: Place } | 'held' | 'nothing'

/** Works of many organizations, each in pieces. */
export interface Works<One, Place> {
  /** The next works behind one, so many at most, in an order of their own: each round reads them anew. */
  list (after: One | undefined, limit: number): Promise<One[]>
  nameOf (one: One): string
  /** Does one piece. The place is where the turn before left it, if that is still known. */
  take (one: One, place: Place | undefined): Promise<Left<Place>>
  interrupted (error: unknown, one?: One): void
  /** Somebody has held these for a while, and still does. */
  waiting? (held: One[]): void
  /** Milliseconds until what failed is tried again. */
  putOff?: number | undefined
}

const PAGE = 100
// Shorter than from one look of the background to the next, so that each tries again.
const PUT_OFF = 20_000
// Milliseconds until what was held is looked at again, at first and at last, and as at last what nothing could be done
// of while others go on.
const PAUSE = { first: 10, last: 1_000 }
// Works of which it is remembered how they stand; any other begins again, and finds done what is.
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

import { databaseError } from '../db/database.ts'
import type { Log } from '../telemetry/log.ts'
import { createBackground, rest, type Background } from './background.ts'

/** The result of a step. `more`: work is left after this place. `locked`: another transaction has locked the row. */
export type StepResult<Place> = { more: Place } | 'locked' | 'nothing'

export interface JobSource<Job, Place> {
  /** The page of jobs that follows the job `after`, in a fixed order. Each round reads the list again. */
  list (after: Job | undefined, limit: number): Promise<Job[]>
  nameOf (job: Job): string
  /** Runs one step of a job from the place where the previous step ended; without a place, from the beginning. */
  step (job: Job, place: Place | undefined): Promise<StepResult<Place>>
  log: Log
  failure: string
  /** The fields that log lines about a job contain. */
  about (job: Job): object
  /** Called with jobs whose row another transaction has locked for more than a second. */
  onLocked? (locked: Job[]): void
  /** Milliseconds until a failed job is retried. */
  retryDelay?: number | undefined
}

const PAGE = 100
// Shorter than the interval of `createBackground`, so that each run retries the jobs that failed in the previous run.
const RETRY_DELAY_MS = 20_000
// Milliseconds until a locked job runs again: first 10, then twice as long each time, up to 1,000. A job without work
// left runs again after 1,000 milliseconds.
const PAUSE_MS = { first: 10, last: 1_000 }
// Maximum number of jobs whose place is kept between rounds. Other jobs start from the beginning in each round.
const MAX_TRACKED_JOBS = 1_000

interface JobState<Place> { place?: Place, pause: number, until: number, isLocked: boolean }

/**
 * Runs jobs in the background, round robin: each round runs one step of each job, so that a large job does not delay
 * the others. A job that fails is logged, and retried after `retryDelay` at the earliest.
 */
export function createRoundRobin<Job, Place> (
  { list, nameOf, step, log, failure, about, onLocked, retryDelay = RETRY_DELAY_MS }: JobSource<Job, Place>
): Background {
  const failed = new Map<string, number>()

  function logFailure (error: unknown, job?: Job) {
    log.warn({ err: databaseError(error), ...(job !== undefined && about(job)) }, failure)
  }

  async function * allJobs () {
    for (let page = await list(undefined, PAGE); ; page = await list(page.at(-1), PAGE)) {
      yield * page
      if (page.length < PAGE) return
    }
  }

  async function attempt (job: Job, name: string, place: Place | undefined): Promise<StepResult<Place>> {
    const began = performance.now()
    try {
      return await step(job, place)
    } catch (error) {
      failed.set(name, performance.now() + retryDelay)
      logFailure(error, job)
      return 'nothing'
    } finally {
      await rest(began)
    }
  }

  async function run (isStopped: () => boolean) {
    for (const [name, until] of failed) if (until <= performance.now()) failed.delete(name)
    let states = new Map<string, JobState<Place>>()
    for (;;) {
      const next: typeof states = new Map()
      const stuck: Job[] = []
      let hasMore = false
      for await (const job of allJobs()) {
        if (isStopped()) return
        const name = nameOf(job)
        if ((failed.get(name) ?? 0) > performance.now()) continue
        let state = states.get(name) ?? { pause: 0, until: 0, isLocked: false }
        if (state.until <= performance.now()) {
          const result = await attempt(job, name, state.place)
          if (typeof result === 'object') hasMore = true
          if (result === 'locked' && state.pause === PAUSE_MS.last) stuck.push(job)
          state = after(result, state)
        }
        if (next.size < MAX_TRACKED_JOBS) next.set(name, state)
      }
      states = next
      if (stuck.length > 0) onLocked?.(stuck)
      if (hasMore) continue
      const locked = [...states.values()].filter(({ isLocked }) => isLocked)
      if (locked.length === 0) return
      const soonest = Math.min(...locked.map(({ until }) => until))
      await new Promise((resolve) => { setTimeout(resolve, soonest - performance.now()) })
    }
  }

  return createBackground((isStopped) => run(isStopped).catch(logFailure))
}

function after<Place> (result: StepResult<Place>, { pause }: JobState<Place>): JobState<Place> {
  if (typeof result === 'object') return { place: result.more, pause, until: 0, isLocked: false }
  const next = result === 'locked' ? Math.min(2 * pause || PAUSE_MS.first, PAUSE_MS.last) : PAUSE_MS.last
  return { pause: next, until: performance.now() + next, isLocked: result === 'locked' }
}

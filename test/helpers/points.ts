import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { FastifyInstance, InjectOptions } from 'fastify'
import type { Opened } from '../../src/commands/common/open.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { createHistoryWorker } from '../../src/vault/jobs/worker.ts'

/** A request, the history worker until it has nothing left to do, or the command `rewrap`. */
export type Work = { request: InjectOptions } | { run: 'worker' | 'rewrap' }

/**
 * Tells the points of an operation at which it could be cut off, in their order: before each statement, and before,
 * during and after each commit. `reached` gets the name of a point and how to call something at it. Answers how to end
 * this.
 */
export function watchPoints (work: Work, reached: (name: string, at: (end: () => void) => void) => void): () => void {
  // What comes before the handler's transaction is not part of the operation: who asks, and that a token was used.
  let counting = !('request' in work)
  const now = (end: () => void) => end()

  function look (message: unknown) {
    const { phase, text } = message as { phase: 'before' | 'after', text: string }
    counting ||= /from "projects".* for (no key update|share)/s.test(text)
    if (!counting) return
    // After one statement the database is as it is before the next, so the points before them cover those after them.
    if (phase === 'before') reached(`before ${nameOf(text)}`, now)
    if (text !== 'commit') return
    // By then it is on its way: nobody can know what came of it.
    if (phase === 'before') reached('during commit', setImmediate)
    else {
      reached('after commit', now)
      if ('request' in work) counting = false
    }
  }

  subscribe('strongroom:statement', look)
  return () => { unsubscribe('strongroom:statement', look) }
}

/**
 * Does the work, calls `cut` at its nth point (from 1), and comes back when it has ended one way or another, with the
 * points that it reached.
 */
export async function cutAt (
  n: number | undefined, cut: () => void, work: Work, doIt: () => Promise<void>
): Promise<string[]> {
  const points: string[] = []
  const end = watchPoints(work, (name, at) => {
    if (points.push(name) === n) at(cut)
  })
  try {
    await doIt()
    if (n !== undefined && points.length < n) throw new Error(`there is no point ${n}`)
  } catch (error) {
    if (n === undefined || points.length < n) throw error
  } finally {
    end()
  }
  return points
}

/** Does the work to its end; throws when it does not come to it. */
export async function perform (work: Work, opened: Opened, app: () => Promise<FastifyInstance>): Promise<void> {
  if ('request' in work) {
    const answer = await (await app()).inject(work.request)
    if (answer.statusCode !== 200) throw new Error(answer.payload)
  } else if (work.run === 'rewrap') await rewrap(opened, 0)
  else await moveHistories(opened)
}

async function moveHistories ({ database, keyring }: Opened) {
  let stop = async () => {}
  await new Promise<void>((resolve, reject) => {
    const warn = (details: object, message: string) => reject(new Error(`${message}: ${JSON.stringify(details)}`))
    const info = (_details: object, message: string) => { if (message === 'history re-encrypted') resolve() }
    const worker = createHistoryWorker({ db: database.db, keyring, log: { info, warn } })
    stop = async () => worker.stop()
    worker.wake()
  }).finally(() => stop())
}

/** `UPDATE projects`, `INSERT audit_events`, `SELECT secrets FOR UPDATE`: what a statement does, in a few words. */
function nameOf (text: string): string {
  if (text === 'commit' || /^\s*set /i.test(text)) return text.trim()
  const [, verb, table] = /\b(insert|update|delete)\b\s+(?:into |from )?"?(\w+)/i.exec(text.replace(
    /\bfor .*$/s, ''
  )) ?? []
  if (verb !== undefined) return `${verb.toUpperCase()} ${table}`
  const [, from] = /\bfrom "?(\w+)/i.exec(text) ?? []
  return `SELECT ${from ?? ''}${/ for (update|share|key share|no key update)/i.exec(text)?.[0].toUpperCase() ?? ''}`
}

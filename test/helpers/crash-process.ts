// An operation that ends at one of its points. `runUntilKilled` of crash.ts starts this file as a program: it gets a
// `Command` on its standard input and the configuration of the service in its environment, prints every point that it
// reaches, and kills itself with SIGKILL at one of them.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { readFileSync, writeSync } from 'node:fs'
import type { FastifyInstance, InjectOptions } from 'fastify'
import { open, type Opened } from '../../src/commands/common/open.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { loadConfig } from '../../src/config.ts'
import { createHistoryWorker } from '../../src/vault/jobs/worker.ts'
import { QUICK } from './costs.ts'

export interface Command {
  work: Work
  /** The number of the point at which the process kills itself, from 1. */
  at: number
}

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

if (process.argv[1] === import.meta.filename) await runAndKill(JSON.parse(readFileSync(0, 'utf8')))

async function runAndKill ({ work, at }: Command) {
  const config = loadConfig(process.env)
  const opened = await open(config)
  let points = 0
  watchPoints(work, (name, then) => {
    // Written synchronously: nothing that is still in a buffer survives.
    writeSync(1, `${name}\n`)
    if (++points === at) then(() => process.kill(process.pid, 'SIGKILL'))
  })
  // Loading the service takes as long as everything else, and some work does not need it.
  await perform(work, opened, async () =>
    (await import('../../src/app.ts')).buildApp({ ...opened, config, costs: QUICK }))
}

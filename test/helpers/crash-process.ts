// The program that `runUntilKilled` (crash.ts) starts. Reads a `Command` from standard input and the configuration of
// the service from the environment. Performs the command's work, prints every point that the work reaches, and kills
// itself with SIGKILL at the point `at`.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { readFileSync, writeSync } from 'node:fs'
import type { FastifyInstance, InjectOptions } from 'fastify'
import { open, type Opened } from '../../src/commands/common/open.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { loadConfig } from '../../src/config.ts'
import { createHistoryWorker } from '../../src/jobs/history.ts'
import { QUICK } from './costs.ts'

export interface Command {
  work: Work
  /** The number of the point at which the process kills itself, from 1. */
  at: number
}

/** A request, a run of the history worker until it has no more work, or the command `rewrap`. */
export type Work = { request: InjectOptions } | { run: 'worker' | 'rewrap' }

/**
 * Calls `reached` at each point at which a crash could interrupt an operation: before each statement, and before,
 * during and after each commit. `reached` gets the name of the point and a function that calls its argument at the
 * point. Returns a function that stops watching.
 */
export function watchPoints (work: Work, reached: (name: string, at: (end: () => void) => void) => void): () => void {
  // Statements before the handler's transaction (authentication, last use of a token) are not part of the operation.
  let counting = !('request' in work)
  const now = (end: () => void) => end()

  function look (message: unknown) {
    const { phase, text } = message as { phase: 'before' | 'after', text: string }
    counting ||= /from "projects".* for (no key update|share)/s.test(text)
    if (!counting) return
    // The point before a statement covers the point after the previous statement.
    if (phase === 'before') reached(`before ${nameOf(text)}`, now)
    if (text !== 'commit') return
    // setImmediate runs after the COMMIT is sent and before its result is known.
    if (phase === 'before') reached('during commit', setImmediate)
    else {
      reached('after commit', now)
      if ('request' in work) counting = false
    }
  }

  subscribe('strongroom:statement', look)
  return () => { unsubscribe('strongroom:statement', look) }
}

/** Performs the whole work; throws if the work fails. */
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

/** A short name of a statement: `UPDATE projects`, `INSERT audit_events`, `SELECT secrets FOR UPDATE`. */
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
  const opened = await open(config, { creates: true })
  let points = 0
  watchPoints(work, (name, then) => {
    // Written synchronously, because SIGKILL discards buffered output.
    writeSync(1, `${name}\n`)
    if (++points === at) then(() => process.kill(process.pid, 'SIGKILL'))
  })
  // Starts the service only for work that needs it, because loading it takes as long as all other steps.
  await perform(work, opened, async () =>
    (await import('../../src/app.ts')).buildApp({ ...opened, config, costs: QUICK }))
}

// A process that does one thing on a database and kills itself with SIGKILL at one point of it: `run` starts it, with a
// `Command` on its standard input and the service's configuration in its environment. It prints every point it reaches.
import { subscribe } from 'node:diagnostics_channel'
import { readFileSync, writeSync } from 'node:fs'
import type { InjectOptions } from 'fastify'
import { buildApp } from '../../src/app.ts'
import { open, type Opened } from '../../src/commands/open.ts'
import { rewrap } from '../../src/commands/rewrap.ts'
import { loadConfig, type Config } from '../../src/config.ts'
import { createHistoryWorker } from '../../src/vault/worker.ts'

/** A request, the history worker until it has nothing left to do, or the command `rewrap`. */
export type Work = { request: InjectOptions } | { run: 'worker' | 'rewrap' }

export interface Command {
  work: Work
  /** The number of the point at which it ends, from 1; without it, it comes to its end and exits with 0. */
  at?: number | undefined
}

const { work, at } = JSON.parse(readFileSync(0, 'utf8')) as Command
const config = loadConfig(process.env)
const opened = await open(config)
let points = 0
// What comes before the handler's transaction is not part of the operation: who asks, and that a token was used.
let counting = !('request' in work)

subscribe('strongroom:statement', (message) => {
  const { phase, text } = message as { phase: 'before' | 'after', text: string }
  counting ||= /from "projects".* for (update|share)/s.test(text)
  if (!counting) return
  // After one statement the database is as it is before the next, so the points before them cover those after them.
  if (phase === 'before') point('before', text, kill)
  if (text !== 'commit') return
  // By then it is on its way: nobody can know what came of it.
  if (phase === 'before') point('during', text, () => setImmediate(kill))
  else {
    point('after', text, kill)
    if ('request' in work) counting = false
  }
})

if ('request' in work) await request(opened, config, work.request)
else if (work.run === 'rewrap') await rewrap(opened)
else await moveHistories(opened)
await opened.database.close()

function kill () {
  process.kill(process.pid, 'SIGKILL')
}

function point (phase: string, text: string, end: () => void) {
  // Synchronously: nothing that is still in a buffer survives.
  writeSync(1, `${phase} ${nameOf(text)}\n`)
  if (++points === at) end()
}

/** `UPDATE projects`, `INSERT audit_events`, `SELECT secrets FOR UPDATE`: what a statement does, in a few words. */
function nameOf (text: string): string {
  if (text === 'commit' || /^\s*set /i.test(text)) return text.trim()
  const [, verb, table] = /\b(insert|update|delete)\b\s+(?:into |from )?"?(\w+)/i.exec(text.replace(/\bfor .*$/s, '')) ?? []
  if (verb !== undefined) return `${verb.toUpperCase()} ${table}`
  const [, from] = /\bfrom "?(\w+)/i.exec(text) ?? []
  return `SELECT ${from ?? ''}${/ for (update|share|key share|no key update)/i.exec(text)?.[0].toUpperCase() ?? ''}`
}

async function request (opened: Opened, config: Config, options: InjectOptions) {
  const app = await buildApp({ ...opened, config })
  const answer = await app.inject(options)
  if (answer.statusCode !== 200) throw new Error(answer.payload)
  await app.close()
}

async function moveHistories ({ database, keyring }: Opened) {
  await new Promise<void>((resolve, reject) => {
    const warn = (details: object, message: string) => reject(new Error(`${message}: ${JSON.stringify(details)}`))
    const info = (_details: object, message: string) => { if (message === 'history re-encrypted') resolve() }
    createHistoryWorker({ db: database.db, keyring, log: { info, warn } }).wake()
  })
}

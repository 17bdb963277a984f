// runs: Citus; 30 s
import { readFileSync } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { startIsolatedApp } from '../helpers/app.ts'
import { useOwnCitus } from '../helpers/citus.ts'
import { OPERATIONS, prepare, publishedPaths, send, settle, type Row } from '../helpers/operations.ts'
import { SEVERAL_NODES } from '../helpers/several-nodes.ts'

t.setTimeout(300_000)

// Statements with which background jobs look for work in all organizations, and with which Citus looks for unfinished
// two-phase commits.
const SEARCH = new RegExp([
  'FROM public\\.(organization_removals|token_removals|late_events|idempotency_keys|spent_assertions|invitation_mails|re_encryptions)_',
  'invitations WHERE \\(\\(expires_at', 'api_tokens_\\d+ t\\b', 'removed_at IS NOT NULL',
  'FROM pg_prepared_xacts'
].join('|'))
const OF_ORGANIZATION = 'organization_id OPERATOR(pg_catalog.=)'

const { nodes: [coordinator] } = await useOwnCitus(t, {
  'citus.log_remote_commands': 'on',
  log_min_messages: 'notice',
  log_line_prefix: '%p ',
  // Disables a background job of Citus that sends commands.
  'citus.distributed_deadlock_detection_factor': '-1'
})
// This file has its own database, because the background workers work on all organizations.
const service = await startIsolatedApp(t)

interface Command { text: string, node: string }

/** Splits the commands from the coordinator to the nodes into statements and transactions. */
function unitsOf (log: string): Command[][] {
  const sessions = new Map<string, Command[][]>()
  const pattern = /^(\d+) NOTICE: {2}issuing ([\s\S]*?)\n\d+ DETAIL: {2}on server \S+@(\S+)/gm
  const isEnd = ({ text }: Command) => /^(COMMIT|ROLLBACK)/.test(text)
  for (const [, session, text, node] of log.matchAll(pattern)) {
    const units = sessions.get(session!) ?? []
    const last = units.at(-1)
    const command = { text: text!, node: node! }
    // If a session began before the log, its first commands have no BEGIN.
    const isInTransaction = last !== undefined && last[0]!.text.startsWith('BEGIN')
    if (isInTransaction && (isEnd(command) || !isEnd(last.at(-1)!))) last.push(command)
    else if (last !== undefined && last[0]!.text === command.text) last.push(command)
    else units.push([command])
    sessions.set(session!, units)
  }
  return [...sessions.values()].flat()
}

// Background jobs send commands between those of an operation. A job looks for work with a statement that names no
// organization. The end of a transaction without its beginning belongs to a job that began before the operation.
function isOfJob (unit: Command[]): boolean {
  const isSearch = unit.every(({ text }) =>
    /^(BEGIN|COMMIT|ROLLBACK)/.test(text) || (SEARCH.test(text) && !text.includes(OF_ORGANIZATION)))
  return isSearch || /^(COMMIT|ROLLBACK)/.test(unit[0]!.text)
}

t.test('each operation with an API token uses one worker and no two-phase commit, except for a list', async (t) => {
  const { caller, ids } = await settle(service, 'counted')
  const renamed: Row = { ...OPERATIONS.updateOrganization!, body: { slug: 'renamed' } }
  // Deletes the organization in the last operation.
  const { deleteOrganization, ...others } = OPERATIONS
  const measured = { ...others, 'updateOrganization with a slug': renamed, deleteOrganization: deleteOrganization! }
  const found: string[] = []
  for (const [id, row] of Object.entries(measured)) {
    await prepare(service, row, ids)
    await pause(50)
    const before = readFileSync(coordinator!.log).length
    const { status, text } = await send(service, row, ids, row.access === 'public' ? undefined : caller.token)
    t.ok(status < 300 || status === row.public || row.byPerson, `${id}: ${status} ${text.slice(0, 200)}`)
    const commands = unitsOf(readFileSync(coordinator!.log).subarray(before).toString())
      .filter((unit) => !isOfJob(unit)).flat()
    const nodes = new Set(commands.map(({ node }) => node))
    const isTwoPhase = commands.some(({ text }) => text.startsWith('PREPARE TRANSACTION'))
    if (row.access !== 'public') t.not(nodes.size, 0, `${id} was measured`)
    if (nodes.size <= 1 && !isTwoPhase) continue
    found.push(id)
    if (SEVERAL_NODES[id] !== undefined) continue
    t.comment(`${id}: ${commands.map(({ node, text }) => `${node} ${text.replace(/\s+/g, ' ').slice(0, 300)}`).join('\n')}`)
  }
  t.strictSame(found.sort(), Object.keys(SEVERAL_NODES).sort())
  const published = Object.values(publishedPaths(service)).flatMap((methods) => Object.values(methods))
    .flatMap(({ operationId }) => typeof operationId === 'string' ? [operationId] : [])
  t.ok(published.length > 100, `${published.length} operations`)
  t.strictSame(published.filter((id) => measured[id as keyof typeof measured] === undefined), [], 'each was measured')
})

/**
 * Audit rows: the rate at which a chain of events is verified, in the database and from an export, and the time of a
 * list in a large audit log whose filters match no event.
 */
import fs from 'node:fs'
import path from 'node:path'
import { exportEvents, verifyAudit } from '../src/commands/audit/audit.ts'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import { change } from '../src/changes/change.ts'
import { systemOf } from '../src/repositories/audit/audit.ts'
import type { Bench } from './keys.ts'
import { startService } from './processes.ts'
import { getting, makeTenants, send, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const EVENTS = 100_000
const AT_ONCE = 1_000
/** Minimum of verified events per second. */
const BAR = 50_000

// The number of the tenant; other rows use other tenants.
const LISTED_TENANT = 3001
const LISTED = 1_000_000
/** Maximum time of a list among a million events, in milliseconds. */
const LIST_BAR = 50

/** Fills the chain of one organization. Each round verifies the chain in the database and then the export. */
export async function measureAudit ({ dir, env, tenants, rounds, lines, wanted }: Bench): Promise<void> {
  const tenant = tenants.at(-1)!
  const rows = { 'audit verify, database': {}, 'audit verify, export': { file: path.join(dir, 'audit.jsonl') } }
  if (!Object.keys(rows).some(wanted)) return
  const config = loadConfig(env)
  await fill(env, tenant, rows['audit verify, export'].file)
  const rates = new Map<string, number[]>()
  // The first round warms up.
  for (let round = 0; round <= rounds; round++) {
    for (const [row, from] of Object.entries(rows)) {
      const begun = performance.now()
      let events = 0
      let isBroken = false
      for await (const one of verifyAudit(config, { organization: tenant.id, ...from })) {
        events += one.events
        isBroken ||= one.broken !== null
      }
      if (isBroken || events < EVENTS) throw new Error(`${row}: ${events} events, ${isBroken ? 'broken' : 'valid'}`)
      rates.set(row, [...rates.get(row) ?? [], events * 1000 / (performance.now() - begun)])
    }
  }
  for (const [row, [, ...measured]] of rates) {
    if (!wanted(row)) continue
    lines.push({
      row: `${row}: events a second`,
      reference: 'what is asked for',
      ...compare(median(measured), BAR, '/s', 0),
      bar: { least: 1 }
    })
    console.log(`${row}: ${Math.round(median(measured))}/s`)
  }
}

async function fill (env: Record<string, string>, { id }: Tenant, file: string): Promise<void> {
  const opened = await open(loadConfig(env), { creates: true })
  const { db } = opened.database
  try {
    for (let made = 0; made < EVENTS; made += AT_ONCE) {
      const events = Array.from({ length: AT_ONCE }, (_, i) => ({
        action: 'secret.store' as const,
        resource_type: 'secret',
        resource_id: String(made + i),
        details: { level: 'environment', version: made + i }
      }))
      await change(db, systemOf(id), { decide: () => ({ write: async () => {}, events }) })
    }
    const out = fs.createWriteStream(file)
    for await (const line of exportEvents(opened, { organization: id })) out.write(line)
    await new Promise<void>((resolve) => { out.end(resolve) })
  } finally {
    await opened.database.close()
  }
}

/**
 * Requests lists with every combination of filters. Many events match each filter, but no event matches all of them.
 * The row shows the slowest combination.
 */
export async function measureAuditLists ({ dir, env, sql, rounds, lines, wanted }: Bench): Promise<void> {
  const row = `audit: list by filters that match none of ${LISTED.toLocaleString('en')} events, slowest combination`
  if (!wanted(row)) return
  const [tenant] = await makeTenants(env, 1, LISTED_TENANT) as [Tenant]
  const { id, token } = tenant
  await fillListed(sql, id)
  const service = await startService(dir, env)
  try {
    const medians = new Map<string, number>()
    for (const filters of COMBINATIONS) {
      const query = new URLSearchParams(filters).toString()
      const ask = () => send(service.url, getting(token, `/api/v1/${id}/audit-events?${query}`)) as
        Promise<{ data: unknown[] }>
      // Warms up. PostgreSQL may switch to a generic plan at the sixth execution.
      for (let i = 0; i < 6; i++) {
        const { data } = await ask()
        if (data.length > 0) throw new Error(`${query} matches events`)
      }
      const times: number[] = []
      for (let round = 0; round < rounds; round++) {
        const begun = performance.now()
        await ask()
        times.push(performance.now() - begun)
      }
      medians.set(Object.keys(filters).join(' + '), median(times))
    }
    const slowest = Math.max(...medians.values())
    lines.push({ row, reference: 'what is asked for', ...compare(slowest, LIST_BAR, ' ms', 1), bar: { most: 1 } })
    for (const [filters, time] of medians) console.log(`audit: list by ${filters}: ${time.toFixed(1)} ms`)
  } finally {
    await service.stop()
  }
}

// One event per second. Four fifths of the events have two actors, two actions and two resources: every pair of values
// occurs, but only four of the eight triples. The other events are in the middle third of the time, and have another
// actor, action and resource.
const START = '2026-01-01T00:00:00Z'
const at = (second: number) => new Date(Date.parse(START) + second * 1000).toISOString()
const OFTEN = { actor: 'user:1', action: 'secret.store', resource: 'secret:FIRST' }
const MIDDLE = { actor: 'user:3', action: 'secret.decrypt', resource: 'secret:THIRD' }
const PERIODS = {
  from: { from: at(LISTED * 2 / 3 + 1) },
  to: { to: at(LISTED / 3 - 1) },
  both: { from: at(LISTED * 2 / 3 + 1), to: at(LISTED) }
}

const COMBINATIONS: Record<string, string>[] = [
  // One filter, with a period in which no event matches the filter.
  ...Object.entries(MIDDLE).flatMap(([name, value]) =>
    Object.values(PERIODS).map((period) => ({ [name]: value, ...period }))),
  // Two filters: many events match each filter, no event matches both.
  ...([['actor', 'action'], ['actor', 'resource'], ['action', 'resource']] as const).flatMap(([one, other]) =>
    [{}, ...Object.values(PERIODS)].map((period) => ({ [one]: OFTEN[one], [other]: MIDDLE[other], ...period }))),
  // Three filters: events match every two of them, no event matches all.
  ...[{}, ...Object.values(PERIODS)].map((period) => ({ ...OFTEN, resource: 'secret:SECOND', ...period })),
  { from: at(LISTED + 1) }, { to: at(-1) }, { from: at(-2), to: at(-1) },
  { actor: 'user:9' }, { action: 'member.delete' }, { resource: 'secret:NONE' }
]

async function fillListed (sql: Bench['sql'], organizationId: string): Promise<void> {
  await sql`
    INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type,
      resource_id, request_id, ip, user_agent, details, chain_kid, mac)
    SELECT ${organizationId}, 1000000 + n, ${START}::timestamptz + n * interval '1 second',
      (ARRAY['secret.store', 'secret.delete', 'secret.decrypt'])[CASE kind WHEN 4 THEN 3 ELSE 1 + kind % 2 END],
      'user', CASE kind WHEN 4 THEN 3 ELSE 1 + kind / 2 END,
      'secret', (ARRAY['FIRST', 'SECOND', 'THIRD'])[CASE kind WHEN 4 THEN 3 WHEN 0 THEN 1 WHEN 3 THEN 1 ELSE 2 END],
      'request-' || n, '192.0.2.1', 'benchmark', '{"level":"environment","version":1}', 'none', 'none'::bytea
    FROM (
      SELECT n, CASE WHEN n > ${LISTED} / 3 AND n <= ${LISTED} * 2 / 3 AND n % 5 < 3 THEN 4 ELSE n % 4 END AS kind
      FROM generate_series(1, ${LISTED}::int) n
    ) AS kinds`
  await sql`VACUUM ANALYZE audit_events`
}

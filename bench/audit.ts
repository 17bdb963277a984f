/** The rows about the audit: how fast a chain of events is verified, in the database and from an export alone. */
import fs from 'node:fs'
import path from 'node:path'
import { exportEvents, verifyAudit } from '../src/commands/audit.ts'
import { open } from '../src/commands/open.ts'
import { loadConfig } from '../src/config.ts'
import { transaction } from '../src/db/database.ts'
import { recordEvent, systemOf } from '../src/repositories/audit.ts'
import type { Bench } from './keys.ts'
import type { Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const EVENTS = 100_000
const AT_ONCE = 1_000
/** Events a second. */
const BAR = 50_000

/** Fills the chain of one organization, and verifies it in turns in the database and from an export. */
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
      const status = await verifyAudit(config, { organization: tenant.id, ...from }, (one) => { events += one.events })
      if (status !== 0 || events < EVENTS) throw new Error(`${row}: ${events} events, exit status ${status}`)
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
  const opened = await open(loadConfig(env))
  const { db } = opened.database
  try {
    for (let made = 0; made < EVENTS; made += AT_ONCE) {
      const events = Array.from({ length: AT_ONCE }, (_, i) => ({
        action: 'secret.store' as const,
        resource_type: 'secret',
        resource_id: String(made + i),
        details: { level: 'environment', version: made + i }
      }))
      await transaction(db, async (db) => recordEvent(db, systemOf(id), ...events))
    }
    const out = fs.createWriteStream(file)
    for await (const line of exportEvents(opened, { organization: id })) out.write(line)
    await new Promise<void>((resolve) => { out.end(resolve) })
  } finally {
    await opened.database.close()
  }
}

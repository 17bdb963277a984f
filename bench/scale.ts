/**
 * The rows about size: what is read, stored and listed among very many levels and versions, beside the same service on
 * an empty database. Each has a server of its own, with the same real tenants; the many are put in beside the API.
 */
import postgres, { type Sql } from 'postgres'
import { startPostgres } from '../test/helpers/postgres.ts'
import type { Bench } from './keys.ts'
import { total, type Outcome } from './load.ts'
import { startService } from './processes.ts'
import {
  fillHistory, fillTenants, getting, LEVEL, makeTenants, posting, several, storing, type Tenant
} from './seed.ts'
import { compare, median } from './table.ts'

const TENANTS = 20
const HISTORY = 1000

// What is put in: a project has a level itself, nine targets, and ten environments in each. The tenant that is measured
// has a tenth of all; the others are of organizations with ten projects each.
const VERSIONS = 10
const OF_PROJECT = 100
const OF_ORGANIZATION = 1000
const SHARE = 10

/** Levels that are put in by one transaction. `--levels` is a multiple of it. */
export const CHUNK = SHARE * OF_ORGANIZATION
// Transactions at once: a process of PostgreSQL each.
const AT_ONCE = 2

// Bytes of a filled document or version, as it was sent and as it is sealed. They are never opened: nobody asks.
const SIZE = 32
const SEALED = Buffer.alloc(64, 1)
const MAC = Buffer.alloc(32, 1)

/** Leaves the rows out where `levels` is 0. In each round first the empty database is asked, then the filled one. */
export async function measureScale (bench: Bench, levels: number): Promise<void> {
  const { dir, env, load, rounds, seconds, lines } = bench
  const size = `${levels.toLocaleString('en')} levels, ${(levels * VERSIONS).toLocaleString('en')} versions`
  const rowOf = (what: string, connections: number) =>
    `scale: ${what}, ${size}, ${connections === 1 ? '1 connection' : `${connections} connections`}: p50`
  const rows = ['read', 'store', 'list versions'].flatMap((what) => [1, bench.connections].map((connections) =>
    ({ what, connections, row: rowOf(what, connections) }))).filter(({ row }) => bench.wanted(row))
  if (levels === 0 || rows.length === 0) return

  const running: { stop (): Promise<void> }[] = []
  const begin = async (filled: number) => {
    const server = await startPostgres()
    running.unshift({ stop: server.close })
    const sql = postgres(server.url, { max: AT_ONCE, onnotice: () => {} })
    running.unshift({ stop: () => sql.end() })
    const own = { ...env, DATABASE_URL: server.url }
    const tenants = await makeTenants(own, TENANTS)
    const [tenant] = tenants as [Tenant]
    const filling = await startService(dir, own)
    try {
      await fillTenants(filling.url, tenants)
      await fillHistory(filling.url, tenant, HISTORY)
    } finally {
      await filling.stop()
    }
    const begun = performance.now()
    if (filled > 0) await fill(sql, tenant, filled)
    await sql`VACUUM ANALYZE`
    await sql`CHECKPOINT`
    const filledIn = performance.now() - begun
    const service = await startService(dir, own)
    running.unshift(service)
    return { sql, url: service.url, requests: requestsOf(tenant), filledIn }
  }
  try {
    const full = await begin(levels)
    const [{ bytes }] = await full.sql`SELECT pg_database_size(current_database()) AS bytes` as unknown as [
      { bytes: string }
    ]
    console.log(`${size}: ${(Number(bytes) / 2 ** 30).toFixed(1)} GiB, filled in ${(full.filledIn / 1000).toFixed(0)} s`)
    const empty = await begin(0)
    for (const { what, connections, row } of rows) {
      const ask = ({ url, requests }: typeof full, seconds: number) =>
        load.fire({ url, requests: requests[what]!, expect: 200, seconds, connections })
      for (const one of [empty, full]) await ask(one, 1)
      const own: Outcome[] = []
      const other: Outcome[] = []
      for (let round = 0; round < rounds; round++) {
        other.push(await ask(empty, seconds))
        own.push(await ask(full, seconds))
      }
      const p50 = (outcomes: Outcome[]) => median(outcomes.map(({ p50 }) => p50))
      lines.push({
        row,
        reference: 'empty database',
        ...compare(p50(own), p50(other), ' ms', 2),
        ratio: median(own.map(({ p50 }, round) => p50 / other[round]!.p50)),
        bar: { most: 1.2 },
        note: total([...own, ...other])
      })
      console.log(`${row}: ${p50(own).toFixed(2)} ms, empty ${p50(other).toFixed(2)} ms`)
    }
  } finally {
    for (const one of running) await one.stop()
  }
}

const requestsOf = (tenant: Tenant) => {
  const { id, token } = tenant
  return {
    read: [getting(token, `/api/v1/${id}/orbit/backend/live/secrets`)],
    store: [storing(tenant)],
    'list versions': Array.from({ length: HISTORY / 25 }, (_, i) =>
      posting(token, `/api/v1/${id}/secrets/versions`, { ...LEVEL, project: 'history', page: i + 1 }))
  } as Record<string, ReturnType<typeof getting>[]>
}

/**
 * Puts so many levels, with a document each, in beside the API, and makes them valid to every constraint and count; but
 * for the tenant's chain of events, which stays what the service recorded, with an event for each version. While it
 * goes on, the server waits for no commit and cleans up nothing.
 */
async function fill (sql: Sql, tenant: Tenant, levels: number): Promise<void> {
  const settings = { autovacuum: 'off', checkpoint_timeout: '1h', max_wal_size: '16GB', synchronous_commit: 'off' }
  for (const [name, value] of Object.entries(settings)) await sql.unsafe(`ALTER SYSTEM SET ${name} = '${value}'`)
  await sql`SELECT pg_reload_conf()`
  // The tenant's own come first, behind the versions that it has.
  const own = levels / SHARE
  const [counter] = await sql`
    UPDATE organization_counters
    SET next_version = next_version + ${own * VERSIONS}::bigint,
      stored_bytes = stored_bytes + ${own * (VERSIONS + 1) * SIZE}::bigint
    WHERE organization_id = ${tenant.id} RETURNING next_version`
  const first = Number(counter!.next_version) - own * VERSIONS
  await several(levels / CHUNK, (i) => fillChunk(sql, i * CHUNK, { tenant: tenant.id, own, first }), AT_ONCE)
  await sql`ALTER SYSTEM RESET ALL`
  await sql`SELECT pg_reload_conf()`
}

async function fillChunk (
  sql: Sql, from: number, { tenant, own, first }: { tenant: string, own: number, first: number }
): Promise<void> {
  await sql.begin(async (tx) => {
    // Ids of others are spread to both sides of the tenant's, whose begins with the time.
    await tx`
      CREATE TEMPORARY TABLE filled ON COMMIT DROP AS
      SELECT l, is_own, within, place, organization_id, project_id, target_id, environment_id, id, first_version
      FROM generate_series(${from}::int, ${from + CHUNK - 1}::int) l
      CROSS JOIN LATERAL (SELECT l < ${own}::int AS is_own, l % ${OF_PROJECT}::int AS within) AS one
      CROSS JOIN LATERAL (
        SELECT CASE WHEN is_own THEN l ELSE l % ${OF_ORGANIZATION}::int END AS place,
          CASE WHEN is_own THEN ${tenant}
            ELSE '0' || substr(upper(md5((l / ${OF_ORGANIZATION}::int)::text)), 1, 25) END::char(26) AS organization_id,
          CASE WHEN is_own THEN ${first}::bigint ELSE 1 END AS first_version,
          lpad((l - within)::text, 26, '0')::char(26) AS project_id,
          CASE WHEN within BETWEEN 1 AND 9 THEN lpad(l::text, 26, '0')
            WHEN within > 9 THEN lpad((l - within + within / 10)::text, 26, '0') END::char(26) AS target_id,
          CASE WHEN within > 9 THEN lpad(l::text, 26, '0') END::char(26) AS environment_id,
          lpad(l::text, 26, '0')::char(26) AS id
      ) AS its`
    await tx`
      INSERT INTO organizations (id, name, slug, plan, storage_key)
      SELECT organization_id, 'Filled ' || l, 'filled-' || l, 'self-hosted', ${SEALED}::bytea
      FROM filled WHERE place = 0 AND NOT is_own`
    await tx`
      INSERT INTO organization_counters (organization_id, next_version, next_event, event_head, stored_bytes)
      SELECT organization_id, ${OF_ORGANIZATION * VERSIONS + 1}::bigint, ${OF_ORGANIZATION * VERSIONS + 1}::bigint,
        ${MAC}::bytea, ${OF_ORGANIZATION * (VERSIONS + 1) * SIZE}::bigint
      FROM filled WHERE place = 0 AND NOT is_own`
    await tx`
      INSERT INTO projects (organization_id, id, name, slug, secret_format, encryption_type, history_policy,
        key_version, mac)
      SELECT organization_id, id, 'Filled ' || l, 'filled-' || l, 'env', 'server', 'keep', 1, ${MAC}::bytea
      FROM filled WHERE within = 0`
    await tx`
      INSERT INTO project_counts (organization_id, project_id, target_count, environment_count, secret_count)
      SELECT organization_id, id, 9, 90, ${OF_PROJECT}::int FROM filled WHERE within = 0`
    await tx`
      INSERT INTO encryption_keys (organization_id, project_id, version, managed, key_string, data_key, salt,
        iterations, is_active)
      SELECT organization_id, id, 1, 'server', ${SEALED}::bytea, ${SEALED}::bytea, ${SEALED}::bytea, 600000, true
      FROM filled WHERE within = 0`
    await tx`
      INSERT INTO targets (organization_id, id, project_id, name, slug, environment_count, secret_count, mac)
      SELECT organization_id, id, project_id, 'Target ' || within, 'target-' || within, 10, 11, ${MAC}::bytea
      FROM filled WHERE within BETWEEN 1 AND 9`
    await tx`
      INSERT INTO environments (organization_id, id, project_id, target_id, name, slug, status, is_production, mac)
      SELECT organization_id, id, project_id, target_id, 'Environment ' || within, 'environment-' || within,
        'development', false, ${MAC}::bytea
      FROM filled WHERE within > 9`
    await tx`INSERT INTO histories (organization_id, id) SELECT organization_id, id FROM filled`
    await tx`
      INSERT INTO secrets (organization_id, id, project_id, target_id, environment_id, level, level_id, revision,
        key_version, sealed, size_bytes, version, history_id, version_count, version_bytes, mac)
      SELECT organization_id, id, project_id, target_id, environment_id,
        CASE WHEN within = 0 THEN 'project' WHEN within < 10 THEN 'target' ELSE 'environment' END, id,
        ${VERSIONS}::bigint, 1, ${SEALED}::bytea, ${SIZE}::int,
        first_version + place * ${VERSIONS}::int + ${VERSIONS - 1}::int, id, ${VERSIONS}::int,
        ${VERSIONS * SIZE}::bigint, ${MAC}::bytea
      FROM filled`
    await tx`
      INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes)
      SELECT organization_id, first_version + place * ${VERSIONS}::int + n, id,
        CASE WHEN n = 0 THEN 'create' ELSE 'update' END, n + 1, 1, ${SEALED}::bytea, ${SIZE}::int
      FROM filled CROSS JOIN generate_series(0, ${VERSIONS - 1}::int) n`
    await tx`
      INSERT INTO audit_events (organization_id, seq, action, actor_type, actor_id, resource_type, resource_id,
        request_id, ip, chain_kid, mac)
      SELECT organization_id, 1 + place * ${VERSIONS}::int + n, 'secret.store', 'api_token', 1, 'secret', id,
        lpad(l::text, 36, '0'), '127.0.0.1', 'events', ${MAC}::bytea
      FROM filled CROSS JOIN generate_series(0, ${VERSIONS - 1}::int) n WHERE NOT is_own`
  })
}

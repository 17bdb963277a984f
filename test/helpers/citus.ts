import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import type { Test } from 'tap'
import { hasPostgres, programs, startPostgres, unprivileged, type TestPostgres } from './postgres.ts'

/** A Citus cluster that only the tests use. */
export interface TestCitus {
  /** The URL of the coordinator. */
  url: string
  /** The coordinator, then the workers. */
  nodes: TestPostgres[]
  close (): Promise<void>
}

const WORKERS = 2
const SETTINGS = {
  shared_preload_libraries: 'citus',
  // Each database has a process that detects deadlocks between nodes.
  max_worker_processes: '100',
  // A statement may use a connection to each shard. A two-phase commit needs a prepared transaction for each
  // connection.
  max_connections: '400',
  max_prepared_transactions: '400',
  shared_buffers: '64MB',
  // Moves of shards use logical replication.
  wal_level: 'logical',
  // Log lines contain the name of the database, for `deadlocksOnCitus`.
  log_line_prefix: '%m [%p] %d ',
  'citus.enable_unsafe_triggers': 'on',
  'citus.recover_2pc_interval': '2s',
  'citus.distributed_deadlock_detection_factor': '2'
}

/** The missing requirements for a Citus cluster on this machine; undefined if nothing is missing. */
export function missingForCitus (): string | undefined {
  if (!hasPostgres()) return 'PostgreSQL\'s programs (Debian: postgresql)'
  const library = path.join(programs(), '../lib/citus.so')
  return fs.existsSync(library) ? undefined : `the extension citus (https://github.com/citusdata/citus), as ${library}`
}

/**
 * Starts a coordinator and two workers on the loopback interface. `more`: further settings of the servers. `durable`:
 * commits survive a crash, and take as long as in production. Throws an Error that says what this machine lacks.
 */
export async function startCitus (
  more: Record<string, string> = {}, { durable = false }: { durable?: boolean } = {}
): Promise<TestCitus> {
  const missing = missingForCitus()
  if (missing !== undefined) throw new Error(`The tests on Citus need ${missing}`)
  const settings = Object.entries({ ...SETTINGS, ...outputPlugins(), ...more }).map(([name, value]) => `${name}=${value}`)
  const nodes = await Promise.all(Array.from({ length: 1 + WORKERS }, () =>
    startPostgres({ durable, settings })))
  return {
    url: nodes[0]!.url,
    nodes,
    close: async () => { await Promise.all(nodes.map((node) => node.close())) }
  }
}

// Citus moves shards with its own output plugin, which newer minor releases of PostgreSQL must explicitly allow.
function outputPlugins (): Record<string, string> {
  const name = 'output_plugin_libraries'
  const known = spawnSync(path.join(programs(), 'postgres'), ['--describe-config'], { ...unprivileged(), encoding: 'utf8' })
  return known.stdout.includes(name) ? { [name]: 'pgoutput, citus' } : {}
}

/** The URL of a database on the node with this URL. */
export function urlOf (node: string, database: string): string {
  const url = new URL(node)
  url.pathname = `/${database}`
  return url.href
}

async function run (url: string, ...statements: string[]) {
  const client = postgres(url, { max: 1, onnotice: () => {} })
  try {
    for (const statement of statements) await client.unsafe(statement)
  } finally {
    await client.end({ timeout: 2 })
  }
}

/** Creates a database on all nodes, and connects the nodes. `nodes`: URLs, the coordinator first. */
export async function createOnCitus (nodes: readonly string[], name: string): Promise<string> {
  await dropOnCitus(nodes, name)
  for (const node of nodes) {
    await run(node, `CREATE DATABASE ${name}`)
    await run(urlOf(node, name), 'CREATE EXTENSION citus')
  }
  const [coordinator, ...workers] = nodes.map((node) => new URL(node))
  await run(coordinator!.href, `ALTER DATABASE ${name} SET citus.shard_count = 4`)
  await run(urlOf(coordinator!.href, name),
    `SELECT citus_set_coordinator_host('${coordinator!.hostname}', ${coordinator!.port})`,
    ...workers.map(({ hostname, port }) => `SELECT citus_add_node('${hostname}', ${port})`))
  return urlOf(coordinator!.href, name)
}

// Copies the settings that `ALTER DATABASE` and `ALTER ROLE … IN DATABASE` have set for the template. Citus executes
// these statements on the other nodes only in a database whose OID it knows, and it does not know the OID of a copy.
const copySettings = (name: string, template: string) => `
  DO $$ DECLARE its record; BEGIN
    FOR its IN
      SELECT unnest(setconfig) AS setting, CASE setrole WHEN 0 THEN '' ELSE 'ROLE CURRENT_USER IN ' END AS of_role
      FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase LEFT JOIN pg_roles r ON r.oid = setrole
      WHERE datname = '${template}' AND (setrole = 0 OR rolname = current_user)
    LOOP
      EXECUTE format('ALTER %sDATABASE ${name} SET %s = %L', its.of_role,
        split_part(its.setting, '=', 1), split_part(its.setting, '=', 2));
    END LOOP;
  END $$`

/** Copies a database and its settings on all nodes. The template must have no connections. */
export async function copyOnCitus (nodes: readonly string[], name: string, template: string): Promise<string> {
  await Promise.all(nodes.map((node) =>
    run(node, `CREATE DATABASE ${name} TEMPLATE ${template} STRATEGY file_copy`, copySettings(name, template))))
  return urlOf(nodes[0]!, name)
}

/** Renames a database on all nodes, the coordinator last. Ends its connections and refuses new connections. */
export async function makeTemplateOnCitus (nodes: readonly string[], name: string, newName: string): Promise<void> {
  for (const node of nodes.toReversed()) {
    await run(node,
      `ALTER DATABASE ${name} ALLOW_CONNECTIONS false`,
      `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '${name}'`,
      `ALTER DATABASE ${name} RENAME TO ${newName}`)
  }
}

/** Drops a database on all nodes. */
export async function dropOnCitus (nodes: readonly string[], name: string): Promise<void> {
  await Promise.all(nodes.map(async (node) => {
    for (let attempt = 1; ; attempt++) {
      try {
        return await run(node, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
      } catch (error) {
        // FORCE ends the maintenance process of Citus only for a moment; the process has just started again.
        if ((error as { code?: string }).code !== '55006' || attempt === 5) throw error
        await pause(500)
      }
    }
  }))
}

/** Starts a separate cluster for a test file; `startIsolatedApp` then creates its databases there. */
export async function useOwnCitus (t: Test, more: Record<string, string> = {}): Promise<TestCitus> {
  const cluster = await startCitus(more)
  const { TEST_DATABASE_URL, TEST_CITUS_NODES } = process.env
  t.teardown(async () => {
    await cluster.close()
    // The next test file of this process uses the shared cluster.
    Object.assign(process.env, { TEST_DATABASE_URL, TEST_CITUS_NODES })
  })
  process.env.TEST_DATABASE_URL = cluster.url
  process.env.TEST_CITUS_NODES = cluster.nodes.map(({ url }) => url).join()
  return cluster
}

/**
 * Runs SQL in the database of `sql` on each node, or on the only server without a cluster. Use this for tables that
 * triggers write on each node, outside of the cluster. Returns the rows of a SELECT on all nodes.
 */
export async function onEachNode (
  sql: (query: string) => Promise<Record<string, unknown>[]>, query: string
): Promise<Record<string, unknown>[]> {
  if (process.env.TEST_CITUS_NODES === undefined) return sql(query)
  const isSelect = /^\s*SELECT/.test(query)
  const text = isSelect ? `SELECT coalesce(json_agg(its), '[]') FROM (${query}) AS its` : query
  const answers = await sql(`SELECT success, result FROM run_command_on_all_nodes($node$${text}$node$)`)
  const failed = answers.find(({ success }) => success !== true)
  if (failed !== undefined) throw new Error(String(failed.result))
  return isSelect ? answers.flatMap(({ result }) => JSON.parse(String(result)) as Record<string, unknown>[]) : []
}

/** Messages in the logs of all nodes about deadlocks in the database of `sql`, on one node or between nodes. */
export async function deadlocksOnCitus (
  sql: (query: string) => Promise<Record<string, unknown>[]>
): Promise<unknown[]> {
  const lines = await onEachNode(sql, `
    SELECT line FROM string_to_table(pg_read_file(current_setting('data_directory') || '/../log'), chr(10)) AS line
    WHERE line LIKE '%] ' || current_database() || ' ERROR:%deadlock%'`)
  return lines.map(({ line }) => line)
}

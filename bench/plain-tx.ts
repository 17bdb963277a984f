import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { promisify } from 'node:util'
import type { Sql } from 'postgres'

// As many concurrent transactions as the service's pool has connections.
const CLIENTS = 10

/** The reference for writes: plain SQL in PostgreSQL. Each of the 20 organizations (`:o`) has one document. */
const SCRIPT = `\\set o random(1, 20)
BEGIN;
SELECT key_version FROM bench_projects WHERE id = :o FOR SHARE;
SELECT revision FROM bench_documents WHERE id = :o FOR UPDATE;
UPDATE bench_documents SET revision = revision + 1, content = :document WHERE id = :o;
INSERT INTO bench_versions (organization_id, document_id, content) VALUES (:o, :o, :document);
UPDATE bench_counters SET next_version = next_version + 1 WHERE organization_id = :o;
INSERT INTO bench_events (organization_id, action, actor_id, resource_id) VALUES (:o, 'secret.store', 1, :o);
COMMIT;
`

/** Creates the tables of the references `one-query` and `plain-tx`, with 20 documents of 4 KiB. */
export async function makeTables (sql: Sql): Promise<void> {
  await sql.unsafe(`
    CREATE TABLE bench_projects (id int PRIMARY KEY, key_version int NOT NULL);
    CREATE TABLE bench_documents (id int PRIMARY KEY, revision bigint NOT NULL, content text NOT NULL);
    CREATE TABLE bench_versions (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, organization_id int NOT NULL, document_id int NOT NULL,
      content text NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE bench_counters (organization_id int PRIMARY KEY, next_version bigint NOT NULL);
    CREATE TABLE bench_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, organization_id int NOT NULL, action text NOT NULL,
      actor_id bigint NOT NULL, resource_id text NOT NULL, occurred_at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX ON bench_versions (document_id, id);
    INSERT INTO bench_projects SELECT i, 1 FROM generate_series(1, 20) i;
    INSERT INTO bench_documents SELECT i, 1, '${document()}' FROM generate_series(1, 20) i;
    INSERT INTO bench_counters SELECT i, 1 FROM generate_series(1, 20) i`)
}

/** Returns a function that runs `pgbench` with prepared statements and returns transactions per second. */
export async function preparePlainTx (
  sql: Sql, url: string, dir: string
): Promise<(seconds: number) => Promise<number>> {
  const [found] = await sql`SELECT setting FROM pg_config WHERE name = 'BINDIR'`
  const pgbench = path.join(found!.setting, 'pgbench')
  const script = path.join(dir, 'plain-tx.sql')
  fs.writeFileSync(script, SCRIPT)
  const { hostname, port, username, pathname } = new URL(url)
  return async (seconds) => {
    const { stdout } = await promisify(execFile)(pgbench, [
      '-n', '-M', 'prepared', '-c', String(CLIENTS), '-j', '2', '-T', String(seconds), '-D', `document=${document()}`, '-f', script,
      '-h', hostname, '-p', port, '-U', username, pathname.slice(1)
    ])
    await sql`TRUNCATE bench_versions, bench_events`
    const [, tps] = /^tps = ([\d.]+)/m.exec(stdout) ?? []
    if (tps === undefined) throw new Error(`pgbench: ${stdout}`)
    return Number(tps)
  }
}

function document (): string {
  return randomBytes(3072).toString('base64')
}

import { getTableName, is, sql, type SQL } from 'drizzle-orm'
import { PgTable } from 'drizzle-orm/pg-core'
import type { Db } from '../../db/database.ts'
import { canMakeSchema, listMigrations } from '../../db/migrate.ts'
import { queryRow, queryRows } from '../../db/rows/query.ts'
import * as tables from '../../db/tables.ts'

// Reads and writes the whole database for backups. Tables and columns come from the PostgreSQL catalog. So a newer
// release can restore the schema of an older release, and new tables and columns need no code here.

/** Tables that a backup omits, with the reason. A restore of most of them would revive revoked or used credentials. */
export const LEFT_OUT: Readonly<Record<string, string>> = {
  sessions: 'People sign in again',
  sign_in_steps: 'Half a sign-in, of minutes',
  password_links: 'One that was used since would set a password again; an operator makes another one',
  password_resets: 'Of half an hour; one that was used since would set a password again',
  invitation_mails: 'When an invitation was mailed, of the last day',
  long_operations: 'A lock, which is held for the length of a transaction',
  oauth_requests: 'Belong to a session',
  oauth_codes: 'Of a minute, and used once',
  last_backup: 'Of the database that it was made of',
  spent_assertions: 'Those that were used since would be missing; a restore refuses all from before it instead',
  organization_restores: 'Of the database that was restored'
}

/** Tables that migrations fill. All other tables of an empty database have no rows. */
const SEEDED = ['plans', 'plan_prices', 'oauth_clients']

/** A table with the names and types of its columns, and with the columns of its primary key in order. */
export interface Table {
  name: string
  columns: { name: string, type: string }[]
  key: string[]
}

/** The values of a row, in column order: the bytes of a `bytea`, the bytes of PostgreSQL's text format, or null. */
export type Values = (Buffer | null)[]

/** An identity column with the last number that it generated. */
export interface Numbered { table: string, column: string, last: string }

const NAMES = Object.values(tables).filter((value) => is(value, PgTable)).map((table) => getTableName(table as PgTable))

// The maximum number of rows and bytes of a page. The last row may exceed the bytes, so that every page has at least
// one row.
const PAGE = { rows: 1_000, bytes: 1024 * 1024 }

const inPublic = ({ name }: { name: string }) => sql`public.${sql.identifier(name)}`
const listed = (parts: readonly SQL[]) => sql.join([...parts], sql`, `)

/** The tables of the service. A table comes after the tables that its foreign keys reference. */
export async function describeTables (db: Db): Promise<Table[]> {
  const found = await queryRows<Table & { needs: string[] }>(db, sql`
    SELECT c.relname AS name, (
      SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod))
        ORDER BY a.attnum)
      FROM pg_attribute a
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ) AS columns, (
      SELECT jsonb_agg(a.attname ORDER BY array_position(i.indkey::int2[], a.attnum))
      FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
      WHERE i.indrelid = c.oid AND i.indisprimary
    ) AS key, (
      SELECT coalesce(jsonb_agg(DISTINCT f.relname), '[]')
      FROM pg_constraint k JOIN pg_class f ON f.oid = k.confrelid
      WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid <> c.oid
    ) AS needs
    FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY c.relname`)
  const waiting = new Map(found.filter(({ name }) => NAMES.includes(name)).map((table) => [table.name, table]))
  const sorted: Table[] = []
  const take = (name: string) => {
    const table = waiting.get(name)
    if (table === undefined) return
    waiting.delete(name)
    for (const needed of table.needs) take(needed)
    sorted.push({ name, columns: table.columns, key: table.key })
  }
  for (const { name } of found) take(name)
  return sorted
}

// Settings that replace those for requests. Without sequential and bitmap scans, the planner reads each page by the
// primary key.
const SETTINGS = [
  'statement_timeout = 0', 'idle_in_transaction_session_timeout = 0', 'enable_seqscan = off', 'enable_bitmapscan = off'
]

/** Disables the timeouts of a transaction that handles the whole database. SET does not take its snapshot. */
export async function disableTimeouts (db: Db): Promise<void> {
  for (const setting of SETTINGS) await db.execute(sql.raw(`SET LOCAL ${setting}`))
}

/** Locks the tables against schema changes until the end of the transaction, without blocking reads and writes. */
export async function lockTableSchemas (db: Db, tables: readonly Table[]): Promise<void> {
  if (tables.length > 0) await db.execute(sql`LOCK TABLE ${listed(tables.map(inPublic))} IN ACCESS SHARE MODE`)
}

/** The total number of rows in these tables. */
export async function countRows (db: Db, tables: readonly Table[]): Promise<number> {
  let all = 0
  for (const table of tables) {
    const [row] = await queryRows<{ rows: number }>(db, sql`SELECT count(*)::float8 AS rows FROM ${inPublic(table)}`)
    all += row!.rows
  }
  return all
}

/** Reads all rows of a table in pages, sorted by the primary key. */
export async function * readRows (db: Db, table: Table): AsyncGenerator<Values[]> {
  const { columns, key } = table
  const typeOf = new Map(columns.map(({ name, type }) => [name, type]))
  const keys = listed(key.map((name) => sql.identifier(name) as unknown as SQL))
  const values = listed(columns.map(({ name, type }, i) =>
    sql`${sql.identifier(name)}${sql.raw(isBytes(type) ? '' : '::text')} AS ${sql.raw(`v${i}`)}`))
  for (let last: Values | undefined; ;) {
    const behind = last && listed(key.map((name) =>
      valueOf(typeOf.get(name)!, last![columns.findIndex((column) => column.name === name)]!)))
    // `sizeOf` needs the sizes of values only. PostgreSQL knows the size of a large value without reading the value.
    const rows = await queryRows<Record<string, unknown>>(db, sql`
      SELECT ${values} FROM (
        SELECT *, sum(row_bytes) OVER (ORDER BY ${keys}) - row_bytes AS bytes_before FROM (
          SELECT *, ${sizeOf(columns)} AS row_bytes FROM ${inPublic(table)}
          ${behind === undefined ? sql`` : sql`WHERE (${keys}) > (${behind})`} ORDER BY ${keys} LIMIT ${PAGE.rows}::int
        ) part
      ) page WHERE bytes_before < ${PAGE.bytes}::int ORDER BY ${keys}`)
    if (rows.length === 0) return
    const page = rows.map((row) => columns.map((_column, i) => {
      const value = row[`v${i}`]
      return typeof value === 'string' ? Buffer.from(value, 'utf8') : value as Buffer | null
    }))
    yield page
    last = page.at(-1)
  }
}

export async function insertRows (db: Db, table: Table, rows: readonly Values[]): Promise<void> {
  const { columns } = table
  const names = columns.map(({ name }) => sql.identifier(name) as unknown as SQL)
  const values = columns.map(({ type }, i) =>
    sql.raw(isBytes(type) ? `decode(v${i}, 'base64')` : `v${i}::${type}`))
  const json = JSON.stringify(rows.map((row) => Object.fromEntries(row.map((value, i) =>
    [`v${i}`, value === null ? null : value.toString(isBytes(columns[i]!.type) ? 'base64' : 'utf8')]))))
  await db.execute(sql`
    INSERT INTO ${inPublic(table)} (${listed(names)}) OVERRIDING SYSTEM VALUE
    SELECT ${listed(values)} FROM json_to_recordset(${json}::json) AS
      part (${listed(columns.map((_column, i) => sql.raw(`v${i} text`)))})`)
}

/** The last number of each identity column. Omits columns that have not generated a number yet. */
export async function listNumbered (db: Db, tables: readonly Table[]): Promise<Numbered[]> {
  const found = await queryRows<Numbered & { last: string | null }>(db, sql`
    SELECT c.relname AS "table", a.attname AS "column",
      pg_sequence_last_value(pg_get_serial_sequence(format('public.%I', c.relname), a.attname)::regclass)::text AS last
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attidentity <> ''
    ORDER BY c.relname`)
  return found.filter(({ table, last }) => last !== null && tables.some(({ name }) => name === table))
}

/** Sets identity columns to continue after these numbers, or after the largest stored value if it is larger. */
export async function restoreSequences (db: Db, numbered: readonly Numbered[]): Promise<void> {
  for (const { table, column, last } of numbered) {
    const name = sql.identifier(column)
    await db.execute(sql`
      SELECT setval(pg_get_serial_sequence(${`public.${table}`}, ${column})::regclass, greatest(${last}::bigint, (
        SELECT max(${name}) FROM ${inPublic({ name: table })})))`)
  }
}

// Lists database objects that do not belong to the service. `isTable`: a table in the schema `public`. Omits the
// objects of extensions, and the sequences of columns.
async function listUnknown (db: Db): Promise<{ name: string, isTable: boolean }[]> {
  return queryRows(db, sql`
    SELECT format('%I.%I', n.nspname, c.relname) AS name,
      n.nspname = 'public' AND c.relkind IN ('r', 'p') AS "isTable"
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
      AND NOT (n.nspname = 'public' AND c.relkind = 'r' AND c.relname IN (
        SELECT jsonb_array_elements_text(${JSON.stringify(NAMES)}::jsonb)))
      AND NOT (n.nspname = 'drizzle' AND c.relkind = 'r' AND c.relname = '__drizzle_migrations')
      AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND (
          d.deptype = 'e' OR (c.relkind = 'S' AND d.deptype IN ('a', 'i') AND d.refclassid = 'pg_class'::regclass)))
    ORDER BY n.nspname, c.relname`)
}

/** The names of tables in the schema `public` that do not belong to the service. */
export async function listUnknownTables (db: Db): Promise<string[]> {
  return (await listUnknown(db)).filter(({ isTable }) => isTable).map(({ name }) => name)
}

/**
 * The name of an object that shows that the database is not empty. Undefined if the database has only tables and rows
 * that migrations create. Tables count as the service's own only if the service's migrations are recorded.
 */
export async function findContent (db: Db): Promise<string | undefined> {
  const [strange] = await listUnknown(db)
  if (strange !== undefined) return strange.name
  const migrations = await listMigrations(db)
  const isOurs = canMakeSchema(migrations)
  if (migrations.length > 0 && !isOurs) return 'drizzle.__drizzle_migrations'
  for (const table of await describeTables(db)) {
    if (isOurs && SEEDED.includes(table.name)) continue
    const [row] = await queryRows(db, sql`SELECT 1 FROM ${inPublic(table)} LIMIT 1`)
    if (row !== undefined || !isOurs) return `public.${table.name}`
  }
  return undefined
}

/** Drops the tables and trigger functions of an empty database. */
export async function dropTables (db: Db): Promise<void> {
  const tables = await describeTables(db)
  const keepers = await queryRows<{ name: string }>(db, sql`
    SELECT DISTINCT p.proname AS name FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
      JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE c.relnamespace = 'public'::regnamespace AND p.pronamespace = c.relnamespace AND NOT t.tgisinternal`)
  if (tables.length > 0) await db.execute(sql`DROP TABLE ${listed(tables.map(inPublic))}`)
  for (const keeper of keepers) await db.execute(sql`DROP FUNCTION ${inPublic(keeper)}()`)
  // Keeps the schema `drizzle`, because other applications with Drizzle may also use it.
  await db.execute(sql`DROP TABLE IF EXISTS drizzle.__drizzle_migrations`)
}

export async function clearSeeds (db: Db, tables: readonly Table[]): Promise<void> {
  for (const table of tables.filter(({ name }) => SEEDED.includes(name)).reverse()) {
    await db.execute(sql`DELETE FROM ${inPublic(table)}`)
  }
}

/** Stores the time of the restore. A backup of an older schema has no trust rules, which need this time. */
export async function recordRestore (db: Db): Promise<void> {
  if (!(await describeTables(db)).some(({ name }) => name === getTableName(tables.organization_restores))) return
  // Citus evaluates no volatile function on workers.
  const { now } = await queryRow<{ now: string }>(db, sql`SELECT clock_timestamp()::text AS now`)
  await db.execute(sql`
    INSERT INTO organization_restores (organization_id, restored_at)
    SELECT id, ${now}::timestamptz FROM organizations`)
}

export async function analyze (db: Db): Promise<void> {
  await db.execute(sql`ANALYZE`)
}

const isBytes = (type: string) => type === 'bytea'

const valueOf = (type: string, value: Buffer): SQL => isBytes(type)
  ? sql`${value}::bytea`
  : sql`${value.toString('utf8')}::text::${sql.raw(type)}`

// The size of a row without its columns of small, fixed size.
function sizeOf (columns: readonly { name: string, type: string }[]): SQL {
  const sizes = columns.flatMap(({ name, type }) => /^(bytea|text|character varying)/.test(type) && !type.endsWith('[]')
    ? [sql`coalesce(octet_length(${sql.identifier(name)}), 0)`]
    : /^jsonb|\[\]$/.test(type) ? [sql`coalesce(pg_column_size(${sql.identifier(name)}), 0)`] : [])
  return sql`(${sql.join([sql`0::bigint`, ...sizes], sql` + `)})`
}

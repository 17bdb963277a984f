import { and, asc, eq, getTableName, gt, lte, or, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import { codeOf, type Db } from '../../db/database.ts'
import type { ChainKeyRow } from '../../db/events.ts'
import { andOwn, andRowsAlone, engineOf, groups, hasOrganization, type OfOrganization } from '../../db/postgres/engine.ts'
import { queryRow } from '../../db/rows/query.ts'
import {
  chain_keys, columnsOf, encryption_keys, master_key_canaries, organizations, second_factors, service_keys
} from '../../db/tables.ts'
import type { KeyRow } from './encryption-keys.ts'

/** The canary of each master key: a known value that the key has wrapped. Empty if the table does not exist. */
export async function listCanaries (db: Db): Promise<{ key_id: string, canary: Buffer }[]> {
  return rowsIfThere(() =>
    db.select({ key_id: master_key_canaries.key_id, canary: master_key_canaries.canary }).from(master_key_canaries))
}

/** Whether no value is wrapped by a master key: the database has no organizations and no canaries, or no tables. */
export async function wrapsNothing (db: Db): Promise<boolean> {
  // Also checks for organizations, because an attacker or a mistake may have deleted the canaries.
  const organization = await rowsIfThere(() => db.select({ id: organizations.id }).from(organizations).limit(1))
  return organization.length === 0 && (await listCanaries(db)).length === 0
}

// Returns an empty list if the table does not exist, which is the case before the first migration.
async function rowsIfThere<T> (select: () => PromiseLike<T[]>): Promise<T[]> {
  try {
    return await select()
  } catch (error) {
    if (codeOf(error) === '42P01') return []
    throw error
  }
}

/** Stores the canary of a master key. Call this before the key wraps any value. */
export async function createCanary (db: Db, key_id: string, canary: Buffer): Promise<void> {
  await db.insert(master_key_canaries).values({ key_id, canary }).onConflictDoNothing()
}

/** Locks a canary until the end of the transaction: deletions wait. Creates the canary if it is missing. */
export async function lockCanary (db: Db, key_id: string, canary: Buffer): Promise<void> {
  for (;;) {
    const held = await db.select({ key_id: master_key_canaries.key_id }).from(master_key_canaries)
      .where(eq(master_key_canaries.key_id, key_id)).for('key share')
    if (held.length > 0) return
    await createCanary(db, key_id, canary)
  }
}

/** Deletes a canary. Waits for transactions that have locked it, so the next statement sees the values they wrapped. */
export async function deleteCanary (db: Db, key_id: string): Promise<void> {
  await db.delete(master_key_canaries).where(eq(master_key_canaries.key_id, key_id))
}

/** Locks the table until the end of the transaction, so that no other starting instance creates the first canary. */
export async function lockCanaries (db: Db): Promise<void> {
  await db.execute(sql`LOCK TABLE ${master_key_canaries} IN SHARE ROW EXCLUSIVE MODE`)
}

/** A wrapped service key; `id` is its name. */
export interface ServiceKeyRow { id: string, wrapped: Buffer }

const serviceKey = { id: service_keys.name, wrapped: service_keys.wrapped }

export async function findServiceKey (db: Db, name: string): Promise<ServiceKeyRow | undefined> {
  const [row] = await db.select(serviceKey).from(service_keys).where(eq(service_keys.name, name))
  return row
}

export async function createServiceKey (db: Db, { id, wrapped }: ServiceKeyRow): Promise<void> {
  await db.insert(service_keys).values({ name: id, wrapped })
}

/** A wrapped chain key; `id` equals `kid`. */
export type NamedChainKeyRow = ChainKeyRow & { id: string }

export interface StorageKeyRow { id: string, storage_key: Buffer }

/** The wrapped values of a project key, with the columns of their encryption context. */
export type WrappedKeyRow = Pick<KeyRow,
  'id' | 'organization_id' | 'project_id' | 'version' | 'key_string' | 'data_key' | 'key_check' | 'salt'>

/** The wrapped secret of a second factor, with the columns of its encryption context. */
export interface FactorRow { id: number, factor_id: number, secret: Buffer }

/** A table with values that a master key wraps. */
export interface WrappedTable<Row extends { id: string | number }> {
  name: string
  /** The value of `after` for the first page. Sorts before every id. */
  first: Row['id']
  /**
   * Locks the next page of rows with a value that a master key other than `keyId` wraps. Rows are sorted by id. `next`:
   * the value of `after` for the next page; undefined for the last page.
   */
  lock: (db: Db, keyId: string, after: Row['id'], limit: number) => Promise<{ rows: Row[], next: Row['id'] | undefined }>
  update: (db: Db, rows: readonly Row[]) => Promise<void>
}

function wrappedTable<Row extends { id: string | number }> (
  table: PgTable, first: Row['id'], columns: Record<keyof Row & string, PgColumn>,
  wrapped: readonly (keyof Row & string)[], key: readonly (keyof Row & string)[] = ['id']
): WrappedTable<Row> {
  const nameOf = (column: keyof Row & string) => sql.identifier(columns[column].name)
  const typeOf = (column: keyof Row & string) => sql.raw(columns[column].getSQLType())
  const stored = [...key, ...wrapped]
  const list = (parts: SQL[]) => sql.join(parts, sql`, `)
  const isOld = (keyId: string) => or(...wrapped.map((column) => isNotUnder(columns[column], keyId)))
  return {
    name: getTableName(table),
    first,
    async lock (db, keyId, after, limit) {
      const select = (which?: SQL) => db.select(columns as Record<string, PgColumn>).from(table)
        .where(sql`${and(gt(columns.id, after), which, isOld(keyId))}${hasOrganization(table) ? sql`` : andRowsAlone}`)
        .orderBy(asc(columns.id)).limit(limit)
      const page = async (which?: SQL) => await select(which).for('no key update') as unknown as Row[]
      const found = await (isDivided(db, table) ? select() as unknown as Promise<Row[]> : page())
      const last = found.at(-1)?.id
      const next = found.length < limit ? undefined : last
      if (last === undefined || !isDivided(db, table)) return { rows: found, next }
      const rows: Row[] = []
      for (const [its] of partsOf(db, table, found)) {
        rows.push(...await page(sql`${lte(columns.id, last)}${andOwn(sql`organization_id`, ownerOf(its!))}`))
      }
      return { rows, next }
    },
    async update (db, rows) {
      for (const part of partsOf(db, table, rows)) {
        const values = part.map((row) => sql`(${list(stored.map((column) => sql`${row[column]}::${typeOf(column)}`))})`)
        const own = hasOrganization(table) ? andOwn(sql`k.organization_id`, ownerOf(part[0]!)) : sql``
        await db.execute(sql`
          UPDATE ${table} k SET ${list(wrapped.map((column) => sql`${nameOf(column)} = v.${nameOf(column)}`))}
          FROM (VALUES ${list(values)}) v (${list(stored.map((column) => sql`${nameOf(column)}`))})
          WHERE ${sql.join(key.map((column) => sql`k.${nameOf(column)} = v.${nameOf(column)}`), sql` AND `)}${own}`)
      }
    }
  }
}

// Whether each organization needs its own statement to lock and change rows of the table.
const isDivided = (db: Db, table: PgTable) => engineOf(db) === 'citus' && hasOrganization(table)
const ownerOf = (row: object) => (row as OfOrganization).organization_id

// Divides rows into the rows of each statement. The organizations are sorted, so that all transactions lock rows in the
// same order.
function partsOf<Row extends object> (db: Db, table: PgTable, rows: readonly Row[]): (readonly Row[])[] {
  if (!isDivided(db, table)) return [rows]
  return groups(rows, ownerOf).toSorted(([a], [b]) => ownerOf(a!) < ownerOf(b!) ? -1 : 1)
}

const { key_string, data_key, key_check, salt } = encryption_keys
const projectKeys = wrappedTable<WrappedKeyRow>(encryption_keys, 0, {
  ...columnsOf(encryption_keys, 'id', 'organization_id', 'project_id', 'version'), key_string, data_key, key_check, salt
}, ['key_string', 'data_key', 'key_check', 'salt'])

export const WRAPPED = {
  serviceKeys: wrappedTable<ServiceKeyRow>(service_keys, '', serviceKey, ['wrapped']),
  chainKeys: wrappedTable<NamedChainKeyRow>(chain_keys, '', {
    id: chain_keys.kid, ...columnsOf(chain_keys, 'organization_id', 'kid', 'from_seq', 'wrapped')
  }, ['wrapped'], ['organization_id', 'kid']),
  storageKeys: wrappedTable<StorageKeyRow>(
    organizations, '', columnsOf(organizations, 'id', 'storage_key'), ['storage_key']
  ),
  projectKeys: {
    ...projectKeys,
    // A database trigger lets the service change a retired key in two ways only: re-wrap its values, or delete its key
    // material. The setting tells the trigger that this is a re-wrap.
    async update (db: Db, rows: readonly WrappedKeyRow[]): Promise<void> {
      await db.execute(sql`SET LOCAL strongroom.rewrap = 'on'`)
      await projectKeys.update(db, rows)
    }
  },
  factors: wrappedTable<FactorRow>(second_factors, 0, {
    id: second_factors.user_id, factor_id: second_factors.id, secret: second_factors.secret
  }, ['secret'])
}

export async function countWrapped (db: Db, keyId: string): Promise<number> {
  const { count } = await queryRow<{ count: number }>(db, sql`
    SELECT count(*)::int AS count FROM (
      SELECT storage_key AS wrapped FROM organizations UNION ALL SELECT wrapped
        FROM service_keys UNION ALL SELECT secret FROM second_factors UNION ALL SELECT wrapped
        FROM chain_keys UNION ALL SELECT unnest(ARRAY[key_string, data_key, key_check, salt]) FROM encryption_keys
    ) w WHERE ${label(sql`wrapped`, keyId)} = ${labelOf(keyId)}::bytea`)
  return count
}

// A wrapped value begins with one byte for the length of its master key's id, followed by the id. The bytes are
// compared without decoding, because decoding a manipulated value could make the statement fail.
const labelOf = (keyId: string) => Buffer.concat([Buffer.of(keyId.length), Buffer.from(keyId)])
const label = (column: PgColumn | SQL, keyId: string) =>
  sql`substring(${column} from 1 for ${1 + keyId.length}::int)`
const isNotUnder = (column: PgColumn, keyId: string) => sql`${label(column, keyId)} <> ${labelOf(keyId)}::bytea`

import { and, asc, eq, gt, or, sql, type SQL } from 'drizzle-orm'
import type { AnyPgColumn } from 'drizzle-orm/pg-core'
import { codeOf, type Db } from '../../db/database.ts'
import type { ChainKeyRow } from '../../db/events.ts'
import {
  chain_keys, encryption_keys, master_key_canaries, organizations, second_factors, service_keys
} from '../../db/tables.ts'
import type { KeyRow } from './encryption-keys.ts'

/** Every master key that wraps a value in this database; empty for a database without tables. */
export async function listCanaries (db: Db): Promise<{ key_id: string, canary: Buffer }[]> {
  return rowsIfThere(() =>
    db.select({ key_id: master_key_canaries.key_id, canary: master_key_canaries.canary }).from(master_key_canaries))
}

/** Whether no master key has ever wrapped a value here, with or without a schema. */
export async function wrapsNothing (db: Db): Promise<boolean> {
  // Check organizations as well, because canaries may have been deleted.
  const organization = await rowsIfThere(() => db.select({ id: organizations.id }).from(organizations).limit(1))
  return organization.length === 0 && (await listCanaries(db)).length === 0
}

// Returns an empty list if the table does not exist, as before the first migration.
async function rowsIfThere<T> (select: () => PromiseLike<T[]>): Promise<T[]> {
  try {
    return await select()
  } catch (error) {
    if (codeOf(error) === '42P01') return []
    throw error
  }
}

/** Stores the canary of a master key that may wrap values from now on. */
export async function createCanary (db: Db, key_id: string, canary: Buffer): Promise<void> {
  await db.insert(master_key_canaries).values({ key_id, canary }).onConflictDoNothing()
}

/**
 * Locks the canary until the end of the transaction, and creates it if it is missing. A deletion of the canary waits.
 */
export async function lockCanary (db: Db, key_id: string, canary: Buffer): Promise<void> {
  for (;;) {
    const held = await db.select({ key_id: master_key_canaries.key_id }).from(master_key_canaries).where(eq(
      master_key_canaries.key_id, key_id
    )).for('key share')
    if (held.length > 0) return
    await createCanary(db, key_id, canary)
  }
}

/**
 * Deletes the canary of a master key. Waits for transactions that have locked the canary, so the next statement sees
 * the values that they wrapped.
 */
export async function deleteCanary (db: Db, key_id: string): Promise<void> {
  await db.delete(master_key_canaries).where(eq(master_key_canaries.key_id, key_id))
}

/** Prevents other starts from creating the first canary until the end of the transaction. */
export async function lockCanaries (db: Db): Promise<void> {
  await db.execute(sql`LOCK TABLE ${master_key_canaries} IN SHARE ROW EXCLUSIVE MODE`)
}

/** A wrapped key of the service, by name. */
export interface ServiceKeyRow { id: string, wrapped: Buffer }

const serviceKey = { id: service_keys.name, wrapped: service_keys.wrapped }

export async function findServiceKey (db: Db, name: string): Promise<ServiceKeyRow | undefined> {
  const [row] = await db.select(serviceKey).from(service_keys).where(eq(service_keys.name, name))
  return row
}

export async function createServiceKey (db: Db, { id, wrapped }: ServiceKeyRow): Promise<void> {
  await db.insert(service_keys).values({ name: id, wrapped })
}

/** A page of service keys, by name, that are not under this master key; locked until the end of the transaction. */
export async function lockServiceKeys (db: Db, keyId: string, after: string, limit: number): Promise<ServiceKeyRow[]> {
  return db.select(serviceKey).from(service_keys).where(and(
    gt(service_keys.name, after), isNotUnder(service_keys.wrapped, keyId)
  ))
    .orderBy(asc(service_keys.name)).limit(limit).for('no key update')
}

export async function updateServiceKeys (db: Db, rows: readonly ServiceKeyRow[]): Promise<void> {
  for (const { id, wrapped } of rows) await db.update(service_keys).set({ wrapped }).where(eq(service_keys.name, id))
}

/** A wrapped chain key with its unique name. */
export type NamedChainKeyRow = ChainKeyRow & { id: string }

/** A page of chain keys, by name, that are not under this master key; locked until the end of the transaction. */
export async function lockChainKeys (db: Db, keyId: string, after: string, limit: number): Promise<NamedChainKeyRow[]> {
  const { organization_id, kid, from_seq, wrapped } = chain_keys
  return db.select({ id: kid, organization_id, kid, from_seq, wrapped }).from(chain_keys)
    .where(and(gt(kid, after), isNotUnder(wrapped, keyId))).orderBy(asc(kid)).limit(limit).for('no key update')
}

export async function updateChainKeys (db: Db, rows: readonly NamedChainKeyRow[]): Promise<void> {
  const values = rows.map(({ organization_id, kid, wrapped }) =>
    sql`(${organization_id}::char(26), ${kid}::char(26), ${wrapped}::bytea)`)
  await db.execute(sql`
    UPDATE chain_keys k SET wrapped = v.wrapped
    FROM (VALUES ${sql.join(values, sql`, `)}) v (organization_id, kid, wrapped)
    WHERE k.organization_id = v.organization_id AND k.kid = v.kid`)
}

/** The wrapped storage key of an organization. */
export interface StorageKeyRow { id: string, storage_key: Buffer }

/** The wrapped values of a project key, with the columns of their encryption context. */
export type WrappedKeyRow = Pick<KeyRow,
  'id' | 'organization_id' | 'project_id' | 'version' | 'key_string' | 'data_key' | 'key_check' | 'salt'>

/**
 * A page of organizations, by id, whose storage key is not under this master key; locked until the end of the
 * transaction.
 */
export async function lockStorageKeys (db: Db, keyId: string, after: string, limit: number): Promise<StorageKeyRow[]> {
  return db.select({ id: organizations.id, storage_key: organizations.storage_key }).from(organizations)
    .where(and(gt(organizations.id, after), isNotUnder(organizations.storage_key, keyId)))
    .orderBy(asc(organizations.id)).limit(limit).for('no key update')
}

/**
 * A page of project keys, by id, with a value that is not under this master key; locked until the end of the
 * transaction.
 */
export async function lockWrappedKeys (db: Db, keyId: string, after: number, limit: number): Promise<WrappedKeyRow[]> {
  const { id, organization_id, project_id, version, key_string, data_key, key_check, salt } = encryption_keys
  return db.select({
    id, organization_id, project_id, version, key_string, data_key, key_check, salt
  }).from(encryption_keys)
    .where(and(
      gt(id, after), or(...[key_string, data_key, key_check, salt].map((column) => isNotUnder(column, keyId)))
    ))
    .orderBy(asc(id)).limit(limit).for('no key update')
}

export async function updateStorageKeys (db: Db, rows: readonly StorageKeyRow[]): Promise<void> {
  const values = rows.map(({ id, storage_key }) => sql`(${id}::char(26), ${storage_key}::bytea)`)
  await db.execute(
    sql`UPDATE organizations o SET storage_key = v.storage_key FROM (VALUES ${sql.join(values, sql`, `)}) v (id, storage_key) WHERE o.id = v.id`
  )
}

/**
 * Stores re-wrapped values. A database trigger permits only this change and the deletion of key material in a retired
 * key.
 */
export async function updateWrappedKeys (db: Db, rows: readonly WrappedKeyRow[]): Promise<void> {
  const values = rows.map(({ id, key_string, data_key, key_check, salt }) =>
    sql`(${id}::bigint, ${key_string}::bytea, ${data_key}::bytea, ${key_check}::bytea, ${salt}::bytea)`)
  await db.execute(sql`SET LOCAL strongroom.rewrap = 'on'`)
  await db.execute(sql`
    UPDATE encryption_keys k SET key_string = v.key_string, data_key = v.data_key, key_check = v.key_check,
      salt = v.salt
    FROM (VALUES ${sql.join(values, sql`, `)}) v (id, key_string, data_key, key_check, salt) WHERE k.id = v.id`)
}

/** The wrapped secret of a second factor, with the columns of its encryption context. */
export interface FactorRow { id: number, factor_id: number, secret: Buffer }

/**
 * A page of second factors, by account, whose secret is not under this master key; locked until the end of the
 * transaction.
 */
export async function lockFactors (db: Db, keyId: string, after: number, limit: number): Promise<FactorRow[]> {
  const { user_id: id, id: factor_id, secret } = second_factors
  return db.select({ id, factor_id, secret }).from(second_factors).where(and(gt(id, after), isNotUnder(secret, keyId)))
    .orderBy(asc(id)).limit(limit).for('no key update')
}

export async function updateFactors (db: Db, rows: readonly FactorRow[]): Promise<void> {
  const values = rows.map(({ id, secret }) => sql`(${id}::bigint, ${secret}::bytea)`)
  await db.execute(
    sql`UPDATE second_factors f SET secret = v.secret FROM (VALUES ${sql.join(values, sql`, `)}) v (id, secret) WHERE f.user_id = v.id`
  )
}

/** The number of values under a master key in the whole database. */
export async function countWrapped (db: Db, keyId: string): Promise<number> {
  const [row] = await db.execute(sql`
    SELECT count(*)::int AS count FROM (
      SELECT storage_key AS wrapped FROM organizations UNION ALL SELECT wrapped
        FROM service_keys UNION ALL SELECT secret FROM second_factors UNION ALL SELECT wrapped
        FROM chain_keys UNION ALL SELECT unnest(ARRAY[key_string, data_key, key_check, salt]) FROM encryption_keys
    ) w WHERE ${label(sql`wrapped`, keyId)} = ${labelOf(keyId)}::bytea`) as unknown as { count: number }[]
  return row!.count
}

// A wrapped value begins with the length of its master key's id and the id. The bytes are compared without decoding,
// because decoding a manipulated value could make the statement fail.
const labelOf = (keyId: string) => Buffer.concat([Buffer.of(keyId.length), Buffer.from(keyId)])
const label = (column: AnyPgColumn | SQL, keyId: string) =>
  sql`substring(${column} from 1 for ${1 + keyId.length}::int)`
const isNotUnder = (column: AnyPgColumn, keyId: string) => sql`${label(column, keyId)} <> ${labelOf(keyId)}::bytea`

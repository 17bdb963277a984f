import { sql, type BuildColumns, type BuildExtraConfigColumns, type SQL } from 'drizzle-orm'
import {
  customType, pgTable, timestamp, type PgColumn, type PgColumnBuilderBase, type PgTable, type PgTableExtraConfigValue,
  type PgTableWithColumns
} from 'drizzle-orm/pg-core'

/** Raw bytes: a Buffer in code, `bytea` in the database. */
export const bytea = customType<{ data: Buffer, driverData: Buffer }>({ dataType: () => 'bytea' })

/** A timestamp with milliseconds, like a Date in code. So a stored Date is read back unchanged. */
export const moment = () => timestamp({ withTimezone: true, mode: 'date', precision: 3 })

/**
 * The start of the statement, for checks of an expiry. Not now(), which is the start of the transaction, because the
 * transaction may have waited for locks since then.
 */
export const STATEMENT_TIME = sql`statement_timestamp()`

/** The new `updated_at`: the current time, or the old value if no column changes, so that the ETag stays the same. */
export const changedAt = (column: PgColumn, changes: object): SQL =>
  Object.values(changes).some((value) => value !== undefined) ? sql`now()` : sql`${column}`

/**
 * `exempt`: the row's MAC does not cover the column. `hidden`: no response shows the value as it is stored. `presence`:
 * sealed content; the MAC covers only whether there is content. `later`: came after a release; nullable, and the MAC
 * leaves the column out while it is null (0047).
 */
export type Kind = 'exempt' | 'hidden' | 'presence' | 'later'

/** A column with what its table declares about it. */
interface Declared<B extends PgColumnBuilderBase, K extends Kind> { column: B, kinds: readonly K[], effect: string }
type Column = PgColumnBuilderBase | Declared<PgColumnBuilderBase, Kind>
type Columns = Record<string, Column>
type BuilderOf<C> = Extract<C extends Declared<infer B, Kind> ? B : C, PgColumnBuilderBase>
type KindsOf<C> = C extends Declared<PgColumnBuilderBase, infer K> ? K : never

const partsOf = (column: Column): Declared<PgColumnBuilderBase, Kind> =>
  'kinds' in column ? column as Declared<PgColumnBuilderBase, Kind> : { column, kinds: [], effect: '' }

function mark<C extends Column, K extends Kind> (declared: C, kind: K, added = '') {
  const { column, kinds, effect } = partsOf(declared)
  return { column, kinds: [...kinds, kind], effect: effect + added } as unknown as
    Declared<BuilderOf<C>, KindsOf<C> | K>
}

/** `effect`: what an attacker with write access to the database gains by changing the column. SECURITY.md lists it. */
export const exempt = <C extends Column>(effect: string, column: C) => mark(column, 'exempt', effect)
export const hidden = <C extends Column>(column: C) => mark(column, 'hidden')
export const presence = <C extends Column>(column: C) => mark(column, 'presence')
export const later = <C extends Column>(column: C) => mark(column, 'later')

type Builders<C extends Columns> = { [K in keyof C]: BuilderOf<C[K]> } & { mac: ReturnType<typeof bytea> }
type NamesWith<C extends Columns, K extends Kind> =
  { [N in keyof C & string]: K extends KindsOf<C[N]> ? N : never }[keyof C & string]
type NamesOfBytes<C extends Columns> =
  { [N in keyof Builders<C> & string]: Builders<C>[N]['_']['data'] extends Buffer ? N : never }[keyof Builders<C> & string]

declare const NAMES: unique symbol

/** A table with a MAC: the names of the columns that the MAC does not cover, and of those that no response shows. */
export interface WithMac<Exempt extends string = string, Hidden extends string = string> {
  readonly [NAMES]: { exempt: Exempt, hidden: Hidden }
}

/** The tables with a MAC, with their columns in order. */
export const AUTHENTICATED_TABLES = new Map<PgTable, readonly (readonly [string, ReturnType<typeof partsOf>])[]>()

/**
 * Defines a table whose rows carry a MAC over all columns that are not exempt, in their order, `later` ones last. Any
 * other change of their list invalidates all stored MACs of the table (0047). The MAC is null in a revoked, used or
 * closed row, so that the row stays invalid.
 */
export function authenticated<N extends string, C extends Columns> (
  name: N, columns: C,
  more?: (table: BuildExtraConfigColumns<N, Builders<C>, 'pg'>) => PgTableExtraConfigValue[]
) {
  const parts = Object.entries(columns).map(([name, column]) => [name, partsOf(column)] as const)
  const builders = { ...Object.fromEntries(parts.map(([name, { column }]) => [name, column])), mac: bytea() }
  const table = pgTable(name, builders as unknown as Builders<C>, more)
  AUTHENTICATED_TABLES.set(table, parts)
  return table as unknown as PgTableWithColumns<{
    name: N, schema: undefined, columns: BuildColumns<N, Builders<C>, 'pg'>, dialect: 'pg'
  }> & WithMac<NamesWith<C, 'exempt'>, NamesWith<C, 'hidden'> | NamesOfBytes<C>>
}

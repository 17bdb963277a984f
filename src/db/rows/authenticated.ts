import { getTableColumns, getTableName, type SQL } from 'drizzle-orm'
import { getTableConfig, type PgColumn, type PgTable } from 'drizzle-orm/pg-core'
import { AUTHENTICATED_TABLES, type Kind, type WithMac } from '../columns.ts'
import * as tables from '../tables.ts'
import { readerOf } from './joined.ts'

// What the tables with a MAC declare about their columns (`authenticated` in columns.ts). SECURITY.md lists the effects
// of changes of exempt columns, and those of tables without a MAC (`unauthenticated` in tables.ts).

type Tables = { [N in keyof typeof tables as (typeof tables)[N] extends WithMac ? N : never]: (typeof tables)[N] }
export type AuthenticatedTable = keyof Tables

type ColumnsOf<N extends AuthenticatedTable> = Tables[N]['_']['columns']
type RowOf<N extends AuthenticatedTable> = Tables[N]['$inferSelect']
type ExemptOf<N extends AuthenticatedTable> = Tables[N] extends WithMac<infer Exempt> ? Exempt : never
type HiddenOf<N extends AuthenticatedTable> = Tables[N] extends WithMac<string, infer Hidden> ? Hidden | 'mac' : never

export type AuthenticatedRow<N extends AuthenticatedTable> = Omit<RowOf<N>, ExemptOf<N> | 'mac'>

/** A row to insert: every column that the MAC covers, and others that have no default. */
export type NewRow<N extends AuthenticatedTable> = AuthenticatedRow<N> &
  Pick<Tables[N]['$inferInsert'], ExemptOf<N> & keyof Tables[N]['$inferInsert']>

/** Changes of a row. Undefined columns stay unchanged. The MAC covers values alone, so only other columns take SQL. */
export type RowChanges<N extends AuthenticatedTable> =
  Partial<AuthenticatedRow<N>> & { [C in ExemptOf<N> & keyof RowOf<N>]?: RowOf<N>[C] | SQL }

/** What a response may show of a row. */
export type ShownRow<N extends AuthenticatedTable> = Omit<RowOf<N>, HiddenOf<N>>

interface Declaration {
  table: PgTable
  key: readonly string[]
  /** The columns that the MAC covers. */
  fields: readonly string[]
  presence: readonly string[]
  later: readonly string[]
  /** The other columns, with the effect of a change. */
  exempt: Readonly<Record<string, string>>
  shown: readonly string[]
}

/** What a table that was defined with `authenticated` declares. */
export function declarationOf (table: PgTable): Declaration {
  const columns = AUTHENTICATED_TABLES.get(table)!
  const { primaryKeys: [primary], columns: all } = getTableConfig(table)
  const ofKind = (kind: Kind) => columns.flatMap(([name, { kinds }]) => kinds.includes(kind) ? [name] : [])
  const [exempt, hidden, later] = [ofKind('exempt'), ofKind('hidden'), ofKind('later')]
  const names = columns.map(([name]) => name)
  const bytes = all.flatMap((column) => column.getSQLType() === 'bytea' ? [column.name] : [])
  return {
    table,
    key: (primary?.columns ?? all.filter((column) => column.primary)).map(({ name }) => name),
    fields: [...names.filter((name) => !exempt.includes(name) && !later.includes(name)), ...later],
    presence: ofKind('presence'),
    later,
    exempt: Object.fromEntries(columns.flatMap(([name, { kinds, effect }]) =>
      kinds.includes('exempt') ? [[name, effect]] : [])),
    shown: names.filter((name) => !hidden.includes(name) && !bytes.includes(name))
  }
}

export const AUTHENTICATED = Object.fromEntries([...AUTHENTICATED_TABLES.keys()].map((table) =>
  [getTableName(table), declarationOf(table)])) as Readonly<Record<AuthenticatedTable, Declaration>>

function pick<C> (name: AuthenticatedTable, names: readonly string[]): C {
  const columns = getTableColumns(AUTHENTICATED[name].table) as Record<string, PgColumn>
  return Object.fromEntries(names.map((name) => [name, columns[name]!])) as C
}

/** The columns that verification needs: every authenticated column, and the MAC. */
export const authenticatedColumns = <N extends AuthenticatedTable>(name: N) =>
  pick<Omit<ColumnsOf<N>, ExemptOf<N>>>(name, [...AUTHENTICATED[name].fields, 'mac'])

/** The columns that a response may show. */
export const shownColumns = <N extends AuthenticatedTable>(name: N) =>
  pick<Omit<ColumnsOf<N>, HiddenOf<N>>>(name, AUTHENTICATED[name].shown)

const READERS = new Map<AuthenticatedTable, ReturnType<typeof readerOf>>()

/** Reads an authenticated row from the format of `to_jsonb`. */
export function fromJson<N extends AuthenticatedTable> (
  name: N, row: Readonly<Record<string, unknown>> | null
): (AuthenticatedRow<N> & { mac: Buffer | null }) | null {
  if (row === null) return null
  let read = READERS.get(name)
  if (read === undefined) READERS.set(name, read = readerOf(authenticatedColumns(name) as Record<string, PgColumn>))
  return read(row) as never
}

/** The columns of a row that a response may show. */
export function shownOf<N extends AuthenticatedTable> (name: N, row: RowOf<N>): ShownRow<N> {
  const shown: Record<string, unknown> = {}
  for (const column of AUTHENTICATED[name].shown) shown[column] = (row as Record<string, unknown>)[column]
  return shown as ShownRow<N>
}

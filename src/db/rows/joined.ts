import { sql, type GetColumnData, type SQL } from 'drizzle-orm'
import type { PgColumn } from 'drizzle-orm/pg-core'

type Columns = Record<string, PgColumn>
type Values<C extends Columns> = { [K in keyof C]: GetColumnData<C[K]> }
type Raw = Readonly<Record<string, unknown>>

/** Reads the values of columns, whose names begin with `prefix`, from a row of `preparedSql` or of `to_jsonb`. */
export function readerOf<C extends Columns> (columns: C, prefix = '') {
  const parts = Object.entries(columns).map(([name, column]) =>
    ({ name, from: prefix + name, convert: converterOf(column) }))
  return (row: Raw): Values<C> => {
    const values: Record<string, unknown> = {}
    for (const { name, from, convert } of parts) {
      const value = row[from]
      values[name] = value === null || convert === undefined ? value : convert(value)
    }
    return values as Values<C>
  }
}

function converterOf (column: PgColumn): ((value: unknown) => unknown) | undefined {
  if (column.dataType === 'date') return (value) => new Date(value as string)
  if (column.dataType === 'number') return Number
  if (column.getSQLType() !== 'bytea') return undefined
  return (value) => typeof value === 'string' ? Buffer.from(value.slice('\\x'.length), 'hex') : value
}

export const namesIn = (alias: string, columns: Columns): SQL =>
  sql.raw(Object.keys(columns).map((name) => `${alias}.${name}`).join(', '))

/**
 * Columns of a table that a statement joins. `selected` selects each as `alias_column`, and `read` reads them from a
 * row of the statement; null if the first one is null, because the statement has joined no row. `instead`: other
 * expressions for some columns. `when`: a condition, without which all are null.
 */
export function joined<C extends Columns> (
  alias: string, columns: C, { instead = {}, when }: { instead?: { [K in keyof C]?: SQL }, when?: SQL } = {}
) {
  const prefix = `${alias}_`
  const [first] = Object.keys(columns)
  const read = readerOf(columns, prefix)
  const selected = Object.entries(columns).map(([name, column]) => {
    const its = sql.raw(`${alias}.${name}`)
    const value = (instead as Record<string, SQL | undefined>)[name] ?? (column.dataType === 'array' ? sql`to_jsonb(${its})` : its)
    return sql`${when === undefined ? value : sql`CASE WHEN ${when} THEN ${value} END`} AS ${sql.raw(prefix + name)}`
  })
  return {
    names: sql.raw(Object.keys(columns).join(', ')),
    selected: sql.join(selected, sql`, `),
    read: (row: Raw) => row[prefix + first!] === null ? null : read(row)
  }
}

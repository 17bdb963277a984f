import { and, eq, getTableColumns, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'

/** The condition that columns of a table have these values, or the values of these columns of another table. */
export function matching<T extends PgTable> (
  table: T, values: { [C in keyof T['$inferSelect']]?: NonNullable<T['$inferSelect'][C]> | PgColumn | SQL }
): SQL {
  const columns = getTableColumns(table) as Record<string, PgColumn>
  return and(...Object.entries(values).map(([name, value]) => eq(columns[name]!, value)))!
}

import { and, eq, getTableColumns, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'

/** A condition: columns of a table equal these values, or these columns of another table. */
export function matching<T extends PgTable> (
  table: T, values: { [C in keyof T['$inferSelect']]?: NonNullable<T['$inferSelect'][C]> | PgColumn | SQL }
): SQL {
  const columns = getTableColumns(table) as Record<string, PgColumn>
  return and(...Object.entries(values).map(([name, value]) => eq(columns[name]!, value)))!
}

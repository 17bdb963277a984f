import { sql, type SQL } from 'drizzle-orm'
import { engineOf, fromList, type OfOrganization } from './engine.ts'
import type { Db } from './handle.ts'
import { preparedSql, type Value } from './prepared.ts'

type Named = [name: string, change: SQL]

interface Changes {
  /** The lists that the changes read, by name (`rowsIn`). */
  lists: Record<string, SQL>
  /** The changes, in order, each with a name. `from` contains each list as an item of a FROM clause. */
  changes: (from: Record<string, SQL>) => Named[]
}

const sources = (lists: Changes['lists']) =>
  Object.fromEntries(Object.entries(lists).map(([name, list]) => [name, fromList(name, list)]))

function inOneStatement (lists: Changes['lists'], changes: readonly Named[]): SQL {
  const named = [...Object.entries(lists), ...changes.slice(0, -1)]
  const ctes = named.map(([name, query]) => sql`${sql.raw(name)} AS (${query})`)
  return sql`WITH ${sql.join(ctes, sql`, `)} ${changes.at(-1)![1]}`
}

/**
 * Creates a function that changes rows of several tables. On PostgreSQL, all changes are in one statement with a `WITH`
 * clause. On Citus, each change is a statement, because Citus does not execute an INSERT in a `WITH` clause on the node
 * of the organization; these statements are sent together. The statements are prepared. The function returns the number
 * of rows that the last change affected.
 *
 * Call the function in a transaction, so that the statements on Citus commit together. No change may read what another
 * change writes: on PostgreSQL all changes see the same snapshot, but on Citus a change sees the earlier changes.
 * `unneeded`: names of changes that would affect no row; on Citus they are not sent.
 */
export function preparedChanges<A extends object> (name: string, build: ($: Value) => Changes) {
  const parts = ($: Value) => {
    const { lists, changes } = build($)
    return { lists, changes: changes(sources(lists)) }
  }
  const together = preparedSql<object, A>(name, ($) => {
    const { lists, changes } = parts($)
    return inOneStatement(lists, changes)
  })
  const apart = parts((name) => sql.placeholder(name)).changes.map(([changeName], i) =>
    ({ changeName, change: preparedSql<object, A>(`${name}_${changeName}`, ($) => parts($).changes[i]![1]) }))
  return async (db: Db, values: A & OfOrganization, unneeded: readonly string[] = []): Promise<{ count: number }> => {
    const rows = engineOf(db) === 'citus'
      ? (await Promise.all(
          apart.filter(({ changeName }) => !unneeded.includes(changeName)).map(({ change }) => change(db, values))
        )).at(-1)
      : await together(db, values)
    return rows as unknown as { count: number }
  }
}

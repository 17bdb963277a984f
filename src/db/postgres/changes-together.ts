import { sql, type SQL } from 'drizzle-orm'
import { engineOf, fromList, type OfOrganization } from './engine.ts'
import type { Db } from './handle.ts'
import { preparedSql, type Value } from './prepared.ts'

type Named = [name: string, change: SQL]

interface Changes {
  /** The lists that the changes read, by name (`rowsIn`). */
  lists: Record<string, SQL>
  /** The changes, in order, each with a name. `from` has each list, for a FROM clause. */
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
 * Changes rows of several tables: on PostgreSQL in one statement, in a `WITH`; on Citus in a statement for each change,
 * sent together, because an INSERT within a `WITH` is not executed on the machine of its organization. The statement is
 * prepared; `executeChanges` does the same once. Returns the number of rows that the last change affected.
 *
 * Call the returned function in a transaction, because on Citus several statements commit together only there. On
 * PostgreSQL all changes see the same snapshot, and on Citus each sees the changes before it, so no change may read
 * what another one writes. `unneeded`: names of changes that would affect no row; on Citus they are not sent.
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

/** Like `preparedChanges`, but not prepared: the values are in the SQL. */
export async function executeChanges (
  db: Db, lists: Changes['lists'], build: Changes['changes']
): Promise<void> {
  const changes = build(sources(lists))
  if (engineOf(db) !== 'citus') await db.execute(inOneStatement(lists, changes))
  else for (const [, change] of changes) await db.execute(change)
}

import { and, asc, eq, getTableColumns, gt, or, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import {
  AUTHENTICATED, authenticatedColumns, type AuthenticatedRow, type AuthenticatedTable
} from '../db/authenticated.ts'
import { macOf, rowsOf, verifies, type Db } from '../db/database.ts'
import { chainOf } from '../db/chain.ts'
import type { Head } from '../db/events.ts'
import { audit_events, master_key_canaries, oauth_clients, organization_counters, organizations } from '../db/tables.ts'

// How a database from before rows were authenticated is brought along: once, in one transaction.

const BATCH = 500

/** The rows of authenticated tables that migrations make: all that there may be before a first start. */
const SEEDED_CLIENTS: AuthenticatedRow<'oauth_clients'>[] = [
  {
    id: 'dotenv-cli',
    name: 'Command line',
    redirect_uris: ['http://localhost/callback', 'http://127.0.0.1/callback'],
    is_first_party: true,
    disabled_at: null
  },
  {
    id: 'swagger-ui',
    name: 'API documentation',
    redirect_uris: ['/docs/static/oauth2-redirect.html'],
    is_first_party: true,
    disabled_at: null
  }
]

/** Until the end of the transaction, nobody else brings this database along, or begins to serve from it. */
export async function lockCanaries (db: Db): Promise<void> {
  await db.execute(sql`LOCK TABLE ${master_key_canaries} IN SHARE ROW EXCLUSIVE MODE`)
}

/**
 * Until the end of the transaction, nobody writes an authenticated row or an event: what an older build adds afterwards
 * has no MAC.
 */
export async function lockAuthenticatedTables (db: Db): Promise<void> {
  const tables = Object.values(AUTHENTICATED).map(({ table }) => sql`${table}`)
  tables.push(sql`${organization_counters}`, sql`${audit_events}`)
  await db.execute(sql`LOCK TABLE ${sql.join(tables, sql`, `)} IN SHARE ROW EXCLUSIVE MODE`)
}

// Events of one statement, when those from before are chained.
const EVENTS = 1_000

/**
 * Chains the events from before, in the order of their numbers, and counts them. Numbers that are missing by then stay
 * missing: the MAC of the next event says so. Events whose organization is gone get the counter of their chain back.
 */
export async function chainEvents (db: Db): Promise<number> {
  const chain = chainOf(db)
  const { organization_id, seq, mac: _, ...columns } = getTableColumns(audit_events)
  let done = 0
  for (let organization = ''; ;) {
    const [next] = await db.select({ id: organization_id }).from(audit_events).where(gt(organization_id, organization))
      .orderBy(asc(organization_id)).limit(1)
    if (next === undefined) return done
    organization = next.id
    let head: Omit<Head, 'chain_kid'> = { next_event: 1, event_head: null }
    for (let last = 0, isEnd = false; !isEnd;) {
      const events = await db.select({ organization_id, seq, ...columns }).from(audit_events)
        .where(and(eq(organization_id, organization), gt(seq, last))).orderBy(asc(seq)).limit(EVENTS)
      const sealed = events.map((event) => {
        const event_head = chain.mac({ ...event, chain_kid: chain.kid }, head.event_head)
        head = { next_event: event.seq + 1, event_head }
        return { seq: event.seq, mac: event_head }
      })
      await db.execute(sql`
        UPDATE audit_events SET chain_kid = ${chain.kid}, mac = decode(sealed.mac, 'base64')
        FROM ${rowsOf(organization, sealed, sql`seq bigint, mac text`)} sealed
        WHERE audit_events.organization_id = sealed.organization_id AND audit_events.seq = sealed.seq`)
      done += events.length
      last = head.next_event - 1
      isEnd = events.length < EVENTS
    }
    await db.insert(organization_counters).values({ organization_id: organization, ...head })
      .onConflictDoUpdate({
        target: organization_counters.organization_id,
        set: {
          event_head: head.event_head,
          next_event: sql`greatest(${organization_counters.next_event}, excluded.next_event)`
        }
      })
  }
}

/** Gives every row of a table its MAC, or every one `among` it, and counts them. */
export async function authenticateTable (db: Db, name: AuthenticatedTable, among?: SQL): Promise<number> {
  let done = 0
  for await (const rows of readAuthenticated(db, name, among)) {
    await writeMacs(db, name, rows)
    done += rows.length
  }
  return done
}

/**
 * Counts the rows of a table that are authentic, and those that have ended and count for nothing; tells of the others.
 */
export async function judgeTable (
  db: Db, name: AuthenticatedTable, tell: (row: Record<string, unknown>) => void
): Promise<{ authentic: number, ended: number }> {
  let [authentic, ended] = [0, 0]
  for await (const rows of readAuthenticated(db, name)) {
    for (const row of rows) {
      if (row.mac === null) ended++
      else if (verifies(db, name, row as never)) authentic++
      else tell(row)
    }
  }
  return { authentic, ended }
}

async function * readAuthenticated (
  db: Db, name: AuthenticatedTable, among?: SQL
): AsyncGenerator<Record<string, unknown>[]> {
  const { table, key, presence } = AUTHENTICATED[name] as unknown as {
    table: PgTable & Record<string, PgColumn>
    key: string[]
    presence: string[]
  }
  // What is sealed stays where it is: that it is there is all that is authenticated.
  const present = presence.map((column) => [column, sql<boolean>`${table[column]} IS NOT NULL`])
  const columns = { ...authenticatedColumns(name), ...Object.fromEntries(present) } as Record<string, PgColumn>
  for (let last: Record<string, unknown> | undefined; ;) {
    const rows = await db.select(columns).from(table)
      .where(and(among, last && behind(key.map((column) => [table[column]!, last![column]]))))
      .orderBy(...key.map((column) => asc(table[column]!))).limit(BATCH) as Record<string, unknown>[]
    last = rows.at(-1)
    if (last === undefined) return
    yield rows
    if (rows.length < BATCH) return
  }
}

/**
 * Writes beside API tokens who made them, and whose they are, as the events of then name them: through other tokens
 * too, also where those are gone. Before this was kept in the row, a token outlived the account; through which grant it
 * was made, nobody knows any more. What no event names was made by an operator.
 */
export async function nameMakers (db: Db): Promise<void> {
  await db.execute(sql`
    WITH RECURSIVE made AS (
      SELECT DISTINCT ON (organization_id, resource_id) organization_id, resource_id::bigint AS id, actor_type, actor_id
      FROM audit_events
      WHERE action = 'api-token.create' AND resource_type = 'api-token' AND resource_id ~ '^[0-9]{1,18}$'
        AND actor_type IN ('user', 'api_token') AND actor_id IS NOT NULL
      ORDER BY organization_id, resource_id, seq
    ), maker AS (
      SELECT organization_id, id, actor_type, actor_id FROM made
      UNION
      SELECT k.organization_id, k.id, m.actor_type, m.actor_id
      FROM maker k JOIN made m ON m.organization_id = k.organization_id
        AND m.id = k.actor_id WHERE k.actor_type = 'api_token'
    )
    UPDATE api_tokens t SET
      created_by_type = coalesce(t.created_by_type, m.actor_type),
      created_by_id = coalesce(t.created_by_id, m.actor_id),
      created_by_name = coalesce(t.created_by_name, CASE m.actor_type
        WHEN 'user' THEN (SELECT u.name FROM users u WHERE u.id = m.actor_id)
        ELSE (SELECT a.name FROM api_tokens a WHERE a.organization_id = t.organization_id AND a.id = m.actor_id)
      END),
      user_id = coalesce(t.user_id, (
        SELECT u.id FROM maker k JOIN users u ON u.id = k.actor_id
        WHERE k.organization_id = t.organization_id AND k.id = t.id AND k.actor_type = 'user' LIMIT 1
      ))
    FROM made m
    WHERE m.organization_id = t.organization_id AND m.id = t.id AND (t.created_by_type IS NULL OR t.user_id IS NULL)`)
}

/**
 * Gives the seeded rows of an empty database their MACs, made from what this build knows of them and not from what the
 * database holds. False when there is anything else, or one of them is another: the caller then takes it back.
 */
export async function authenticateSeeds (db: Db): Promise<boolean> {
  await writeMacs(db, 'oauth_clients', SEEDED_CLIENTS)
  const clients = await db.select(authenticatedColumns('oauth_clients')).from(oauth_clients)
  if (clients.length !== SEEDED_CLIENTS.length || !clients.every((client) => verifies(db, 'oauth_clients', client))) {
    return false
  }
  const others =
    Object.values(AUTHENTICATED).map(({ table }) => table as PgTable).filter((table) => table !== oauth_clients)
  for (const table of [organizations, ...others]) {
    if ((await db.select({ row: sql`1` }).from(table).limit(1)).length > 0) return false
  }
  return true
}

/** Puts MACs beside rows as they are given. */
async function writeMacs (db: Db, name: AuthenticatedTable, rows: readonly object[]): Promise<void> {
  const { table, key } = AUTHENTICATED[name] as unknown as { table: PgTable & Record<string, PgColumn>, key: string[] }
  const typed = (column: PgColumn, value: unknown) => sql`${sql.param(value, column)}::${sql.raw(column.getSQLType())}`
  const values = (rows as Record<string, unknown>[]).map((row) =>
    sql`(${sql.join([...key.map((column) => typed(table[column]!, row[column])), sql`${macOf(db, name, row as never)}::bytea`], sql`, `)})`)
  const names = sql.raw([...key, 'mac'].join(', '))
  const same = key.map((column) => sql`t.${sql.raw(column)} = v.${sql.raw(column)}`)
  await db.execute(
    sql`UPDATE ${table} t SET mac = v.mac FROM (VALUES ${sql.join(values, sql`, `)}) v (${names}) WHERE ${sql.join(same, sql` AND `)}`
  )
}

// Behind a row in the order of its key: one or two columns.
function behind ([first, second]: [PgColumn, unknown][]): SQL | undefined {
  const [column, value] = first!
  return second === undefined
    ? gt(column, value)
    : or(gt(column, value), and(eq(column, value), gt(second[0], second[1])))
}

/** The ids of all organizations. */
export async function listOrganizationIds (db: Db): Promise<string[]> {
  return (await db.select({ id: organizations.id }).from(organizations)).map(({ id }) => id)
}

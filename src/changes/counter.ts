import { is, sql, type SQL } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import type { Plan } from '../../schemas/organizations.ts'
import { CLOCK, headOf, type ChainKeyRow, type HeadRow } from '../db/events.ts'
import { andOwn, byOrganization, engineOf, findByOrganization, perEngine, type OfOrganization } from '../db/postgres/engine.ts'
import { DatabaseUnavailable } from '../db/postgres/database-errors.ts'
import type { Db } from '../db/postgres/handle.ts'
import { preparedSql } from '../db/postgres/prepared.ts'
import { chainOf } from '../db/rows/authority.ts'
import { CallerEnded, OrganizationInactive } from '../db/rows/caller.ts'
import { countersOf, type Counter } from '../db/rows/counter.ts'
import { isKeyOf, lookUp } from '../db/rows/lists.ts'
import { chain_keys } from '../db/tables.ts'

// Transactions that change an organization lock its row in `organization_counters`, the counter. Long operations and
// changes that create an organization lock the counter after all other rows; other changes lock the counter first.

/** `off` sets PostgreSQL's `synchronous_commit` to off; `on` keeps the setting of the server. */
export type SynchronousCommit = 'on' | 'off'

const isAmong = (ids: unknown) =>
  isKeyOf(sql`organization_id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${ids}::jsonb)`)

// Citus can move the rows of an organization to another node. An UPDATE waits for the end of a move, and prevents moves
// until the transaction ends. A SELECT alone could lock the old row that the move leaves behind, so that two changes
// could run at once. So the SELECT contains an UPDATE, which changes no row.
const PINNED = perEngine({
  postgres: sql``,
  citus: sql`WITH pinned AS (
    UPDATE organization_counters SET status = status WHERE status = ''${andOwn(sql`organization_id`)}
  ) `
})

// With the idle timeout, PostgreSQL ends the transaction after a second if the process hangs; the embedded database has
// no such timeout (ONLY_SESSION). With the lock timeout, a wait for another lock ends before deadlock_timeout (1 s).
// Counters are locked in the order of ids, to avoid deadlocks.
const locking = (name: string, skip: SQL) => preparedSql<
  HeadRow & Pick<Counter, 'organization_id' | 'is_closed' | 'status'> &
    { next_version: string, stored_bytes: string, plan: Plan | null, clock: number, at: number, has_triggers: boolean },
  OfOrganization & { ids: string, synchronous_commit: string }
>(name, ($) => sql`
  ${PINNED}SELECT locked.*, (SELECT to_jsonb(p) FROM plans p WHERE p.name = locked.plan_name) AS plan, ${CLOCK} AS clock,
    (extract(epoch FROM greatest(clock_timestamp(), least(locked.last_at, clock_timestamp() + interval '1 hour'))) * 1000)
      ::float8 AS at,
    current_setting('session_replication_role') <> 'replica' AS has_triggers,
    set_config('idle_in_transaction_session_timeout',
      coalesce(substring(current_setting('strongroom.idle_timeout', true) FROM '^[0-9]{1,9}$'), '1000'), true),
    set_config('lock_timeout', '900', true),
    CASE WHEN ${$('synchronous_commit')}::text = 'off' THEN set_config('synchronous_commit', 'off', true) END AS setting
  FROM (
    SELECT organization_id, next_version, stored_bytes, next_event, event_head, chain_kid, last_at, is_closed,
      status, plan AS plan_name
    FROM organization_counters WHERE ${isAmong($('ids'))}${andOwn(sql`organization_id`)} ORDER BY organization_id FOR NO KEY UPDATE ${skip}
  ) AS locked`)
const LOCK = { all: locking('lock_counters', sql``), free: locking('lock_free_counters', sql`SKIP LOCKED`) }

/** Locks counter rows. `all` waits until other transactions release the rows; `free` omits locked rows. */
export async function lockCounters (
  db: Db, ids: Iterable<string>, which: keyof typeof LOCK, synchronous_commit: SynchronousCommit = 'on'
): Promise<Map<string, Counter>> {
  // Without a transaction the lock would end with the statement.
  if (!is(db, PgTransaction)) throw new Error('a counter can only be locked in a transaction')
  const sentAt = performance.now()
  const parts = byOrganization(db, [...new Set(ids)].sort().map((organization_id) => ({ organization_id })))
  // Sends the statement also without ids, so that a refused sign-in takes the same time with and without an account.
  // Not on Citus, where a refused sign-in never locks counters.
  const withoutIds = engineOf(db) === 'citus' ? [] : [[{ organization_id: '' }]]
  const rows = (await Promise.all((parts.length === 0 ? withoutIds : parts).map((part) => LOCK[which](db, {
    organization_id: part[0]!.organization_id,
    ids: JSON.stringify(part.map(({ organization_id }) => organization_id)),
    synchronous_commit
  })))).flat()
  if (rows.some(({ has_triggers }) => !has_triggers)) refuseWithoutTriggers()
  const chain = chainOf(db)
  for (const { clock } of rows) chain.recordClockSample(clock, sentAt)
  await openKeys(db, rows)
  const counters = rows.map((row): Counter => ({
    organization_id: row.organization_id,
    next_version: Number(row.next_version),
    stored_bytes: Number(row.stored_bytes),
    head: headOf(row),
    headAtLock: headOf(row),
    at: new Date(row.at),
    is_closed: row.is_closed,
    status: row.status,
    plan: row.plan ?? failForNewPlan(),
    hasKey: chain.hasKey(row.organization_id, row.chain_kid)
  }))
  countersOf(db).push(...counters)
  return new Map(counters.map((counter) => [counter.organization_id, counter]))
}

/** Throws CallerEnded if the organization was deleted, and OrganizationInactive if it is not active. */
export function requireOpen (counter: Counter | undefined): asserts counter is Counter {
  if (counter === undefined || counter.is_closed) throw new CallerEnded()
  if (counter.status !== 'active') throw new OrganizationInactive(counter.status)
}

const findKeys = preparedSql<Omit<ChainKeyRow, 'from_seq'> & { from_seq: string }, OfOrganization & { wanted: string }>(
  'chain_keys', ($) => sql`
  SELECT chain_keys.organization_id, chain_keys.kid, from_seq, wrapped
  FROM jsonb_to_recordset(${$('wanted')}::jsonb) AS wanted (organization_id char(26), kid char(26))
  CROSS JOIN ${lookUp('chain_keys', chain_keys,
    sql`organization_id = wanted.organization_id AND kid = wanted.kid`)}`)

// Loads the chain keys of the counters, unless they are loaded. Omits a key that is missing or cannot be unwrapped.
async function openKeys (db: Db, rows: readonly { organization_id: string, chain_kid: string | null }[]) {
  const chain = chainOf(db)
  const wanted = rows.filter(({ organization_id, chain_kid }) => !chain.hasKey(organization_id, chain_kid))
    .map(({ organization_id, chain_kid }) => ({ organization_id, kid: chain_kid }))
  const keys = await findByOrganization(db, wanted, (organization_id, wanted) =>
    findKeys(db, { organization_id, wanted }))
  for (const row of keys) chain.openKey({ ...row, from_seq: Number(row.from_seq) })
}

// A start refuses this setting, but a later connection can have it. Foreign keys then delete nothing.
function refuseWithoutTriggers (): never {
  throw new DatabaseUnavailable(
    'session_replication_role is replica, which turns off foreign keys: a superuser has to reset it')
}

// While the statement waited for the lock, the organization got a plan that was added after the statement's snapshot.
function failForNewPlan (): never {
  throw new DatabaseUnavailable('The plan of the organization was added a moment ago')
}

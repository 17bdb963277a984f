import { is, sql, type SQL } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import { authorityOf, macOf, tampered } from './authority.ts'
import { callerCtes, callersLive } from './caller.ts'
import {
  CLOCK, expectedHeads, HAND_OVER, headOf, insertEvents, type ChainKeyRow, type EventChain, type EventRow, type Head,
  type HeadRow
} from './events.ts'
import type { Db } from './handle.ts'
import { makeId } from './ids.ts'
import { isKeyOf, lookUp } from './lists.ts'
import { preparedSql, type Value } from './prepared.ts'
import { chain_keys, type audit_events } from './tables.ts'

// How events get behind the end of their chain: by a counter that is taken first, in a transaction, or by a guess where
// it ends, in one statement that does nothing where the guess is wrong.

/** What a commit waits for: with `off`, not for the disk; else, for what the server is set to. */
export type SynchronousCommit = 'on' | 'off'

/** What a MAC goes over. */
export type ChainedColumn = Exclude<keyof (typeof audit_events)['$inferSelect'], 'mac'>

// Every column but the MAC itself. Their order is part of the MAC: a change of it needs a new key, by whose id an event
// says which order it has.
const CHAINED = {
  organization_id: true,
  seq: true,
  occurred_at: true,
  action: true,
  actor_type: true,
  actor_id: true,
  resource_type: true,
  resource_id: true,
  request_id: true,
  ip: true,
  user_agent: true,
  details: true,
  chain_kid: true
} satisfies Record<ChainedColumn, true>
/** What a MAC goes over, in this order, before the MAC of the event before. */
export const CHAINED_COLUMNS = Object.keys(CHAINED) as ChainedColumn[]

export const chainOf = (db: Db): EventChain => authorityOf(db).chain

/** Events with numbers and MACs, as parameters of `insertEvents`, and where their chains then end. */
export interface SealedEvents {
  events: string
  /** For each organization, what was expected of its counter and what that becomes. */
  heads: string
  after: ReadonlyMap<string, Head>
}

/**
 * Numbers events behind the heads of their organizations, in this order, and makes their MACs. The keys that the heads
 * name are at hand.
 */
export function sealEvents (db: Db, heads: ReadonlyMap<string, Head>, rows: readonly EventRow[]): SealedEvents {
  const chain = chainOf(db)
  const now = chain.now()
  const after = new Map(heads)
  const events = rows.map((row) => {
    const { next_event: seq, event_head, chain_kid } = after.get(row.organization_id)!
    const occurred_at = row.occurred_at === undefined ? now : new Date(row.occurred_at)
    const event = { ...row, seq, occurred_at, chain_kid: chain_kid ?? chain.kid }
    const mac = chain.mac(event, event_head)
    after.set(row.organization_id, {
      next_event: seq + 1, event_head: mac, chain_kid: row.action === HAND_OVER ? row.resource_id : chain_kid
    })
    return { ...event, mac: mac.toString('hex') }
  })
  return {
    events: JSON.stringify(events),
    heads: JSON.stringify([...heads].map(([organization_id, { next_event, event_head }]) => {
      const then = after.get(organization_id)!
      return {
        organization_id,
        next_event,
        event_head: hexOf(event_head),
        then_event: then.next_event,
        then_head: hexOf(then.event_head)
      }
    })),
    after
  }
}

const hexOf = (bytes: Buffer | null) => bytes === null ? null : bytes.toString('hex')

type Ids = Iterable<string>

const idsJson = (ids: Ids) => JSON.stringify([...new Set(ids)])
const isAmong = (ids: unknown) =>
  isKeyOf(sql`organization_id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${ids}::jsonb)`)

// Outside of one, a counter would be free again before the events are there.
function requireTransaction (db: Db) {
  if (!is(db, PgTransaction)) throw new Error('a counter is held in a transaction')
}

interface Told extends HeadRow { organization_id: string, clock: number }

/** What answers of counters say, remembered. */
function learn (db: Db, rows: readonly Told[], asked: number): Map<string, Head> {
  const { heads, told } = chainOf(db)
  return new Map(rows.map((row) => {
    const head = headOf(row)
    heads.set(row.organization_id, head)
    told(row.clock, asked)
    return [row.organization_id, head]
  }))
}

const takeWithCaller = preparedSql<Told, { organization_id: string, callers: string }>('take_head', ($) => sql`
  WITH ${callerCtes($('callers'))}
  SELECT organization_id, next_event, event_head, chain_kid, ${CLOCK} AS clock FROM organization_counters
  WHERE organization_id = ${$('organization_id')}::char(26) AND ${callersLive}
    AND (NOT is_closed OR NOT EXISTS (SELECT FROM caller))
  FOR NO KEY UPDATE`)

/**
 * Takes the counter of an organization until the end of the transaction, with those who let the change in
 * (`callersJson`) before it. Undefined, and no counter taken, when one of these has ended, or the organization with
 * them.
 */
export async function takeHead (db: Db, organizationId: string, callers: string): Promise<Head | undefined> {
  requireTransaction(db)
  const asked = performance.now()
  return learn(db, await takeWithCaller(db, { organization_id: organizationId, callers }), asked).get(organizationId)
}

// Counters are taken in one order, and not waited for where they are skipped. The setting lasts until this transaction
// commits.
const take = (name: string, held: 'SKIP LOCKED' | '') =>
  preparedSql<Told, { ids: string, synchronous_commit: string }>(name, ($) => sql`
    WITH setting AS MATERIALIZED (
      SELECT CASE WHEN ${$('synchronous_commit')}::text = 'off' THEN set_config('synchronous_commit', 'off', true) END
    )
    SELECT organization_id, next_event, event_head, chain_kid, ${CLOCK} AS clock FROM organization_counters
    WHERE ${isAmong($('ids'))} AND (SELECT count(*) FROM setting) = 1
    ORDER BY organization_id FOR NO KEY UPDATE ${sql.raw(held)}`)
const TAKE = { free: take('take_free_heads', 'SKIP LOCKED'), 'in turn': take('take_heads', '') }

/** Takes counters until the end of the transaction: those that are `free`, or all, `in turn` with who holds them. */
export async function takeHeads (
  db: Db, ids: Ids, which: keyof typeof TAKE, synchronousCommit: SynchronousCommit = 'on'
): Promise<Map<string, Head>> {
  requireTransaction(db)
  const asked = performance.now()
  return learn(db, await TAKE[which](db, { ids: idsJson(ids), synchronous_commit: synchronousCommit }), asked)
}

/** Of heads that were taken, those behind which something can be recorded: their key is there and opens. */
export async function withKeys (db: Db, heads: ReadonlyMap<string, Head>): Promise<Map<string, Head>> {
  const left = new Map(heads)
  for (const id of await openKeys(db, heads)) left.delete(id)
  return left
}

const tell = preparedSql<Told, { ids: string }>('find_heads', ($) => sql`
  SELECT organization_id, next_event, event_head, chain_kid, ${CLOCK} AS clock FROM organization_counters
  WHERE ${isAmong($('ids'))}`)

/**
 * Where a chain ends as far as this process knows, to go by that. Undefined where it does not know, has not opened the
 * chain's key yet, or guessed wrong just now.
 */
export function guessHead (db: Db, organizationId: string): Head | undefined {
  const { heads, isMissedOften, hasKey } = chainOf(db)
  if (isMissedOften(organizationId)) return undefined
  const head = heads.get(organizationId)
  return head !== undefined && hasKey(organizationId, head.chain_kid) ? head : undefined
}

/** `guessHead` of several, of which it looks up what this process does not know. */
export async function findHeads (db: Db, all: Ids): Promise<Map<string, Head>> {
  const { heads, isMissedOften } = chainOf(db)
  const ids = [...new Set(all)].filter((id) => !isMissedOften(id))
  const unknown = ids.filter((id) => heads.get(id) === undefined)
  if (unknown.length > 0) {
    const asked = performance.now()
    learn(db, await tell(db, { ids: idsJson(unknown) }), asked)
  }
  return new Map(ids.flatMap((id) => {
    const head = guessHead(db, id)
    return head === undefined ? [] : [[id, head]]
  }))
}

const findKeys = preparedSql<Omit<ChainKeyRow, 'from_seq'> & { from_seq: string }, { wanted: string }>(
  'chain_keys', ($) => sql`
  SELECT chain_keys.organization_id, chain_keys.kid, from_seq, wrapped
  FROM jsonb_to_recordset(${$('wanted')}::jsonb) AS wanted (organization_id char(26), kid char(26))
  CROSS JOIN ${lookUp('chain_keys', chain_keys,
    sql`organization_id = wanted.organization_id AND kid = wanted.kid`)}`)

// Whoever took a counter opens the key that it names, once in a process. Answers whose key is not there or does not
// open: nothing more can be recorded of them, which is the trouble of no other organization.
async function openKeys (db: Db, heads: ReadonlyMap<string, Head>): Promise<string[]> {
  const chain = chainOf(db)
  const without = () => [...heads].filter(([id, { chain_kid }]) => !chain.hasKey(id, chain_kid))
  const wanted = without().map(([organization_id, { chain_kid }]) => ({ organization_id, kid: chain_kid }))
  if (wanted.length === 0) return []
  for (const row of await findKeys(db, { wanted: JSON.stringify(wanted) })) {
    chain.openKey({ ...row, from_seq: Number(row.from_seq) })
  }
  return without().map(([id]) => id)
}

const append = (name: string, beside: ($: Value) => SQL = () => sql``) =>
  preparedSql<{ seq: string }, { heads: string, events: string, growth: number, late?: string }>(name, ($) => sql`
    WITH expected AS (${expectedHeads($('heads'))}), counter AS (
      UPDATE organization_counters SET next_event = expected.then_event, event_head = expected.then_head,
        stored_bytes = stored_bytes + ${$('growth')}::bigint
      FROM expected WHERE organization_counters.organization_id = expected.organization_id
        AND ${isKeyOf(sql`organization_counters.organization_id`, sql`SELECT organization_id FROM expected`)}
        AND organization_counters.next_event = expected.next_event
      RETURNING organization_counters.organization_id
    )${beside($)}
    ${insertEvents($('events'))} RETURNING seq`)
const appendTaken = append('append_events')
const appendTakenOrLate = append('append_events_or_late', ($) => sql`, late AS (
    INSERT INTO late_events (organization_id, id, occurred_at, event, mac) OVERRIDING SYSTEM VALUE
    SELECT organization_id, id, occurred_at, event, decode(mac, 'hex') FROM jsonb_to_recordset(${$('late')}::jsonb)
      AS late (organization_id char(26), id bigint, occurred_at timestamptz, event jsonb, mac text)
  )`)

/**
 * Records events in organizations whose counters the transaction has taken, by what those said.
 *
 * @param growth bytes by which the one organization that this is about stores more, or less
 * @param late events of other organizations, to be numbered later, each with when it happened
 */
export async function appendEvents (
  db: Db, heads: ReadonlyMap<string, Head>, rows: readonly EventRow[],
  { growth = 0, late }: { growth?: number, late?: readonly (EventRow & { occurred_at: string })[] } = {}
): Promise<void> {
  if ((await openKeys(db, heads)).length > 0) tampered()
  const { after, ...values } = sealEvents(db, heads, rows)
  const recorded = late === undefined
    ? await appendTaken(db, { ...values, growth })
    : await appendTakenOrLate(db, { ...values, growth, late: JSON.stringify(late.map((event) => lateRow(db, event))) })
  if (recorded.length !== rows.length) throw new Error('the counter of an organization moved while it was held')
  // Before the commit, which others wait for: they then expect what it leaves.
  for (const [id, head] of after) chainOf(db).recorded(id, head)
}

// No part of the chain yet: a MAC of its own says until then that the service wrote it.
function lateRow (db: Db, event: EventRow & { occurred_at: string }) {
  const { organization_id } = event
  const row = { organization_id, id: makeId(), occurred_at: new Date(event.occurred_at), event }
  return { ...row, mac: macOf(db, 'late_events', row).toString('hex') }
}

/** Where a chain ended when somebody looked, which others may have moved on since. */
export function learnHead (db: Db, organizationId: string, head: Head) {
  const { heads } = chainOf(db)
  const known = heads.get(organizationId)
  if (known === undefined || known.next_event < head.next_event) heads.set(organizationId, head)
}

type Guessed = Told & { is_recorded: boolean }

const recordFree = preparedSql<Guessed, { heads: string, events: string, synchronous_commit: string }>(
  'record_reads', ($) => sql`
  WITH expected AS MATERIALIZED (
    SELECT head.*,
      CASE WHEN ${$('synchronous_commit')}::text = 'off' THEN set_config('synchronous_commit', 'off', true) END
    FROM (${expectedHeads($('heads'))}) AS head
  ), free AS (
    SELECT organization_id, next_event, event_head, chain_kid FROM organization_counters
    WHERE ${isKeyOf(sql`organization_id`, sql`SELECT organization_id FROM expected`)}
    ORDER BY organization_id FOR NO KEY UPDATE SKIP LOCKED
  ), counter AS (
    UPDATE organization_counters SET next_event = expected.then_event, event_head = expected.then_head
    FROM expected JOIN free USING (organization_id)
    WHERE organization_counters.organization_id = expected.organization_id
      AND free.next_event = expected.next_event AND free.event_head IS NOT DISTINCT FROM expected.event_head
    RETURNING organization_counters.organization_id
  ), event AS (${insertEvents($('events'))})
  SELECT free.organization_id, free.next_event, free.event_head, free.chain_kid, ${CLOCK} AS clock,
    counter.organization_id IS NOT NULL AS is_recorded
  FROM free LEFT JOIN counter USING (organization_id)`)

/**
 * Records events by one statement, in the organizations whose counter nobody holds and whose chain ends where it is
 * thought to. Answers these; where the others end is known afterwards, but for those that were held.
 */
export async function recordGuessed (
  db: Db, heads: ReadonlyMap<string, Head>, all: readonly EventRow[], synchronousCommit: SynchronousCommit
): Promise<Set<string>> {
  const events = all.filter(({ organization_id }) => heads.has(organization_id))
  if (events.length === 0) return new Set()
  const chain = chainOf(db)
  const { after, ...values } = sealEvents(db, heads, events)
  const asked = performance.now()
  const rows = await recordFree(db, { ...values, synchronous_commit: synchronousCommit })
  learn(db, rows, asked)
  const recorded = new Set<string>()
  for (const { organization_id, is_recorded } of rows) {
    if (is_recorded) {
      recorded.add(organization_id)
      chain.recorded(organization_id, after.get(organization_id)!)
    } else chain.missed(organization_id)
  }
  return recorded
}

const firmHeads = preparedSql<HeadRow & { organization_id: string }, { ids: string }>('firm_heads', ($) => sql`
  SELECT organization_id, next_event, event_head, chain_kid FROM organization_counters
  WHERE ${isAmong($('ids'))} ORDER BY organization_id FOR KEY SHARE`)

/**
 * Where chains end for good: what this tells outlives a crash of the machine. A row lock is written to the log, and its
 * commit waits for the disk with everything before it, also with what did not wait itself. It waits for nobody.
 */
export async function findFirmHeads (db: Db, ids: Ids): Promise<Map<string, Head>> {
  const rows = await firmHeads(db, { ids: idsJson(ids) })
  return new Map(rows.map((row) => [row.organization_id, headOf(row)]))
}

/** Asks for the database's time. */
export async function readClock (db: Db): Promise<void> {
  const asked = performance.now()
  const [row] = await db.execute(sql`SELECT ${CLOCK} AS clock`) as unknown as { clock: number }[]
  chainOf(db).told(row!.clock, asked)
}

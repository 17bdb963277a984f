import { and, eq, sql, type SQL } from 'drizzle-orm'
import type { VersionAction } from '../../schemas/versions.ts'
import { CallerEnded, callerCtes, callersJson, callersLive, orAgain } from '../db/caller.ts'
import { appendEvents, chainOf, sealEvents } from '../db/chain.ts'
import {
  codeOf, isForeignKeyViolation, isUniqueViolation, macOf, preparedSql, transaction, type Db, type Value
} from '../db/database.ts'
import { CLOCK, eventRow, headOf, insertEvents, type Head, type HeadRow } from '../db/events.ts'
import { project_counts, secrets, targets } from '../db/tables.ts'
import type { Actor, AuditEvent } from './audit.ts'
import type { LevelState, SecretRow } from './levels.ts'

/** A write as the caller saw the level: it takes effect only if nothing of that has moved. */
export interface SecretWrite {
  /** The level as it was seen, or as the write before it in the list makes it. */
  state: LevelState
  /**
   * The row that it makes, but for its MAC. The revision is one more than the one seen, 1 for a level that never had a
   * document; `sealed` is null where it deletes the document.
   */
  secret: SecretRow
  /** The snapshot to record; null with `no_backup`. */
  version: {
    id: number
    action: VersionAction
    sealed: Buffer
    size_bytes: number
    restored_from: number | null
  } | null
  actor: Actor
  event: AuditEvent
}

/**
 * What came of writes. Nothing was written where something `moved`, or where somebody `holds` what several writes would
 * have had to wait for, or one of their callers has ended: by itself, each is told what it was.
 */
export type Outcome = { outcome: 'written', next_version: number } | { outcome: 'moved' | 'held' }

/**
 * Rule 1 of the specification: a write replaces the current document and records a backup version unless `no_backup`.
 * Those of one organization are written together, all or none: versions and events are numbered in their order, and the
 * last one for a level makes its document.
 *
 * One statement that compares and swaps. It locks in the order that every write keeps (project, level, caller, counter)
 * and takes effect only if the active keys and who holds them, the levels' revisions and the organization's next
 * version id are what the caller saw when it decided and sealed, because all of it is part of what the sealed content
 * is bound to. A version that is restored still has to be in the secret's history: what was purged does not come back.
 * Whoever gains or loses a document is counted after the counter's row was taken, which makes writes of an organization
 * take turns. Version ids therefore grow in the order of commits.
 *
 * The events stand behind the last one that the process knows of. Where others came between, the statement does
 * nothing, and is sent again, with nothing else looked at: in a transaction, which takes the counter and then records.
 *
 * Several writes wait for nothing but the counter: what somebody holds is skipped, and they are not written. So no two
 * statements that each hold several rows wait for one another.
 *
 * Throws CallerEnded when the caller of a single write has ended meanwhile.
 */
export async function writeSecrets (db: Db, next_version: number, writes: readonly SecretWrite[]): Promise<Outcome> {
  const isOne = writes.length === 1
  try {
    const write = async () => swap(db, next_version, writes)
    const row = isOne ? await orAgain(write, ({ callers_live }) => callers_live) : await write()
    if (row.next_version !== null) return { outcome: 'written', next_version: Number(row.next_version) }
    if (isOne && !row.callers_live) throw new CallerEnded()
    return { outcome: row.callers_live && row.projects_found ? 'moved' : 'held' }
  } catch (error) {
    // Somebody made the level's first document, or deleted its place, between our look and the statement.
    // Or the database chose this statement to lose against another one (40P01, 40001).
    const isLost = isUniqueViolation(error) || isForeignKeyViolation(error) ||
      /^(40P01|40001)$/.test(codeOf(error) ?? '')
    if (isLost) return { outcome: 'moved' }
    throw error
  }
}

// By what the process knows of the chain's end, in one statement. Where that is not known, or was wrong just now, in a
// transaction that learns it from the counter: whoever waited for a project has it then, and need not wait again.
async function swap (handle: Db, next_version: number, writes: readonly SecretWrite[]): Promise<Swapped> {
  const { organization_id } = writes[0]!.state
  const { heads, recorded, told, missed, isMissedOften } = chainOf(handle)
  const rows = writes.map(({ actor, event }) => eventRow(actor, event))
  const send = sender(handle, next_version, writes)
  const head = isMissedOften(organization_id) ? undefined : heads.get(organization_id)
  if (head !== undefined) {
    const { events, after } = sealEvents(handle, new Map([[organization_id, head]]), rows)
    const then = after.get(organization_id)!
    const asked = performance.now()
    const row = await send(handle, { ...expecting(head, then), events })
    told(row.clock, asked)
    if (row.next_version !== null) recorded(organization_id, then)
    if (row.next_version !== null || row.next_event === null) return row
    missed(organization_id)
  }
  return transaction(handle, async (db) => {
    const row = await send(db, { ...expecting(null, null), events: '[]' })
    if (row.next_version !== null) {
      await appendEvents(db, new Map([[organization_id, headOf(row as HeadRow)]]), rows)
    }
    return row
  })
}

// Without a head, wherever the chain ends: the events then come by themselves.
const expecting = (head: Head | null, then: Head | null) => ({
  expected_event: head?.next_event ?? null,
  expected_head: head?.event_head ?? null,
  then_event: then?.next_event ?? null,
  then_head: then?.event_head ?? null
})

type Behind = ReturnType<typeof expecting> & { events: string }

function sender (handle: Db, next_version: number, writes: readonly SecretWrite[]) {
  if (writes.length === 1) {
    const values = valuesOfOne(handle, next_version, writes[0]!)
    return async (db: Db, behind: Behind) => (await swapOne(db, { ...values, ...behind }))[0]!
  }
  const values = valuesOfSeveral(handle, next_version, writes)
  return async (db: Db, behind: Behind) => (await swapSeveral(db, { ...values, ...behind }))[0]!
}

// What every row of the secret says.
const rowOf = (db: Db, { secret }: SecretWrite) => ({ ...secret, mac: macOf(db, 'secrets', secret) })

function valuesOfOne (db: Db, next_version: number, write: SecretWrite) {
  const { state: { project }, version, actor } = write
  const { id: secret_id, version: _, version_count, recorded_revision, ...row } = rowOf(db, write)
  return {
    ...row,
    secret_id,
    active_key: project.key_version,
    managed: project.encryption_type,
    next_version,
    versions: version === null ? 0 : 1,
    version: version?.id ?? null,
    version_action: version?.action ?? null,
    version_sealed: version?.sealed ?? null,
    version_size: version?.size_bytes ?? null,
    restored_from: version?.restored_from ?? null,
    actor_id: actor.id,
    actor_name: actor.name,
    callers: callersJson([actor.caller])
  }
}

function valuesOfSeveral (db: Db, next_version: number, writes: readonly SecretWrite[]) {
  const projects = new Set(writes.map(({ state: { project: { id, key_version, encryption_type } } }) =>
    JSON.stringify({ id, key_version, encryption_type })))
  const levels = new Map<string, SecretWrite[]>()
  for (const write of writes) {
    const own = levels.get(write.secret.id)
    if (own === undefined) levels.set(write.secret.id, [write])
    else own.push(write)
  }
  const documents = joinBytes()
  const snapshots = joinBytes()
  return {
    organization_id: writes[0]!.state.organization_id,
    next_version,
    projects: `[${[...projects].join()}]`,
    // Of those that write one level, the last one makes its document.
    levels: JSON.stringify([...levels.values()].map((own) => {
      const { sealed, mac, ...row } = rowOf(db, own.at(-1)!)
      const versions = own.filter(({ version }) => version !== null).length
      return { ...row, ...documents.add(sealed), mac: mac.toString('hex'), seen: own[0]!.secret.revision - 1, versions }
    })),
    versions: JSON.stringify(writes.flatMap(({ secret: { id: secret_id, revision, key_version }, version, actor }) => {
      if (version === null) return []
      const { sealed, ...row } = version
      return {
        ...row, ...snapshots.add(sealed), secret_id, revision, key_version, actor_id: actor.id, actor_name: actor.name
      }
    })),
    callers: callersJson(writes.map(({ actor }) => actor.caller)),
    documents: documents.all(),
    snapshots: snapshots.all()
  }
}

// Bytes of several rows as one parameter: each row names its part, as `substring` counts.
function joinBytes () {
  const parts: Buffer[] = []
  let end = 0
  return {
    add (bytes: Buffer | null) {
      if (bytes === null) return null
      parts.push(bytes)
      const start = end + 1
      end += bytes.length
      return { start, bytes: bytes.length }
    },
    all: () => Buffer.concat(parts)
  }
}

interface Swapped {
  next_version: string | null
  /** Where the chain ended; null where the counter was not taken: something else moved. */
  next_event: string | null
  event_head: Buffer | null
  callers_live: boolean
  projects_found: boolean
  clock: number
}

// The counter is taken where everything else is as it was seen, and says where the chain ends. It moves on where that
// is as expected, or where nothing was.
const heldCounter = ($: Value, conditions: SQL) => sql`held AS (
    SELECT organization_id, next_event, event_head FROM organization_counters
    WHERE organization_id = ${$('organization_id')}::char(26) AND next_version = ${$('next_version')}::bigint
      AND ${conditions}
    FOR NO KEY UPDATE
  )`
const movedCounter = ($: Value, versions: SQL) => sql`counter AS (
    UPDATE organization_counters
    SET next_version = organization_counters.next_version + ${versions},
      next_event = coalesce(${$('then_event')}::bigint, held.next_event),
      event_head = coalesce(${$('then_head')}::bytea, held.event_head)
    FROM held WHERE organization_counters.organization_id = held.organization_id
      AND (${$('expected_event')}::bigint IS NULL OR (held.next_event = ${$('expected_event')}::bigint
        AND held.event_head IS NOT DISTINCT FROM ${$('expected_head')}::bytea))
    RETURNING organization_counters.organization_id, organization_counters.next_version
  )`

// What most writes are: it costs the database a sixth less than the statement of several would for one.
const swapOne = preparedSql<Swapped, ReturnType<typeof valuesOfOne> & Behind>('write_secret', ($) => sql`
  WITH project AS (
    SELECT id FROM projects
    WHERE id = ${$('project_id')}::char(26) AND organization_id = ${$('organization_id')}::char(26)
      AND key_version = ${$('active_key')}::int
      AND encryption_type = ${$('managed')}::varchar
    FOR SHARE
  ), level AS (
    SELECT revision, history_id, sealed IS NOT NULL AS is_stored FROM secrets
    WHERE organization_id = ${$('organization_id')}::char(26) AND id = ${$('secret_id')}::char(26)
      AND (SELECT id FROM project) IS NOT NULL
    FOR UPDATE
  ), source AS (
    SELECT id FROM secret_versions
    WHERE organization_id = ${$('organization_id')}::char(26) AND id = ${$('restored_from')}::bigint
      AND history_id = (SELECT history_id FROM level)
    FOR SHARE
  ), ${callerCtes({ organization_id: $('organization_id'), callers: $('callers') })}, ${heldCounter($, sql`
      (SELECT id FROM project) IS NOT NULL
      AND coalesce((SELECT revision FROM level), 0) = ${$('revision')}::bigint - 1
      AND (${$('restored_from')}::bigint IS NULL OR (SELECT id FROM source) IS NOT NULL)
      AND ${callersLive}`)}, ${movedCounter($, sql`${$('versions')}::int`)}, gained AS (
    SELECT ${$('is_stored')}::boolean::int - coalesce((SELECT is_stored FROM level), false)::int AS documents
      FROM counter
  ), counted AS (
    UPDATE project_counts SET secret_count = secret_count + gained.documents
    FROM gained WHERE organization_id = ${$('organization_id')}::char(26) AND project_id = ${$('project_id')}::char(26)
      AND gained.documents <> 0
  ), target_counted AS (
    UPDATE targets SET secret_count = secret_count + gained.documents
    FROM gained WHERE organization_id = ${$('organization_id')}::char(26) AND id = ${$('target_id')}::char(26)
      AND gained.documents <> 0
  ), history AS (
    INSERT INTO histories (organization_id, id)
    SELECT ${$('organization_id')}::char(26), ${$('secret_id')}::char(26) FROM counter WHERE NOT EXISTS (SELECT
      FROM level)
  ), written AS (
    INSERT INTO secrets (id, organization_id, project_id, target_id, environment_id, level, level_id, revision,
      key_version, sealed, size_bytes, version, history_id, version_count, mac)
    SELECT ${$('secret_id')}::char(26), ${$('organization_id')}::char(26), ${$('project_id')}::char(26),
      ${$('target_id')}::char(26),
           ${$('environment_id')}::char(26), ${$('level')}::varchar, ${$('level_id')}::char(26),
             ${$('revision')}::bigint,
           ${$('key_version')}::int, ${$('sealed')}::bytea, ${$('size_bytes')}::int, ${$('version')}::bigint,
           coalesce((SELECT history_id FROM level), ${$('secret_id')}::char(26)), ${$('versions')}::int,
             ${$('mac')}::bytea
    FROM counter
    ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version,
      sealed = excluded.sealed,
      size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
      version_count = secrets.version_count + excluded.version_count, updated_at = now()
  ), recorded AS (
    INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes,
      restored_from, created_by_id, created_by_name)
    SELECT ${$('organization_id')}::char(26), ${$('version')}::bigint, coalesce((SELECT history_id
      FROM level), ${$('secret_id')}::char(26)), ${$('version_action')}::varchar,
           ${$('revision')}::bigint, ${$('key_version')}::int, ${$('version_sealed')}::bytea, ${$('version_size')}::int,
             ${$('restored_from')}::bigint,
           ${$('actor_id')}::bigint, ${$('actor_name')}::varchar
    FROM counter WHERE ${$('versions')}::int = 1
  ), event AS (${insertEvents($('events'))})
  SELECT (SELECT next_version FROM counter) AS next_version, (SELECT next_event FROM held) AS next_event,
    (SELECT event_head FROM held) AS event_head, ${CLOCK} AS clock, ${callersLive} AS callers_live,
    (SELECT id FROM project) IS NOT NULL AS projects_found`)

const swapSeveral = preparedSql<Swapped, ReturnType<typeof valuesOfSeveral> & Behind>('write_secrets', ($) => {
  const organization = sql`${$('organization_id')}::char(26)`
  return sql`
  WITH seen AS (
    SELECT * FROM jsonb_to_recordset(${$('projects')}::jsonb) AS seen (id char(26), key_version int,
      encryption_type varchar)
  ), project AS (
    SELECT found.id FROM seen CROSS JOIN LATERAL (
      SELECT id FROM projects
      WHERE organization_id = ${organization} AND id = seen.id AND key_version = seen.key_version
        AND encryption_type = seen.encryption_type
      FOR SHARE SKIP LOCKED
    ) AS found
  ), level AS (
    SELECT made.*, found.history_id, coalesce(found.is_stored, false) AS was_stored,
      coalesce(found.revision, 0) = made.seen AS is_as_seen
    FROM jsonb_to_recordset(${$('levels')}::jsonb) AS made (
      id char(26), project_id char(26), target_id char(26), environment_id char(26), level varchar, level_id char(26),
      seen bigint, revision bigint, key_version int, is_stored boolean, start int, bytes int, size_bytes int,
      version bigint, versions int, mac text
    ) LEFT JOIN LATERAL (
      SELECT revision, history_id, sealed IS NOT NULL AS is_stored FROM secrets
      WHERE organization_id = ${organization} AND id = made.id
        AND (SELECT count(*) FROM project) = (SELECT count(*) FROM seen)
      FOR UPDATE SKIP LOCKED
    ) AS found ON true
  ), version AS (
    SELECT * FROM jsonb_to_recordset(${$('versions')}::jsonb) AS version (
      id bigint, secret_id char(26), action varchar, revision bigint, key_version int, start int, bytes int,
      size_bytes int, restored_from bigint, actor_id bigint, actor_name varchar
    )
  ), source AS (
    SELECT found.id FROM (
      SELECT DISTINCT version.restored_from AS id, level.history_id
      FROM version JOIN level ON level.id = version.secret_id WHERE version.restored_from IS NOT NULL
    ) AS wanted CROSS JOIN LATERAL (
      SELECT id FROM secret_versions
      WHERE organization_id = ${organization} AND id = wanted.id AND history_id = wanted.history_id
      FOR SHARE SKIP LOCKED
    ) AS found
  ), ${callerCtes({ organization_id: $('organization_id'), callers: $('callers') }, 'SKIP LOCKED')}, ${heldCounter($, sql`
      (SELECT count(*) FROM project) = (SELECT count(*) FROM seen)
      AND (SELECT bool_and(is_as_seen) FROM level)
      AND (SELECT count(*) FROM source) = (SELECT count(DISTINCT restored_from) FROM version)
      AND ${callersLive}`)}, ${movedCounter($, sql`(SELECT count(*) FROM version)`)}, gained AS (
    SELECT project_id, target_id, is_stored::int - was_stored::int AS documents FROM level, counter
  ), counted AS (
    UPDATE project_counts SET secret_count = secret_count + its.documents
    FROM (SELECT project_id, sum(documents) AS documents FROM gained GROUP BY project_id) AS its
    WHERE organization_id = ${organization} AND project_counts.project_id = its.project_id AND its.documents <> 0
  ), target_counted AS (
    UPDATE targets SET secret_count = secret_count + its.documents
    FROM (SELECT target_id, sum(documents) AS documents FROM gained GROUP BY target_id) AS its
    WHERE organization_id = ${organization} AND targets.id = its.target_id AND its.documents <> 0
  ), history AS (
    INSERT INTO histories (organization_id, id) SELECT ${organization}, id FROM level, counter WHERE history_id IS NULL
  ), written AS (
    INSERT INTO secrets (
      id, organization_id, project_id, target_id, environment_id, level, level_id, revision, key_version, sealed,
      size_bytes, version, history_id, version_count, mac
    )
    SELECT id, ${organization}, project_id, target_id, environment_id, level, level_id, revision, key_version,
      substring(${$('documents')}::bytea FROM start FOR bytes), size_bytes, version, coalesce(history_id, id),
      versions, decode(mac, 'hex')
    FROM level, counter
    ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version,
      sealed = excluded.sealed, size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
      version_count = secrets.version_count + excluded.version_count, updated_at = now()
  ), recorded AS (
    INSERT INTO secret_versions (
      organization_id, id, history_id, action, revision, key_version, sealed, size_bytes, restored_from,
      created_by_id, created_by_name
    )
    SELECT ${organization}, version.id, coalesce(level.history_id, level.id), version.action, version.revision,
      version.key_version, substring(${$('snapshots')}::bytea FROM version.start FOR version.bytes),
      version.size_bytes, version.restored_from, version.actor_id, version.actor_name
    FROM counter, version JOIN level ON level.id = version.secret_id
  ), event AS (${insertEvents($('events'))})
  SELECT (SELECT next_version FROM counter) AS next_version, (SELECT next_event FROM held) AS next_event,
    (SELECT event_head FROM held) AS event_head, ${CLOCK} AS clock, ${callersLive} AS callers_live,
    (SELECT count(*) FROM project) = (SELECT count(*) FROM seen) AS projects_found`
})

/**
 * Deletes the secret of a level, which has a document, for good; its history was removed before. The caller holds the
 * project's row.
 */
export async function deleteSecret (db: Db, state: LevelState, secret: SecretRow): Promise<void> {
  const { organization_id, project, target } = state
  await db.delete(secrets).where(and(eq(secrets.organization_id, organization_id), eq(secrets.id, secret.id)))
  await db.update(project_counts).set({ secret_count: sql`${project_counts.secret_count} - 1` })
    .where(and(eq(project_counts.organization_id, organization_id), eq(project_counts.project_id, project.id)))
  if (target === null) return
  await db.update(targets).set({ secret_count: sql`${targets.secret_count} - 1` })
    .where(and(eq(targets.organization_id, organization_id), eq(targets.id, target.id)))
}

import { and, eq, sql, type SQL } from 'drizzle-orm'
import type { VersionAction } from '../../schemas/versions.ts'
import { callerCtes, callersJson, callersLive, type Held } from '../db/caller.ts'
import type { SealedEvents } from '../db/chain.ts'
import { isKeyOf, macOf, preparedSql, type Db } from '../db/database.ts'
import { CLOCK, insertEvents, type Head } from '../db/events.ts'
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
  /** By how many bytes the organization stores more, or less, behind it. */
  growth: number
  /** What the organization's plan has room for; null: no limit. */
  max_bytes: number | null
}

/** Writes of one organization that go together, from the next version id that they were sealed for. */
export interface Batch { organization_id: string, next_version: number, writes: readonly SecretWrite[] }

/** What a statement says of an organization. */
export interface Swapped {
  organization_id: string
  /** Null where nothing was written. */
  next_version: string | null
  /** Null where the counter was not taken: something else moved. */
  next_event: string | null
  event_head: Buffer | null
  chain_kid: string | null
  callers_live: boolean
  projects_found: boolean
  clock: number
}

/**
 * Writes batches of different organizations by one statement that compares and swaps, each of them whole or not at all,
 * and answers a row for each. Events are recorded with them behind the heads of the chains, where these are known;
 * without, the batch is written wherever its chain ends, and its events come by themselves.
 *
 * @param held with `SKIP LOCKED` it waits for nobody; else a single write waits for whatever it has to, and several of
 *   one organization for its counter
 */
export async function swapSecrets (
  db: Db, held: Held, batches: readonly Batch[], heads?: ReadonlyMap<string, Head>,
  { events, after }: Pick<SealedEvents, 'events' | 'after'> = { events: '[]', after: new Map() }
): Promise<Swapped[]> {
  const behind = (id: string) => ({ expected: heads?.get(id), then: after.get(id) })
  const [first] = batches as [Batch]
  return batches.length === 1 && first.writes.length === 1
    ? SWAP_ONE[held](db, { ...valuesOfOne(db, first, behind(first.organization_id)), events })
    : SWAP_SEVERAL[held](db, { ...valuesOfSeveral(db, batches, behind), events })
}

/** Where a chain is expected to end, and where it ends then. */
interface Behind { expected: Head | undefined, then: Head | undefined }

// What every row of the secret says.
const rowOf = (db: Db, { secret }: SecretWrite) => ({ ...secret, mac: macOf(db, 'secrets', secret) })

function valuesOfOne (db: Db, { organization_id, next_version, writes }: Batch, { expected, then }: Behind) {
  const [write] = writes as [SecretWrite]
  const { state: { project }, version, actor } = write
  const { id: secret_id, version: _, version_count, recorded_revision, ...row } = rowOf(db, write)
  return {
    ...row,
    secret_id,
    active_key: project.key_version,
    managed: project.encryption_type,
    next_version,
    growth: write.growth,
    max_bytes: write.max_bytes,
    versions: version === null ? 0 : 1,
    version: version?.id ?? null,
    version_action: version?.action ?? null,
    version_sealed: version?.sealed ?? null,
    version_size: version?.size_bytes ?? null,
    restored_from: version?.restored_from ?? null,
    actor_id: actor.id,
    actor_name: actor.name,
    callers: callersJson([{ organization_id, caller: actor.caller }]),
    expected_event: expected?.next_event ?? null,
    expected_head: expected?.event_head ?? null,
    then_event: then?.next_event ?? null,
    then_head: then?.event_head ?? null
  }
}

function valuesOfSeveral (db: Db, batches: readonly Batch[], behind: (organizationId: string) => Behind) {
  const writes = batches.flatMap((batch) => batch.writes)
  const projects = new Set(writes.map(({ state: { organization_id, project: { id, key_version, encryption_type } } }) =>
    JSON.stringify({ organization_id, id, key_version, encryption_type })))
  const levels = new Map<string, SecretWrite[]>()
  for (const write of writes) {
    const key = `${write.secret.organization_id}/${write.secret.id}`
    const own = levels.get(key)
    if (own === undefined) levels.set(key, [write])
    else own.push(write)
  }
  const documents = joinBytes()
  const snapshots = joinBytes()
  return {
    organizations: JSON.stringify(batches.map(({ organization_id, next_version, writes }) => {
      const { expected, then } = behind(organization_id)
      const limits = writes.flatMap(({ max_bytes }) => max_bytes ?? [])
      return {
        organization_id,
        next_version,
        growth: writes.reduce((sum, { growth }) => sum + growth, 0),
        max_bytes: limits.length === 0 ? null : Math.min(...limits),
        versions: writes.filter(({ version }) => version !== null).length,
        next_event: expected?.next_event,
        event_head: expected?.event_head?.toString('hex'),
        then_event: then?.next_event,
        then_head: then?.event_head?.toString('hex')
      }
    })),
    projects: `[${[...projects].join()}]`,
    // Of those that write one level, the last one makes its document.
    levels: JSON.stringify([...levels.values()].map((own) => {
      const { sealed, mac, ...row } = rowOf(db, own.at(-1)!)
      const versions = own.flatMap(({ version }) => version ?? [])
      return {
        ...row,
        ...documents.add(sealed),
        mac: mac.toString('hex'),
        seen: own[0]!.secret.revision - 1,
        versions: versions.length,
        version_bytes: versions.reduce((sum, { size_bytes }) => sum + size_bytes, 0)
      }
    })),
    versions: JSON.stringify(writes.flatMap(({ secret, version, actor }) => {
      if (version === null) return []
      const { organization_id, id: secret_id, revision, key_version } = secret
      const { sealed, ...row } = version
      return {
        ...row,
        ...snapshots.add(sealed),
        organization_id,
        secret_id,
        revision,
        key_version,
        actor_id: actor.id,
        actor_name: actor.name
      }
    })),
    callers: callersJson(writes.map(({ actor }) => actor)),
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

// As `requireBytes`, of what the counter says when it is taken.
const hasRoom = (growth: SQL, maxBytes: SQL) =>
  sql`(${growth} <= 0 OR ${maxBytes} IS NULL OR stored_bytes + ${growth} <= ${maxBytes})`

// In both, the counter is taken where everything else is as it was seen, and says where the chain ends. It moves on
// where that is as expected, or where nothing was.

// What most writes are when few write: it costs the database a sixth less than the statement of several would for one.
const swapOne = (name: string, held: Held) =>
  preparedSql<Swapped, ReturnType<typeof valuesOfOne> & { events: string }>(name, ($) => {
    const organization = sql`${$('organization_id')}::char(26)`
    const HELD = sql.raw(held)
    return sql`
  WITH project AS (
    SELECT id FROM projects
    WHERE id = ${$('project_id')}::char(26) AND organization_id = ${organization}
      AND key_version = ${$('active_key')}::int AND encryption_type = ${$('managed')}::varchar
    FOR SHARE ${HELD}
  ), level AS (
    SELECT revision, history_id, sealed IS NOT NULL AS is_stored FROM secrets
    WHERE organization_id = ${organization} AND id = ${$('secret_id')}::char(26)
      AND (SELECT id FROM project) IS NOT NULL
    FOR UPDATE ${HELD}
  ), source AS (
    SELECT id FROM secret_versions
    WHERE organization_id = ${organization} AND id = ${$('restored_from')}::bigint
      AND history_id = (SELECT history_id FROM level)
    FOR SHARE ${HELD}
  ), ${callerCtes($('callers'), held)}, held AS (
    SELECT organization_id, next_event, event_head, chain_kid FROM organization_counters
    WHERE organization_id = ${organization} AND next_version = ${$('next_version')}::bigint
      AND ${hasRoom(sql`${$('growth')}::bigint`, sql`${$('max_bytes')}::bigint`)}
      AND (SELECT id FROM project) IS NOT NULL
      AND coalesce((SELECT revision FROM level), 0) = ${$('revision')}::bigint - 1
      AND (${$('restored_from')}::bigint IS NULL OR (SELECT id FROM source) IS NOT NULL)
      AND ${callersLive} AND NOT is_closed
    FOR NO KEY UPDATE ${HELD}
  ), counter AS (
    UPDATE organization_counters
    SET next_version = organization_counters.next_version + ${$('versions')}::int,
      stored_bytes = organization_counters.stored_bytes + ${$('growth')}::bigint,
      next_event = coalesce(${$('then_event')}::bigint, held.next_event),
      event_head = coalesce(${$('then_head')}::bytea, held.event_head)
    FROM held WHERE organization_counters.organization_id = held.organization_id
      AND (${$('expected_event')}::bigint IS NULL OR (held.next_event = ${$('expected_event')}::bigint
        AND held.event_head IS NOT DISTINCT FROM ${$('expected_head')}::bytea))
    RETURNING organization_counters.organization_id, organization_counters.next_version
  ), gained AS (
    SELECT ${$('is_stored')}::boolean::int - coalesce((SELECT is_stored FROM level), false)::int AS documents
    FROM counter
  ), counted AS (
    UPDATE project_counts SET secret_count = secret_count + gained.documents
    FROM gained WHERE organization_id = ${organization} AND project_id = ${$('project_id')}::char(26)
      AND gained.documents <> 0
  ), target_counted AS (
    UPDATE targets SET secret_count = secret_count + gained.documents
    FROM gained WHERE organization_id = ${organization} AND id = ${$('target_id')}::char(26)
      AND gained.documents <> 0
  ), history AS (
    INSERT INTO histories (organization_id, id)
    SELECT ${organization}, ${$('secret_id')}::char(26) FROM counter WHERE NOT EXISTS (SELECT FROM level)
  ), written AS (
    INSERT INTO secrets (id, organization_id, project_id, target_id, environment_id, level, level_id, revision,
      key_version, sealed, size_bytes, version, history_id, version_count, version_bytes, mac)
    SELECT ${$('secret_id')}::char(26), ${organization}, ${$('project_id')}::char(26), ${$('target_id')}::char(26),
      ${$('environment_id')}::char(26), ${$('level')}::varchar, ${$('level_id')}::char(26),
      ${$('revision')}::bigint, ${$('key_version')}::int, ${$('sealed')}::bytea, ${$('size_bytes')}::int,
      ${$('version')}::bigint, coalesce((SELECT history_id FROM level), ${$('secret_id')}::char(26)),
      ${$('versions')}::int, coalesce(${$('version_size')}::int, 0), ${$('mac')}::bytea
    FROM counter
    ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version,
      sealed = excluded.sealed, size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
      version_count = secrets.version_count + excluded.version_count,
      version_bytes = secrets.version_bytes + excluded.version_bytes, updated_at = now()
  ), recorded AS (
    INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes,
      restored_from, created_by_id, created_by_name)
    SELECT ${organization}, ${$('version')}::bigint,
      coalesce((SELECT history_id FROM level), ${$('secret_id')}::char(26)), ${$('version_action')}::varchar,
      ${$('revision')}::bigint, ${$('key_version')}::int, ${$('version_sealed')}::bytea, ${$('version_size')}::int,
      ${$('restored_from')}::bigint, ${$('actor_id')}::bigint, ${$('actor_name')}::varchar
    FROM counter WHERE ${$('versions')}::int = 1
  ), event AS (${insertEvents($('events'))})
  SELECT ${organization} AS organization_id, (SELECT next_version FROM counter) AS next_version,
    (SELECT next_event FROM held) AS next_event, (SELECT event_head FROM held) AS event_head,
    (SELECT chain_kid FROM held) AS chain_kid, ${CLOCK} AS clock, ${callersLive} AS callers_live, (SELECT id FROM project) IS NOT NULL AS projects_found`
  })

const SWAP_ONE = { '': swapOne('write_secret', ''), 'SKIP LOCKED': swapOne('write_free_secret', 'SKIP LOCKED') }

// Each organization by itself: what moved in one keeps no other from being written, and none can make the statement
// fail for all, as a first document in a place that is gone, or that has one by now, would. Rows that somebody holds
// are skipped, but for the counter, which a single organization may wait for.
const swapSeveral = (name: string, held: Held) =>
  preparedSql<Swapped, ReturnType<typeof valuesOfSeveral> & { events: string }>(name, ($) => sql`
  WITH expected AS (
    SELECT organization_id, next_version, versions, growth, max_bytes, next_event,
      decode(event_head, 'hex') AS event_head, then_event, decode(then_head, 'hex') AS then_head
    FROM jsonb_to_recordset(${$('organizations')}::jsonb) AS expected (
      organization_id char(26), next_version bigint, versions int, growth bigint, max_bytes bigint, next_event bigint,
      event_head text, then_event bigint, then_head text
    )
  ), seen AS (
    SELECT * FROM jsonb_to_recordset(${$('projects')}::jsonb) AS seen (
      organization_id char(26), id char(26), key_version int, encryption_type varchar
    )
  ), project AS (
    SELECT seen.* FROM seen CROSS JOIN LATERAL (
      SELECT id FROM projects
      WHERE organization_id = seen.organization_id AND id = seen.id AND key_version = seen.key_version
        AND encryption_type = seen.encryption_type
      FOR SHARE SKIP LOCKED
    ) AS found
  ), missed AS (
    SELECT organization_id FROM seen
    WHERE (organization_id, id, key_version, encryption_type) NOT IN (SELECT organization_id, id, key_version,
      encryption_type FROM project)
  ), level AS (
    SELECT made.*, found.history_id, coalesce(found.is_stored, false) AS was_stored,
      coalesce(found.revision, 0) = made.seen AS is_as_seen
    FROM jsonb_to_recordset(${$('levels')}::jsonb) AS made (
      id char(26), organization_id char(26), project_id char(26), target_id char(26), environment_id char(26),
      level varchar, level_id char(26), seen bigint, revision bigint, key_version int, is_stored boolean, start int,
      bytes int, size_bytes int, version bigint, versions int, version_bytes bigint, mac text
    ) LEFT JOIN LATERAL (
      SELECT revision, history_id, sealed IS NOT NULL AS is_stored FROM secrets
      WHERE organization_id = made.organization_id AND id = made.id
        AND made.organization_id NOT IN (SELECT organization_id FROM missed)
      FOR UPDATE SKIP LOCKED
    ) AS found ON true
  ), place AS (
    SELECT found.id FROM level CROSS JOIN LATERAL (
      SELECT id FROM environments WHERE organization_id = level.organization_id AND id = level.environment_id
      FOR KEY SHARE SKIP LOCKED
    ) AS found WHERE level.seen = 0
    UNION ALL SELECT found.id FROM level CROSS JOIN LATERAL (
      SELECT id FROM targets WHERE organization_id = level.organization_id AND id = level.target_id
      FOR KEY SHARE SKIP LOCKED
    ) AS found WHERE level.seen = 0
  ), unplaced AS (
    SELECT organization_id FROM level WHERE seen = 0 AND (
      target_id IS NOT NULL AND target_id NOT IN (SELECT id FROM place)
      OR environment_id IS NOT NULL AND environment_id NOT IN (SELECT id FROM place)
      OR EXISTS (SELECT FROM secrets s
        WHERE s.organization_id = level.organization_id AND s.level_id = level.level_id))
  ), version AS (
    SELECT * FROM jsonb_to_recordset(${$('versions')}::jsonb) AS version (
      organization_id char(26), id bigint, secret_id char(26), action varchar, revision bigint, key_version int,
      start int, bytes int, size_bytes int, restored_from bigint, actor_id bigint, actor_name varchar
    )
  ), wanted AS (
    SELECT DISTINCT level.organization_id, version.restored_from AS id, level.history_id
    FROM version JOIN level USING (organization_id)
    WHERE level.id = version.secret_id AND version.restored_from IS NOT NULL
  ), source AS (
    SELECT wanted.organization_id, wanted.id FROM wanted CROSS JOIN LATERAL (
      SELECT id FROM secret_versions
      WHERE organization_id = wanted.organization_id AND id = wanted.id AND history_id = wanted.history_id
      FOR SHARE SKIP LOCKED
    ) AS found
  ), ${callerCtes($('callers'), 'SKIP LOCKED')}, lost AS (
    SELECT organization_id FROM missed
    UNION ALL SELECT organization_id FROM level WHERE NOT is_as_seen
    UNION ALL SELECT organization_id FROM unplaced
    UNION ALL SELECT organization_id FROM wanted
      WHERE (organization_id, id) NOT IN (SELECT organization_id, id FROM source)
    UNION ALL SELECT organization_id FROM caller_ended
  ), held AS (
    SELECT c.organization_id, c.next_event, c.event_head, c.chain_kid FROM expected JOIN organization_counters c
      ON c.organization_id = expected.organization_id AND c.next_version = expected.next_version
    WHERE ${isKeyOf(sql`c.organization_id`, sql`SELECT organization_id FROM expected`)}
      AND expected.organization_id NOT IN (SELECT organization_id FROM lost)
      AND ${hasRoom(sql`expected.growth`, sql`expected.max_bytes`)} AND NOT c.is_closed
    ORDER BY c.organization_id FOR NO KEY UPDATE OF c ${sql.raw(held)}
  ), counter AS (
    UPDATE organization_counters
    SET next_version = organization_counters.next_version + expected.versions,
      stored_bytes = organization_counters.stored_bytes + expected.growth,
      next_event = coalesce(expected.then_event, held.next_event),
      event_head = coalesce(expected.then_head, held.event_head)
    FROM held JOIN expected USING (organization_id)
    WHERE organization_counters.organization_id = held.organization_id
      AND (expected.next_event IS NULL OR (held.next_event = expected.next_event
        AND held.event_head IS NOT DISTINCT FROM expected.event_head))
    RETURNING organization_counters.organization_id, organization_counters.next_version
  ), gained AS (
    SELECT organization_id, project_id, target_id, is_stored::int - was_stored::int AS documents
    FROM level JOIN counter USING (organization_id)
  ), counted AS (
    UPDATE project_counts SET secret_count = secret_count + its.documents
    FROM (SELECT organization_id, project_id, sum(documents) AS documents FROM gained GROUP BY 1, 2) AS its
    WHERE project_counts.organization_id = its.organization_id AND project_counts.project_id = its.project_id
      AND its.documents <> 0
  ), target_counted AS (
    UPDATE targets SET secret_count = secret_count + its.documents
    FROM (SELECT organization_id, target_id, sum(documents) AS documents FROM gained GROUP BY 1, 2) AS its
    WHERE targets.organization_id = its.organization_id AND targets.id = its.target_id AND its.documents <> 0
  ), history AS (
    INSERT INTO histories (organization_id, id)
    SELECT organization_id, id FROM level JOIN counter USING (organization_id) WHERE history_id IS NULL
  ), written AS (
    INSERT INTO secrets (
      id, organization_id, project_id, target_id, environment_id, level, level_id, revision, key_version, sealed,
      size_bytes, version, history_id, version_count, version_bytes, mac
    )
    SELECT id, organization_id, project_id, target_id, environment_id, level, level_id, revision, key_version,
      substring(${$('documents')}::bytea FROM start FOR bytes), size_bytes, version, coalesce(history_id, id),
      versions, version_bytes, decode(mac, 'hex')
    FROM level JOIN counter USING (organization_id)
    ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version,
      sealed = excluded.sealed, size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
      version_count = secrets.version_count + excluded.version_count,
      version_bytes = secrets.version_bytes + excluded.version_bytes, updated_at = now()
  ), recorded AS (
    INSERT INTO secret_versions (
      organization_id, id, history_id, action, revision, key_version, sealed, size_bytes, restored_from,
      created_by_id, created_by_name
    )
    SELECT organization_id, version.id, coalesce(level.history_id, level.id), version.action, version.revision,
      version.key_version, substring(${$('snapshots')}::bytea FROM version.start FOR version.bytes),
      version.size_bytes, version.restored_from, version.actor_id, version.actor_name
    FROM counter JOIN version USING (organization_id) JOIN level USING (organization_id)
    WHERE level.id = version.secret_id
  ), event AS (${insertEvents($('events'))})
  SELECT organization_id, counter.next_version, held.next_event, held.event_head, held.chain_kid, ${CLOCK} AS clock,
    organization_id NOT IN (SELECT organization_id FROM caller_ended) AS callers_live,
    organization_id NOT IN (SELECT organization_id FROM missed) AS projects_found
  FROM expected LEFT JOIN held USING (organization_id) LEFT JOIN counter USING (organization_id)`)

const SWAP_SEVERAL = {
  '': swapSeveral('write_secrets', ''), 'SKIP LOCKED': swapSeveral('write_free_secrets', 'SKIP LOCKED')
}

/**
 * Takes the document of a level away for good; its history was purged before. The row stays, a revision further: it
 * tells that there was something which nobody knows any more. The caller holds the project's row.
 */
export async function emptySecret (db: Db, { project, target }: LevelState, secret: SecretRow): Promise<void> {
  const { organization_id, id } = secret
  const emptied = { revision: secret.revision + 1, key_version: project.key_version, sealed: null, size_bytes: 0 }
  await db.update(secrets).set({
    ...emptied,
    version: null,
    mac: macOf(db, 'secrets', { ...secret, ...emptied }),
    // Not of when the transaction began: it has waited for writes that are later than that.
    updated_at: sql`clock_timestamp()`
  }).where(and(eq(secrets.organization_id, organization_id), eq(secrets.id, id)))
  await db.update(project_counts).set({ secret_count: sql`${project_counts.secret_count} - 1` })
    .where(and(eq(project_counts.organization_id, organization_id), eq(project_counts.project_id, project.id)))
  if (target === null) return
  await db.update(targets).set({ secret_count: sql`${targets.secret_count} - 1` })
    .where(and(eq(targets.organization_id, organization_id), eq(targets.id, target.id)))
}

import { and, eq, sql } from 'drizzle-orm'
import { alias } from 'drizzle-orm/pg-core'
import type { Managed, SecretFormat } from '../../schemas/projects.ts'
import { LEVELS, type Level, type LevelNames } from '../../schemas/secrets.ts'
import type { VersionAction } from '../../schemas/versions.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { CallerEnded, callerCtes, callerLives, callerValues } from '../db/caller.ts'
import { eventRow, eventsJson, insertEvents } from '../db/events.ts'
import { byQuestion, gather } from '../db/gather.ts'
import { codeOf, isForeignKeyViolation, isUniqueViolation, macOf, prepared, preparedSql, verifies, type Authenticated, type Db } from '../db/database.ts'
import { encryption_keys, environments, keyColumns, keyIsNewest, organization_counters, project_counts, projects, secrets, targets } from '../db/tables.ts'
import { fail } from '../rules/errors.ts'
import type { Place } from '../rules/slices.ts'
import type { Actor, AuditEvent } from './audit.ts'
import type { KeyRow } from './encryption-keys.ts'

/** The document row of a level; `sealed` is null when the secret is deleted. */
export interface SecretRow extends Authenticated<'secrets'> {
  version: number | null
  history_id: string
  version_count: number
  /** The revision of the newest version that is left; null without one. */
  recorded_revision: number | null
}

/** A place in the hierarchy with the documents on the way to it, as one statement saw them. */
export interface LevelState {
  organization_id: string
  project: { id: string, slug: string, secret_format: SecretFormat, encryption_type: Managed, key_version: number }
  /** The active key. */
  key: KeyRow
  target: { id: string, slug: string } | null
  environment: { id: string, slug: string } | null
  /** The deepest of the three, which the state is about. */
  level: Level
  level_id: string
  slug: string
  secrets: SecretRow[]
  /** The version id that the organization's next recorded write takes, if nobody is faster. */
  next_version: number
}

const recordedRevision = sql<number | null>`(SELECT v.revision FROM secret_versions v WHERE v.organization_id = ${secrets.organization_id} AND v.history_id = ${secrets.history_id} ORDER BY v.id DESC LIMIT 1)`.mapWith(secrets.revision)

const columns = {
  organization_id: projects.organization_id,
  project: authenticatedColumns('projects'),
  key: keyColumns,
  key_is_newest: keyIsNewest,
  target: authenticatedColumns('targets'),
  environment: authenticatedColumns('environments'),
  secret: {
    ...authenticatedColumns('secrets'),
    version: secrets.version,
    history_id: secrets.history_id,
    version_count: secrets.version_count,
    recorded_revision: recordedRevision
  },
  next_version: organization_counters.next_version
}

const activeKey = and(eq(encryption_keys.organization_id, projects.organization_id), eq(encryption_keys.project_id, projects.id), eq(encryption_keys.is_active, true))

const bySlugs = prepared('levels_by_slugs', (db) => db
  .select({ question: sql<number>`asked.question`.as('question'), ...columns })
  .from(sql`jsonb_to_recordset(${sql.placeholder('asked')}::jsonb) AS asked (question int, organization_id char(26), project varchar, target varchar, environment varchar)`)
  .innerJoin(projects, and(eq(projects.organization_id, sql`asked.organization_id`), eq(projects.slug, sql`asked.project`)))
  .innerJoin(encryption_keys, activeKey)
  .innerJoin(organization_counters, eq(organization_counters.organization_id, projects.organization_id))
  .leftJoin(targets, and(eq(targets.organization_id, projects.organization_id), eq(targets.project_id, projects.id), eq(targets.slug, sql`asked.target`)))
  .leftJoin(environments, and(
    eq(environments.organization_id, projects.organization_id), eq(environments.target_id, targets.id), eq(environments.slug, sql`asked.environment`)
  ))
  .leftJoin(secrets, and(eq(secrets.organization_id, projects.organization_id), sql`${secrets.level_id} IN (${projects.id}, ${targets.id}, ${environments.id})`)))

const own = alias(secrets, 'own')
const bySecret = prepared('level_by_secret', (db) => db
  .select(columns)
  .from(own)
  .innerJoin(projects, and(eq(projects.organization_id, own.organization_id), eq(projects.id, own.project_id)))
  .innerJoin(encryption_keys, activeKey)
  .innerJoin(organization_counters, eq(organization_counters.organization_id, projects.organization_id))
  .leftJoin(targets, and(eq(targets.organization_id, own.organization_id), eq(targets.id, own.target_id)))
  .leftJoin(environments, and(eq(environments.organization_id, own.organization_id), eq(environments.id, own.environment_id)))
  .leftJoin(secrets, and(eq(secrets.organization_id, own.organization_id), eq(secrets.id, own.id)))
  .where(and(eq(own.organization_id, sql.placeholder('organization_id')), eq(own.id, sql.placeholder('secret_id')))))

type Row = Awaited<ReturnType<typeof bySecret>>[number]

interface Asked { organization_id: string, names: LevelNames }

const findLevels = gather({
  keyOf: ({ organization_id, names: { project, target, environment } }: Asked) => JSON.stringify([organization_id, project, target, environment]),
  find: async (db, questions) => {
    const asked = questions.map(({ organization_id, names: { project, target, environment } }, question) => ({ question, organization_id, project, target, environment }))
    return byQuestion(await bySlugs(db, { asked: JSON.stringify(asked) }), questions.length)
  },
  read: (db, rows, { names: { target, environment } }) => {
    const state = toState(db, rows)
    if (state === undefined || (target !== undefined && state.target === null)) return undefined
    return environment !== undefined && state.environment === null ? undefined : state
  }
})

/** The place that the slugs name, with its documents; undefined when a slug names nothing. */
export async function findLevel (db: Db, organizationId: string, names: LevelNames): Promise<LevelState | undefined> {
  return findLevels(db, { organization_id: organizationId, names })
}

/** The place of a secret, with that secret alone. */
export async function findLevelOfSecret (db: Db, organizationId: string, secretId: string): Promise<LevelState | undefined> {
  return toState(db, await bySecret(db, { organization_id: organizationId, secret_id: secretId }))
}

// The one place where a level's rows are judged, before anything is told of them: what each is, where it belongs, and that
// no document is older than the newest version of it.
function toState (db: Db, rows: readonly Row[]): LevelState | undefined {
  const [first] = rows
  if (first === undefined) return undefined
  const { project, target, environment } = first
  const isRight = first.key_is_newest && verifies(db, 'projects', project) && (target === null || verifies(db, 'targets', target)) &&
    (environment === null || verifies(db, 'environments', environment)) &&
    rows.every(({ secret }) => secret === null || (verifies(db, 'secrets', secret) && (secret.recorded_revision ?? 0) <= secret.revision))
  if (!isRight) fail('integrity_error')
  const { secret: _, ...place } = first
  const [level, deepest] = place.environment !== null
    ? ['environment', place.environment] as const
    : place.target !== null ? ['target', place.target] as const : ['project', place.project] as const
  const secrets = rows.flatMap(({ secret }) => secret ?? []).sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level))
  return { ...place, level, level_id: deepest.id, slug: deepest.slug, secrets }
}

/** The secret of the level itself, which may be deleted. */
export function ownSecret (state: LevelState): SecretRow | undefined {
  return state.secrets.find(({ level_id }) => level_id === state.level_id)
}

/** Where the state is, or one of the levels on the way there. */
export function placeOf ({ project, target, environment }: LevelState, level: Level = 'environment'): Place {
  return { project_id: project.id, target_id: level === 'project' ? null : target?.id, environment_id: level === 'environment' ? environment?.id : null }
}

/** A write as the caller saw the level: it takes effect only if nothing of that has moved. */
export interface SecretWrite {
  state: LevelState
  secret_id: string
  /** The level's next revision: one more than the one seen, 1 for a level that never had a document. */
  revision: number
  key_version: number
  /** Null deletes the document. */
  sealed: Buffer | null
  size_bytes: number
  /** The snapshot to record; null with `no_backup`. */
  version: { id: number, action: VersionAction, sealed: Buffer, size_bytes: number, restored_from: number | null } | null
  actor: Actor
  event: AuditEvent
}

/**
 * Rule 1 of the specification: a write replaces the current document and records a backup version unless `no_backup`.
 *
 * One statement that compares and swaps. It locks in the order that every write keeps (project, level, counter) and
 * takes effect only if the project's active key and who holds it, the level's revision and the organization's next version id are what
 * the caller saw when it decided and sealed, because all of it is part of what the sealed content is bound to. A version
 * that is restored still has to be in the secret's history: what was purged does not come back. Whoever gains or loses a
 * document is counted after the counter's row was taken, which makes writes of an organization take turns.
 * Version ids therefore grow in the order of commits. False: something moved, and nothing was written. Throws CallerEnded
 * when the actor's caller has ended meanwhile.
 */
export async function writeSecret (db: Db, write: SecretWrite): Promise<boolean> {
  const { state, version, actor, event } = write
  const { id: secret_id, ...row } = {
    id: write.secret_id,
    organization_id: state.organization_id,
    project_id: state.project.id,
    target_id: state.target?.id ?? null,
    environment_id: state.environment?.id ?? null,
    level: state.level,
    level_id: state.level_id,
    revision: write.revision,
    key_version: write.key_version,
    sealed: write.sealed,
    size_bytes: write.size_bytes
  }
  try {
    const rows = await compareAndSwap(db, {
      ...row,
      secret_id,
      mac: macOf(db, 'secrets', { id: secret_id, ...row }),
      active_key: state.project.key_version,
      managed: state.project.encryption_type,
      next_version: state.next_version,
      versions: version === null ? 0 : 1,
      version: version?.id ?? null,
      version_action: version?.action ?? null,
      version_sealed: version?.sealed ?? null,
      version_size: version?.size_bytes ?? null,
      restored_from: version?.restored_from ?? null,
      actor_id: actor.id,
      actor_name: actor.name,
      ...callerValues(actor.caller),
      events: eventsJson([eventRow(actor, event)])
    })
    const [{ seq, caller_lives }] = rows as [Swapped]
    if (!caller_lives) throw new CallerEnded()
    return seq !== null
  } catch (error) {
    // Somebody made the level's first document, or deleted its place, between our look and the statement.
    // Or the database chose this statement to lose against another one (40P01, 40001).
    if (isUniqueViolation(error) || isForeignKeyViolation(error) || /^(40P01|40001)$/.test(codeOf(error) ?? '')) return false
    throw error
  }
}

interface Swapped { seq: string | null, caller_lives: boolean }

const compareAndSwap = preparedSql<Swapped, Record<string, unknown>>('write_secret', ($) => sql`
  WITH project AS (
    SELECT id FROM projects
    WHERE id = ${$('project_id')}::char(26) AND organization_id = ${$('organization_id')}::char(26) AND key_version = ${$('active_key')}::int
      AND encryption_type = ${$('managed')}::varchar
    FOR SHARE
  ), level AS (
    SELECT revision, history_id, sealed IS NOT NULL AS is_stored FROM secrets
    WHERE organization_id = ${$('organization_id')}::char(26) AND id = ${$('secret_id')}::char(26) AND (SELECT id FROM project) IS NOT NULL
    FOR UPDATE
  ), source AS (
    SELECT id FROM secret_versions
    WHERE organization_id = ${$('organization_id')}::char(26) AND id = ${$('restored_from')}::bigint AND history_id = (SELECT history_id FROM level)
    FOR SHARE
  ), ${callerCtes({ organization_id: $('organization_id'), api_token: $('api_token'), access_token: $('access_token'), role: $('role') })}, counter AS (
    UPDATE organization_counters
    SET next_version = next_version + ${$('versions')}::int, next_event = next_event + 1
    WHERE organization_id = ${$('organization_id')}::char(26) AND next_version = ${$('next_version')}::bigint
      AND (SELECT id FROM project) IS NOT NULL
      AND coalesce((SELECT revision FROM level), 0) = ${$('revision')}::bigint - 1
      AND (${$('restored_from')}::bigint IS NULL OR (SELECT id FROM source) IS NOT NULL)
      AND ${callerLives({ api_token: $('api_token'), access_token: $('access_token') })}
    RETURNING organization_id, next_event - 1 AS first
  ), gained AS (
    SELECT (${$('sealed')}::bytea IS NOT NULL)::int - coalesce((SELECT is_stored FROM level), false)::int AS documents FROM counter
  ), counted AS (
    UPDATE project_counts SET secret_count = secret_count + gained.documents
    FROM gained WHERE organization_id = ${$('organization_id')}::char(26) AND project_id = ${$('project_id')}::char(26) AND gained.documents <> 0
  ), target_counted AS (
    UPDATE targets SET secret_count = secret_count + gained.documents
    FROM gained WHERE organization_id = ${$('organization_id')}::char(26) AND id = ${$('target_id')}::char(26) AND gained.documents <> 0
  ), history AS (
    INSERT INTO histories (organization_id, id)
    SELECT ${$('organization_id')}::char(26), ${$('secret_id')}::char(26) FROM counter WHERE NOT EXISTS (SELECT FROM level)
  ), written AS (
    INSERT INTO secrets (id, organization_id, project_id, target_id, environment_id, level, level_id, revision, key_version, sealed, size_bytes, version, history_id, version_count, mac)
    SELECT ${$('secret_id')}::char(26), ${$('organization_id')}::char(26), ${$('project_id')}::char(26), ${$('target_id')}::char(26),
           ${$('environment_id')}::char(26), ${$('level')}::varchar, ${$('level_id')}::char(26), ${$('revision')}::bigint,
           ${$('key_version')}::int, ${$('sealed')}::bytea, ${$('size_bytes')}::int, ${$('version')}::bigint,
           coalesce((SELECT history_id FROM level), ${$('secret_id')}::char(26)), ${$('versions')}::int, ${$('mac')}::bytea
    FROM counter
    ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version, sealed = excluded.sealed,
      size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
      version_count = secrets.version_count + excluded.version_count, updated_at = now()
  ), recorded AS (
    INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes, restored_from, created_by_id, created_by_name)
    SELECT ${$('organization_id')}::char(26), ${$('version')}::bigint, coalesce((SELECT history_id FROM level), ${$('secret_id')}::char(26)), ${$('version_action')}::varchar,
           ${$('revision')}::bigint, ${$('key_version')}::int, ${$('version_sealed')}::bytea, ${$('version_size')}::int, ${$('restored_from')}::bigint,
           ${$('actor_id')}::bigint, ${$('actor_name')}::varchar
    FROM counter WHERE ${$('versions')}::int = 1
  ), event AS (${insertEvents($('events'))})
  SELECT (SELECT first FROM counter) AS seq, ${callerLives({ api_token: $('api_token'), access_token: $('access_token') })} AS caller_lives`)

/** Deletes the secret of a level, which has a document, for good; its history was removed before. The caller holds the project's row. */
export async function deleteSecret (db: Db, state: LevelState, secret: SecretRow): Promise<void> {
  const { organization_id, project, target } = state
  await db.delete(secrets).where(and(eq(secrets.organization_id, organization_id), eq(secrets.id, secret.id)))
  await db.update(project_counts).set({ secret_count: sql`${project_counts.secret_count} - 1` })
    .where(and(eq(project_counts.organization_id, organization_id), eq(project_counts.project_id, project.id)))
  if (target === null) return
  await db.update(targets).set({ secret_count: sql`${targets.secret_count} - 1` })
    .where(and(eq(targets.organization_id, organization_id), eq(targets.id, target.id)))
}

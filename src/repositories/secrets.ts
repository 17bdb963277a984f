import { and, eq, sql } from 'drizzle-orm'
import type { VersionAction } from '../../schemas/versions.ts'
import { CallerEnded, callerCtes, callerLives, callerValues } from '../db/caller.ts'
import { codeOf, isForeignKeyViolation, isUniqueViolation, macOf, preparedSql, type Db } from '../db/database.ts'
import { eventRow, eventsJson, insertEvents } from '../db/events.ts'
import { project_counts, secrets, targets } from '../db/tables.ts'
import type { Actor, AuditEvent } from './audit.ts'
import type { LevelState, SecretRow } from './levels.ts'

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

import { asc, gt, sql, type SQL } from 'drizzle-orm'
import type { PgTable } from 'drizzle-orm/pg-core'
import type { Db } from '../../db/database.ts'
import { ownOf, perEngine } from '../../db/postgres/engine.ts'
import { makeId } from '../../db/rows/ids.ts'
import { renewLastVersion } from '../../db/rows/last-version.ts'
import { matching, queryRow, queryRows } from '../../db/rows/query.ts'
import {
  api_tokens, encryption_keys, environments, histories, organization_removals, project_counts, projects,
  re_encryptions, targets, token_removals
} from '../../db/tables.ts'
import { deleteTokenRemoval, isTokenRemoval, type TokenRemoval } from '../../db/callers/grants.ts'

// Deletes the data of purged and deleted documents. The versions of a secret belong to its history (`histories`). A
// purge gives the secret a new history, and the deletion of a level marks the history as removed. So the former
// versions are unreachable at once. Background jobs delete their rows later in batches, because one statement for a
// million rows would time out.

/** The scope of a purge or deletion: one secret, or everything below a place. */
export type Below = { project_id: string } | { target_id: string } | { environment_id: string } | { secret_id: string }

const isBelow = (organizationId: string, below: Below): SQL => {
  const [[name, id]] = Object.entries(below) as [[name: string, id: string]]
  return sql`s.organization_id = ${organizationId} AND s.${sql.identifier(name === 'secret_id' ? 'id' : name)} = ${id}`
}

// Makes one look-up for each history. `OFFSET 0` prevents a join with all versions of the organization.
const versionsOf = (organizationId: string, its: SQL, historyId: SQL): SQL => sql`SELECT FROM secret_versions v
  WHERE v.organization_id = ${its} AND v.history_id = ${historyId}${ownOf(organizationId)(sql`v`)} OFFSET 0`

/**
 * Purges the histories below a place of the project: each secret gets a new, empty history and has no current version.
 * Returns the number and the bytes of the purged versions. The caller has locked the project's row.
 */
export async function purgeHistories (
  db: Db, organizationId: string, projectId: string, below: Below
): Promise<{ versions: number, bytes: number }> {
  // Citus evaluates no volatile function on workers, so each new id is a hash of the old id and one unique value. Both
  // statements select the same rows, because the project is locked.
  const purged = sql`
    SELECT s.organization_id, s.id, s.history_id, s.version_count, s.version_bytes,
      upper(left(md5(${String(makeId())} || s.history_id), 26)) AS next_history
    FROM secrets s
    WHERE ${isBelow(organizationId, below)}
      AND EXISTS (${versionsOf(organizationId, sql`s.organization_id`, sql`s.history_id`)})`
  await db.execute(sql`
    INSERT INTO histories (organization_id, id) SELECT organization_id, next_history FROM (${purged}) AS purged`)
  const counted = await queryRow<{ versions: number, bytes: number }>(db, sql`
    WITH purged AS (${purged}), removed AS (
      UPDATE histories h SET removed_at = now() FROM purged p WHERE h.organization_id = p.organization_id
        AND h.id = p.history_id${ownOf(organizationId)(sql`h`)}
    ), emptied AS (
      UPDATE secrets s SET history_id = p.next_history, version = NULL, version_count = 0, version_bytes = 0
      FROM purged p WHERE s.organization_id = p.organization_id AND s.id = p.id${ownOf(organizationId)(sql`s`)}
    )
    SELECT coalesce(sum(version_count), 0)::int AS versions, coalesce(sum(version_bytes), 0)::float8 AS bytes FROM purged
  `)
  await renewLastVersion(db, organizationId, projectId)
  return counted
}

/** The number of levels that a deletion removes, including the level itself. Computed from the stored counts. */
export async function countLevels (db: Db, organizationId: string, below: Below): Promise<number> {
  if ('environment_id' in below || 'secret_id' in below) return 1
  const [row] = 'target_id' in below
    ? await db.select({ below: targets.environment_count }).from(targets)
      .where(matching(targets, { organization_id: organizationId, id: below.target_id }))
    : await db.select({ below: sql<number>`${project_counts.target_count} + ${project_counts.environment_count}` })
      .from(project_counts)
      .where(matching(project_counts, { organization_id: organizationId, project_id: below.project_id }))
  return 1 + (row?.below ?? 0)
}

/**
 * Marks the histories below a place as removed. Call this in the transaction that deletes the place with its documents.
 * Returns numbers for the audit event. The caller has locked the project's row.
 */
export async function removeHistories (
  db: Db, organizationId: string, below: Below
): Promise<{ documents: number, versions: number, bytes: number }> {
  return queryRow(db, sql`
    WITH gone AS (
      SELECT s.organization_id, s.history_id, s.version_count, s.version_bytes + s.size_bytes AS bytes,
        s.sealed IS NOT NULL AS is_document
      FROM secrets s WHERE ${isBelow(organizationId, below)}
    ), removed AS (
      UPDATE histories h SET removed_at = now() FROM gone g WHERE h.organization_id = g.organization_id
        AND h.id = g.history_id${ownOf(organizationId)(sql`h`)}
    )
    SELECT count(*) FILTER (WHERE is_document)::int AS documents, coalesce(sum(version_count), 0)::int AS versions,
      coalesce(sum(bytes), 0)::float8 AS bytes
    FROM gone`)
}

/** A page of all organizations that have removed histories to delete. The page starts after an id. */
export async function listRemovals (db: Db, after: string, limit: number): Promise<string[]> {
  // On PostgreSQL, the recursion makes one index look-up for each organization, because an organization can have many
  // histories. Citus does not execute a recursion over several machines.
  const rows = await queryRows<{ organization_id: string }>(db, perEngine({
    postgres: sql`
    WITH RECURSIVE found AS (
      (SELECT organization_id FROM histories WHERE removed_at IS NOT NULL AND organization_id > ${after}
        ORDER BY organization_id LIMIT 1)
      UNION ALL
      SELECT (SELECT h.organization_id FROM histories h WHERE h.removed_at IS NOT NULL
        AND h.organization_id > f.organization_id ORDER BY h.organization_id LIMIT 1)
      FROM found f WHERE f.organization_id IS NOT NULL
    )
    SELECT organization_id FROM found WHERE organization_id IS NOT NULL LIMIT ${limit}`,
    citus: sql`
    SELECT DISTINCT organization_id FROM histories WHERE removed_at IS NOT NULL AND organization_id > ${after}
    ORDER BY organization_id LIMIT ${limit}`
  }))
  return rows.map(({ organization_id }) => organization_id)
}

// Maximum bytes of a batch. Without this limit, a batch of large versions would have to delete very many disk pages.
const PIECE_BYTES = 16 * 1024 * 1024

/** A cursor over the versions of removed histories. */
export interface Removal { history_id: string, id: number }

/** The cursor before the first row. */
export const START: Removal = { history_id: '', id: 0 }

/**
 * Deletes at most `limit` versions of removed histories of the organization, after the cursor. Skips versions that
 * another instance has locked. Returns the new cursor; undefined if there are no versions after the cursor.
 */
export async function deleteRemovedVersions (
  db: Db, organizationId: string, after: Removal, limit: number
): Promise<Removal | undefined> {
  const own = ownOf(organizationId)
  const [last] = await queryRows<{ history_id: string, id: string }>(db, sql`
    WITH found AS (
      SELECT h.organization_id, h.id AS history_id, v.id, v.size_bytes,
        sum(v.size_bytes) OVER (ORDER BY h.id, v.id) AS bytes
      FROM histories h CROSS JOIN LATERAL (
        SELECT v.id, v.size_bytes FROM secret_versions v
        WHERE v.organization_id = h.organization_id AND v.history_id = h.id
          AND v.id > CASE WHEN h.id = ${after.history_id} THEN ${after.id}::bigint ELSE 0 END${own(sql`v`)}
        ORDER BY v.id LIMIT ${limit}
      ) v
      WHERE h.organization_id = ${organizationId} AND h.removed_at IS NOT NULL AND h.id >= ${after.history_id}
      ORDER BY h.id, v.id LIMIT ${limit}
    ), next AS (
      SELECT organization_id, history_id, id FROM found WHERE bytes - size_bytes < ${PIECE_BYTES}
    ), mine AS (
      SELECT v.organization_id, v.id FROM secret_versions v
      WHERE (v.organization_id, v.id) IN (SELECT organization_id, id FROM next)${own(sql`v`)}
      FOR UPDATE SKIP LOCKED
    ), deleted AS (
      DELETE FROM secret_versions v USING mine
      WHERE v.organization_id = mine.organization_id AND v.id = mine.id${own(sql`v`)}
    )
    SELECT history_id, id FROM next ORDER BY history_id DESC, id DESC LIMIT 1`)
  return last && { history_id: last.history_id, id: Number(last.id) }
}

// Deletes the rows of an organization whose `key` the query `selected` returns. Returns the number of deleted rows.
async function deleteSelected (
  db: Db, organizationId: string, table: PgTable, selected: SQL, key = 'id'
): Promise<number> {
  const column = sql.identifier(key)
  const { count } = await queryRow<{ count: number }>(db, sql`
    WITH next AS (${selected}), gone AS (
      DELETE FROM ${table} t USING next WHERE t.organization_id = next.organization_id
        AND t.${column} = next.${column}${ownOf(organizationId)(sql`t`)}
      RETURNING 1
    )
    SELECT count(*)::int AS count FROM gone`)
  return count
}

/** Deletes at most `limit` removed histories that have no versions. Returns the number of deleted histories. */
export async function deleteEmptyHistories (db: Db, organizationId: string, limit: number): Promise<number> {
  return deleteSelected(db, organizationId, histories, sql`
    SELECT h.organization_id, h.id FROM histories h
    WHERE h.organization_id = ${organizationId} AND h.removed_at IS NOT NULL
      AND NOT EXISTS (${versionsOf(organizationId, sql`h.organization_id`, sql`h.id`)})
    LIMIT ${limit} FOR UPDATE SKIP LOCKED`)
}

/** A page of all deleted organizations that still have data to delete. The page starts after an id. */
export async function listRemovedOrganizations (db: Db, after: string, limit: number): Promise<string[]> {
  const { organization_id } = organization_removals
  return (await db.select({ organization_id }).from(organization_removals).where(gt(organization_id, after))
    .orderBy(asc(organization_id)).limit(limit)).map((row) => row.organization_id)
}

/**
 * Deletes at most `limit` secrets of a deleted organization, and marks their histories as removed. Returns the number
 * of deleted secrets. Waits for the locks of transactions that began before the organization was deleted. Such a
 * transaction cannot commit any more.
 */
export async function deleteSecretsOfRemoved (db: Db, organizationId: string, limit: number): Promise<number> {
  const { count } = await queryRow<{ count: number }>(db, sql`
    WITH next AS (
      SELECT s.organization_id, s.id FROM secrets s WHERE s.organization_id = ${organizationId} LIMIT ${limit} FOR UPDATE
    ), gone AS (
      DELETE FROM secrets s USING next
      WHERE s.organization_id = next.organization_id AND s.id = next.id${ownOf(organizationId)(sql`s`)}
      RETURNING s.organization_id, s.history_id
    ), removed AS (
      UPDATE histories h SET removed_at = now() FROM gone WHERE h.organization_id = gone.organization_id
        AND h.id = gone.history_id${ownOf(organizationId)(sql`h`)}
    )
    SELECT count(*)::int AS count FROM gone`)
  return count
}

/** The other tables that still have data of a deleted organization, in the order of deletion. */
export const LEFT_BEHIND = [
  api_tokens, environments, targets, encryption_keys, re_encryptions, project_counts, projects
] as const

/** Deletes at most `limit` rows of a deleted organization from one of these tables. Returns the number of rows. */
export async function deleteLeftBehind (
  db: Db, table: (typeof LEFT_BEHIND)[number], organizationId: string, limit: number
): Promise<number> {
  const key = 'id' in table ? 'id' : 'project_id'
  return deleteSelected(db, organizationId, table, sql`
    SELECT t.organization_id, t.${sql.identifier(key)} FROM ${table} t WHERE t.organization_id = ${organizationId}
    LIMIT ${limit} FOR UPDATE`, key)
}

/** Removes a deleted organization from `organization_removals` if no rows are left. Returns whether none are left. */
export async function endRemoval (db: Db, organizationId: string): Promise<boolean> {
  await db.execute(sql`DELETE FROM long_operations WHERE organization_id = ${organizationId}`)
  const ended = await queryRows(db, sql`
    DELETE FROM organization_removals r WHERE r.organization_id = ${organizationId}
      AND NOT EXISTS (SELECT FROM api_tokens t WHERE t.organization_id = ${organizationId})
      AND NOT EXISTS (SELECT FROM projects p WHERE p.organization_id = ${organizationId})
      AND NOT EXISTS (SELECT FROM histories h WHERE h.organization_id = ${organizationId})
    RETURNING 1`)
  return ended.length > 0
}

// For this number of days, an expired token is listed and can be renewed, unless its grant has expired.
const SHOWN_EXPIRED = 30
const isLongAgo = (moment: SQL): SQL => sql`${moment} < now() - make_interval(days => ${SHOWN_EXPIRED})`

/** A page of all organizations that have tokens for `deleteOverTokens`. The page starts after an id. */
export async function listUnusableTokens (db: Db, after: string, limit: number): Promise<string[]> {
  const rows = await queryRows<{ organization_id: string }>(db, sql`
    SELECT DISTINCT over.organization_id FROM (
      (SELECT t.organization_id FROM api_tokens t WHERE ${isLongAgo(sql`t.expires_at`)} ORDER BY t.expires_at LIMIT 1000)
      UNION ALL
      (SELECT t.organization_id FROM oauth_grants g JOIN api_tokens t ON t.grant_id = g.id
        WHERE ${isLongAgo(sql`g.expires_at`)} ORDER BY g.expires_at LIMIT 1000)
    ) AS over WHERE over.organization_id > ${after} ORDER BY over.organization_id LIMIT ${limit}`)
  return rows.map(({ organization_id }) => organization_id)
}

/**
 * Deletes at most `limit` API tokens of the organization that expired, or whose grant expired, more than 30 days ago.
 * Returns the number of deleted tokens. Keeps their audit events. Skips locked tokens until the next run.
 */
export async function deleteUnusableTokens (db: Db, organizationId: string, limit: number): Promise<number> {
  return deleteSelected(db, organizationId, api_tokens, sql`
    SELECT t.organization_id, t.id FROM api_tokens t LEFT JOIN oauth_grants g ON g.id = t.grant_id
    WHERE t.organization_id = ${organizationId}
      AND (${isLongAgo(sql`t.expires_at`)} OR ${isLongAgo(sql`g.expires_at`)})
    ORDER BY t.id LIMIT ${limit} FOR UPDATE OF t SKIP LOCKED`)
}

/** A page of `token_removals` (API tokens to delete) of all organizations. The page starts after an entry. */
export async function listTokenRemovals (
  db: Db, after: TokenRemoval | undefined, limit: number
): Promise<TokenRemoval[]> {
  const { organization_id, ended, ended_id } = token_removals
  return db.select().from(token_removals)
    .where(sql`(${organization_id}, ${ended}, ${ended_id}) >
      (${after?.organization_id ?? ''}, ${after?.ended ?? ''}, ${after?.ended_id ?? 0}::bigint)`)
    .orderBy(asc(organization_id), asc(ended), asc(ended_id)).limit(limit)
}

const HANGS_ON = { member: sql`t.user_id`, grant: sql`t.grant_id` }

/**
 * Deletes at most `limit` API tokens of an entry in `token_removals`. Returns the number of deleted tokens. If no token
 * is left, deletes the entry. Skips locked tokens until the next run.
 */
export async function deleteEndedTokens (
  db: Db, removal: TokenRemoval & { ended: keyof typeof HANGS_ON }, limit: number
): Promise<number> {
  const { organization_id, ended, ended_id } = removal
  const its = sql`t.organization_id = ${organization_id} AND ${HANGS_ON[ended]} = ${ended_id}::bigint`
  // Deletes tokens only while the entry exists. The entry is deleted before the person can join the organization again,
  // so tokens of the new membership are not deleted.
  const isLeft = sql`EXISTS (SELECT FROM ${token_removals} WHERE ${isTokenRemoval(removal)})`
  const count = await deleteSelected(db, organization_id, api_tokens, sql`
    SELECT t.organization_id, t.id FROM api_tokens t WHERE ${its} AND ${isLeft} LIMIT ${limit}
    FOR UPDATE OF t SKIP LOCKED`)
  if (count < limit) await deleteTokenRemoval(db, removal, sql`NOT EXISTS (SELECT FROM api_tokens t WHERE ${its})`)
  return count
}

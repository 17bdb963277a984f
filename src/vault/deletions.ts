import { PIECE } from '../db/callers/expired.ts'
import { createTokenRemovals, type TokenRemoval } from '../db/callers/grants.ts'
import type { Db } from '../db/database.ts'
import type { Counter } from '../db/rows/counter.ts'
import { eventOf, type AuditEvent } from '../repositories/audit/audit.ts'
import {
  countLevels, deleteEmptyHistories, deleteRemovedVersions, removeHistories, START, type Below
} from '../repositories/operations/cleanup.ts'
import { deleteTeamsOfProject, listTeamsOfNothing } from '../repositories/people/teams.ts'
import { deleteTokens, lockTokensOfNothing } from '../repositories/people/tokens.ts'
import { deleteRulesOfNothing } from '../repositories/people/workloads.ts'
import { MAX_LEVELS_OF_SHORT_DELETION } from './operations/long-operations.ts'

/** Whether the deletion of a level with the levels below it is a long operation. */
export const isLongDeletion = async (db: Db, organizationId: string, below: Below): Promise<boolean> =>
  await countLevels(db, organizationId, below) > MAX_LEVELS_OF_SHORT_DELETION

/**
 * Deletes a level and the levels below it. Also deletes the API tokens, trust rules and team roles that are restricted
 * to these levels. `projectId` is the project of a deleted target or environment. If a project is deleted, its team
 * roles are deleted with its row. Returns the events.
 */
export async function deleteLevel (
  db: Db, organizationId: string, below: Below, event: AuditEvent, lockCounter: () => Promise<Counter>,
  deleteRow: (removed: { documents: number }) => Promise<void>, projectId?: string
): Promise<AuditEvent[]> {
  const { bytes, ...removed } = await removeHistories(db, organizationId, below)
  // Validates the caller before the deletion of tokens and team roles, which may include those of the caller.
  await lockCounter()
  await deleteRow(removed)
  await removeSome(db, organizationId)
  const tokens = await lockTokensOfNothing(db, organizationId, PIECE, below)
  const teams = projectId === undefined ? [] : await listTeamsOfNothing(db, organizationId, projectId)
  await deleteTokens(db, organizationId, tokens)
  const rules = await deleteRulesOfNothing(db, organizationId, below)
  if (projectId !== undefined) await deleteTeamsOfProject(db, organizationId, projectId, teams)
  // If more tokens are left, a background job deletes them. They give no access, because their levels are deleted.
  if (tokens.length === PIECE) await createTokenRemovals(db, levelsOf(organizationId))
  return [
    { ...event, details: { ...event.details, ...removed }, growth: -bytes },
    ...endingsOf(tokens, event.resource_type),
    ...rules.map((id) => eventOf('workload.delete', id, { with: event.resource_type })),
    ...teams.map((id): AuditEvent => ({
      action: 'team-project.delete',
      resource_type: 'team',
      resource_id: id,
      details: { project_id: projectId!, project: event.details?.project ?? null, with: event.resource_type }
    }))
  ]
}

const levelsOf = (organization_id: string): TokenRemoval => ({ organization_id, ended: 'level', ended_id: 0 })

/** The events of API tokens whose levels are deleted. */
export const endingsOf = (tokens: readonly number[], cause: string): AuditEvent[] =>
  tokens.map((id) => eventOf('api-token.delete', id, { with: cause }))

/** Deletes a first batch of the rows that the transaction has marked as removed. A worker deletes the rest. */
export async function removeSome (db: Db, organizationId: string): Promise<void> {
  await deleteRemovedVersions(db, organizationId, START, PIECE)
  await deleteEmptyHistories(db, organizationId, PIECE)
}

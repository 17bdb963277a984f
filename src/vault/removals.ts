import { databaseError, transaction, type Db } from '../db/database.ts'
import { PIECE } from '../db/expired.ts'
import { createTokenRemovals, deleteTokenRemoval, type TokenRemoval } from '../db/token-removals.ts'
import { holdCaller, recordEvent, systemOf, type Actor, type AuditEvent } from '../repositories/audit.ts'
import { deleteOldAnswers, listOwnersOfOldAnswers } from '../repositories/idempotency.ts'
import {
  deleteEmptyHistories, deleteEndedTokens, deleteLeftBehind, deleteOverTokens, deleteRemovedVersions,
  deleteSecretsOfRemoved, endRemoval, LEFT_BEHIND, listOverTokens, listRemovals, listRemovedOrganizations,
  listTokenRemovals, removeHistories, type Below, type Removal
} from '../repositories/removals.ts'
import { lockPlan } from '../repositories/plans.ts'
import { deleteTokens, lockTokensOfNothing } from '../repositories/tokens.ts'
import { createBackground, rest, sideBySide, type Background } from './background.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

const START: Removal = { history_id: '', id: 0 }

/** What a delete of a level holds before the project: API tokens of an organization end one after the other (0029). */
export const HELD_BY_DELETE = { before: lockPlan }

/**
 * Deletes a project, target or environment with what is below it, in the caller's transaction, which holds the
 * organization and the project (`HELD_BY_DELETE`). Whoever has its name may be made again at once; tokens that were
 * narrowed to it end with it.
 */
export async function deleteLevel (
  db: Db, actor: Actor, below: Below, event: Omit<AuditEvent, 'details'>, deleteRow: (gone: {
    documents: number
  }) => Promise<void>
): Promise<void> {
  // The caller before the tokens, and before what a team holds of a project, which goes with it.
  await holdCaller(db, actor)
  const held = actor.caller?.teams === undefined ? actor : { ...actor, caller: { ...actor.caller, teams: [] } }
  const { bytes, ...gone } = await removeHistories(db, actor.organization_id, below)
  await deleteRow(gone)
  await removeSome(db, actor.organization_id)
  const tokens = await lockTokensOfNothing(db, actor.organization_id, PIECE)
  await recordEvent(db, held, { ...event, details: gone, growth: -bytes }, ...endingsOf(tokens, event.resource_type))
  // After the events: the caller may be one of them.
  await deleteTokens(db, actor.organization_id, tokens)
  // Any others reach nothing, as what they were narrowed to is gone, and end in the background.
  if (tokens.length === PIECE) await createTokenRemovals(db, levelsOf(actor.organization_id))
}

const levelsOf = (organization_id: string): TokenRemoval => ({ organization_id, ended: 'level', ended_id: 0 })

/**
 * Ends the next API tokens of an organization that are narrowed to nothing that there still is, in the caller's
 * transaction, which holds the organization; answers how many. The service itself does, with this cause.
 */
export async function endTokensOfNothing (db: Db, organizationId: string, cause: string): Promise<number> {
  const tokens = await lockTokensOfNothing(db, organizationId, PIECE)
  if (tokens.length > 0) await recordEvent(db, systemOf(organizationId), ...endingsOf(tokens, cause))
  await deleteTokens(db, organizationId, tokens)
  return tokens.length
}

// The events of tokens that end with something.
const endingsOf = (tokens: readonly number[], cause: string): AuditEvent[] =>
  tokens.map((id) =>
    ({ action: 'api-token.delete', resource_type: 'api-token', resource_id: String(id), details: { with: cause } }))

/**
 * Takes away some of what was just removed, in the same transaction: all of it where it is little. The worker does the
 * rest.
 */
export async function removeSome (db: Db, organizationId: string): Promise<void> {
  await deleteRemovedVersions(db, organizationId, START, PIECE)
  await deleteEmptyHistories(db, organizationId, PIECE)
}

/**
 * Takes away the rows of what was purged or deleted, whole organizations too, of answers that are kept no longer, and
 * of API tokens that expired long ago, or ended with many others, piece by piece. Nobody needs them any more. For
 * tokens that ended somebody waits who was invited again: so they wait for nothing else.
 */
export function createRemovalWorker ({ db, log }: { db: Db, log: Log }): Background {
  async function remove (organizationId: string, isStopped: () => boolean) {
    let after: Removal | undefined = START
    while (after !== undefined) {
      if (isStopped()) return
      const began = performance.now()
      after = await deleteRemovedVersions(db, organizationId, after, PIECE)
      await rest(began)
    }
    await inPieces(isStopped, () => deleteEmptyHistories(db, organizationId, PIECE))
    log.info({ organization: organizationId }, 'purged and deleted versions removed')
  }

  async function inPieces (isStopped: () => boolean, take: () => Promise<number>) {
    for (let taken = PIECE; taken === PIECE && !isStopped();) {
      const began = performance.now()
      taken = await take()
      await rest(began)
    }
  }

  // Of an organization that was deleted: nobody is let into it any more. Its audit stays.
  async function removeOrganization (organizationId: string, isStopped: () => boolean) {
    await inPieces(isStopped, () => deleteSecretsOfRemoved(db, organizationId, PIECE))
    await remove(organizationId, isStopped)
    for (const table of LEFT_BEHIND) {
      await inPieces(isStopped, () => deleteLeftBehind(db, table, organizationId, PIECE))
    }
    if (!isStopped() && await endRemoval(db, organizationId)) {
      log.info({ organization: organizationId }, 'a deleted organization is gone')
    }
  }

  async function removeTokens ({ ended, ...removal }: TokenRemoval): Promise<number> {
    if (ended !== 'level') return deleteEndedTokens(db, { ended, ...removal }, PIECE)
    return transaction(db, async (db) => {
      const { organization_id } = removal
      const isThere = await lockPlan(db, organization_id) !== undefined
      const taken = isThere ? await endTokensOfNothing(db, organization_id, ended) : 0
      if (taken < PIECE) await deleteTokenRemoval(db, { ended, ...removal })
      return taken
    })
  }

  const interrupted = (error: unknown, organization?: string): [] => {
    log.warn(
      { err: databaseError(error), ...(organization !== undefined && { organization }) },
      'the removal of what counts no more was interrupted'
    )
    return []
  }

  const endedTokens = createBackground(async (isStopped) => {
    for (const removal of await listTokenRemovals(db).catch(interrupted)) {
      await inPieces(isStopped, () => removeTokens(removal))
        .catch((error: unknown) => interrupted(error, removal.organization_id))
    }
  })

  const others = createBackground(async (isStopped) => {
    for (const organization of await listRemovedOrganizations(db).catch(interrupted)) {
      await removeOrganization(organization, isStopped).catch((error: unknown) => interrupted(error, organization))
    }
    for (const organization of await listRemovals(db).catch(interrupted)) {
      // One that fails does not hold up the others; the next look tries it again.
      await remove(organization, isStopped).catch((error: unknown) => interrupted(error, organization))
    }
    const kinds = [[listOwnersOfOldAnswers, deleteOldAnswers], [listOverTokens, deleteOverTokens]] as const
    for (const [list, take] of kinds) {
      for (const organization of await list(db).catch(interrupted)) {
        await inPieces(isStopped, () => take(db, organization, PIECE))
          .catch((error: unknown) => interrupted(error, organization))
      }
    }
  })
  return sideBySide(endedTokens, others)
}

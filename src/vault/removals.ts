import { databaseError, transaction, type Db } from '../db/database.ts'
import { PIECE } from '../db/expired.ts'
import { createTokenRemovals, deleteTokenRemoval, type TokenRemoval } from '../db/token-removals.ts'
import { lockCounterLast, recordEvent, systemOf, type Actor, type AuditEvent } from '../repositories/audit.ts'
import type { KeyState } from '../repositories/encryption-keys.ts'
import { deleteOldAnswers, listOwnersOfOldAnswers } from '../repositories/idempotency.ts'
import { listExpiredInvitations } from '../repositories/invitations.ts'
import {
  countLevels, deleteEmptyHistories, deleteEndedTokens, deleteLeftBehind, deleteOverTokens, deleteRemovedVersions,
  deleteSecretsOfRemoved, endRemoval, LEFT_BEHIND, listOverTokens, listRemovals, listRemovedOrganizations,
  listTokenRemovals, removeHistories, type Below, type Removal
} from '../repositories/removals.ts'
import { lockPlan } from '../repositories/plans.ts'
import { lockProject } from '../repositories/projects.ts'
import { deleteTokens, lockTokensOfNothing } from '../repositories/tokens.ts'
import { fail } from '../rules/errors.ts'
import { expireInvitations } from './memberships.ts'
import { createBackground, sideBySide, type Background } from './background.ts'
import { MAX_LEVELS_OF_SHORT_DELETION, runLongOperation } from './long-operations.ts'
import { byTurns } from './turns.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

const START: Removal = { history_id: '', id: 0 }

/** A deletion of a level, as the caller of `deletionRunner` describes it. */
export interface Deletion {
  organization: { id: string }
  actor: Actor
  below: Below
  /** Called in the transaction of a long operation, before its effect. A deletion of one level is none. */
  countLongOperation?: () => Promise<void>
}

/**
 * How a deletion of a level is run: in a transaction that has locked the organization, whose API tokens it may end, and
 * then the project (0029). With more than 1,000 levels it is a long operation.
 */
export function deletionRunner (
  { db: handle, reads, longTransactions }: { db: Db, reads: Db, longTransactions: Db },
  { organization, actor, below, countLongOperation }: Deletion
) {
  return async <T>(projectId: string, change: (db: Db, project: KeyState) => Promise<T>): Promise<T> => {
    const { id } = organization
    if (await countLevels(reads, id, below) > MAX_LEVELS_OF_SHORT_DELETION) {
      const run = async (db: Db, project: KeyState) => {
        await countLongOperation?.()
        return change(db, project)
      }
      const operation = { organization, projectId, actor, inUse: 'conflict' as const, run }
      return runLongOperation({ longTransactions }, operation)
    }
    return transaction(handle, async (db) => {
      return change(db, await lockProject(db, id, { id: projectId }) ?? fail('not_found'))
    }, actor)
  }
}

/**
 * Deletes a project, target or environment with what is below it, in the transaction of a `deletionRunner`. Its slug is
 * free at once; tokens that were restricted to it end with it.
 */
export async function deleteLevel (
  db: Db, actor: Actor, below: Below, event: Omit<AuditEvent, 'details'>, deleteRow: (gone: {
    documents: number
  }) => Promise<void>
): Promise<void> {
  const { bytes, ...gone } = await removeHistories(db, actor.organization_id, below)
  // Before the tokens, one of which can be the caller's, and before a team's role in the project, which ends with it.
  await lockCounterLast(db, actor)
  await deleteRow(gone)
  await removeSome(db, actor.organization_id)
  const tokens = await lockTokensOfNothing(db, actor.organization_id, PIECE)
  await recordEvent(db, actor, { ...event, details: gone, growth: -bytes }, ...endingsOf(tokens, event.resource_type))
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
async function endTokensOfNothing (db: Db, organizationId: string, cause: string): Promise<number> {
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

/** Takes away a piece, and answers where its kind goes on; undefined when there is nothing left of it. */
type Step = (organization: string, place: Removal) => Promise<Removal | undefined>

/** What is removed in one organization, step by step. */
interface Kind {
  list (db: Db, after: string, limit: number): Promise<string[]>
  steps: Step[]
  end? (organization: string): Promise<void>
}

/** What is to be removed in an organization: which of the kinds. */
interface Removing { kind: number, organization: string }

/** At which of its steps that is, and where. */
interface Place { step: number, at: Removal }

/**
 * Takes away the rows of what was purged or deleted, whole organizations too, of answers that are kept no longer, and
 * of API tokens that expired long ago, or ended with many others: by turns, a piece of each. Nobody needs them any
 * more. For tokens that ended somebody waits who was invited again: so they wait for nothing else.
 */
export function createRemovalWorker ({ db, log }: { db: Db, log: Log }): Background {
  const inPieces = (take: (db: Db, organization: string, limit: number) => Promise<number>): Step =>
    async (organization) => await take(db, organization, PIECE) === PIECE ? START : undefined

  const versions: Step = (organization, place) => deleteRemovedVersions(db, organization, place, PIECE)
  const histories = inPieces(deleteEmptyHistories)

  const kinds: Kind[] = [
    {
      // Of an organization that was deleted: nobody is let into it any more. Its audit stays.
      list: listRemovedOrganizations,
      steps: [
        inPieces(deleteSecretsOfRemoved), versions, histories,
        ...LEFT_BEHIND.map((table) => inPieces((db, organization, limit) =>
          deleteLeftBehind(db, table, organization, limit)))
      ],
      async end (organization) {
        if (await endRemoval(db, organization)) log.info({ organization }, 'a deleted organization is gone')
      }
    },
    {
      list: listRemovals,
      steps: [versions, histories],
      async end (organization) { log.info({ organization }, 'purged and deleted versions removed') }
    },
    { list: listOwnersOfOldAnswers, steps: [inPieces(deleteOldAnswers)] },
    {
      list: listExpiredInvitations,
      steps: [inPieces((db, organization) => transaction(db, async (db) => {
        await lockPlan(db, organization)
        return expireInvitations(db, organization)
      }, { organization_id: organization }))]
    },
    { list: listOverTokens, steps: [inPieces(deleteOverTokens)] }
  ]

  async function removeTokens ({ ended, ...removal }: TokenRemoval): Promise<number> {
    if (ended !== 'level') return deleteEndedTokens(db, { ended, ...removal }, PIECE)
    return transaction(db, async (db) => {
      const { organization_id } = removal
      const isThere = await lockPlan(db, organization_id) !== undefined
      const taken = isThere ? await endTokensOfNothing(db, organization_id, ended) : 0
      if (taken < PIECE) await deleteTokenRemoval(db, { ended, ...removal })
      return taken
    }, removal)
  }

  const interrupted = (error: unknown, organization?: string) => {
    log.warn(
      { err: databaseError(error), ...(organization !== undefined && { organization }) },
      'the removal of what counts no more was interrupted'
    )
  }

  const endedTokens = createBackground(byTurns<TokenRemoval, true>({
    list: (after, limit) => listTokenRemovals(db, after, limit),
    nameOf: ({ organization_id, ended, ended_id }) => `${organization_id} ${ended} ${ended_id}`,
    take: async (removal) => await removeTokens(removal) === PIECE ? { more: true } : 'nothing',
    interrupted: (error, removal) => { interrupted(error, removal?.organization_id) }
  }))

  const others = createBackground(byTurns<Removing, Place>({
    async list (after = { kind: 0, organization: '' }, limit) {
      const found: Removing[] = []
      for (let { kind, organization: last } = after; kind < kinds.length && found.length < limit; kind++, last = '') {
        const organizations = await kinds[kind]!.list(db, last, limit - found.length)
        found.push(...organizations.map((organization) => ({ kind, organization })))
      }
      return found
    },
    nameOf: ({ kind, organization }) => `${kind} ${organization}`,
    async take ({ kind, organization }, { step, at } = { step: 0, at: START }) {
      const { steps, end } = kinds[kind]!
      const next = await steps[step]!(organization, at)
      if (next !== undefined) return { more: { step, at: next } }
      if (step + 1 < steps.length) return { more: { step: step + 1, at: START } }
      await end?.(organization)
      return 'nothing'
    },
    interrupted: (error, removing) => { interrupted(error, removing?.organization) }
  }))
  return sideBySide(endedTokens, others)
}

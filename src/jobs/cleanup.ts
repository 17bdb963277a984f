import { transaction, type Db } from '../../db/database.ts'
import { PIECE } from '../../db/callers/expired.ts'
import type { Counter } from '../../db/changes/chain.ts'
import { createTokenRemovals, deleteTokenRemoval, type TokenRemoval } from '../../db/callers/token-removals.ts'
import { eventOf, recordEvent, systemOf, type AuditEvent } from '../../repositories/audit/audit.ts'
import { deleteOldAnswers, listOwnersOfOldAnswers } from '../../repositories/operations/idempotency.ts'
import { listExpiredInvitations } from '../../repositories/people/invitations.ts'
import {
  countLevels, deleteEmptyHistories, deleteEndedTokens, deleteLeftBehind, deleteUnusableTokens, deleteRemovedVersions,
  deleteSecretsOfRemoved, endRemoval, LEFT_BEHIND, listUnusableTokens, listRemovals, listRemovedOrganizations,
  listTokenRemovals, removeHistories, type Below, type Removal
} from '../../repositories/operations/cleanup.ts'
import { lockPlan } from '../../repositories/billing/plans.ts'
import { deleteTeamsOfProject, listTeamsOfNothing } from '../../repositories/people/teams.ts'
import { deleteTokens, lockTokensOfNothing } from '../../repositories/people/tokens.ts'
import type { Log } from '../../telemetry/log.ts'
import { expireInvitations } from './memberships.ts'
import { sideBySide, type Background } from './background.ts'
import { MAX_LEVELS_OF_SHORT_DELETION } from '../operations/long-operations.ts'
import { createRoundRobin } from './round-robin.ts'

const START: Removal = { history_id: '', id: 0 }

/** Whether the deletion of a level with the levels below it is a long operation. */
export const isLongDeletion = async (db: Db, organizationId: string, below: Below): Promise<boolean> =>
  await countLevels(db, organizationId, below) > MAX_LEVELS_OF_SHORT_DELETION

/**
 * Deletes a level and the levels below it. Also deletes the API tokens and team roles that are restricted to these
 * levels. `projectId` is the project of a deleted target or environment. If a project is deleted, its team roles are
 * deleted with its row. Returns the events.
 */
export async function deleteLevel (
  db: Db, organizationId: string, below: Below, event: Omit<AuditEvent, 'details'>, lockCounter: () => Promise<Counter>,
  deleteRow: (gone: { documents: number }) => Promise<void>, projectId?: string
): Promise<AuditEvent[]> {
  const { bytes, ...gone } = await removeHistories(db, organizationId, below)
  // Validates the caller before the deletion of tokens and team roles, which may include those of the caller.
  await lockCounter()
  await deleteRow(gone)
  await removeSome(db, organizationId)
  const tokens = await lockTokensOfNothing(db, organizationId, PIECE)
  const teams = projectId === undefined ? [] : await listTeamsOfNothing(db, organizationId, projectId)
  await deleteTokens(db, organizationId, tokens)
  if (projectId !== undefined) await deleteTeamsOfProject(db, organizationId, projectId, teams)
  // If more tokens are left, a background job deletes them. They give no access, because their levels are deleted.
  if (tokens.length === PIECE) await createTokenRemovals(db, levelsOf(organizationId))
  return [
    { ...event, details: gone, growth: -bytes },
    ...endingsOf(tokens, event.resource_type),
    ...teams.map((id): AuditEvent => ({
      action: 'team-project.delete',
      resource_type: 'team',
      resource_id: id,
      details: { project_id: projectId!, with: event.resource_type }
    }))
  ]
}

const levelsOf = (organization_id: string): TokenRemoval => ({ organization_id, ended: 'level', ended_id: 0 })

const endingsOf = (tokens: readonly number[], cause: string): AuditEvent[] =>
  tokens.map((id) => eventOf('api-token.delete', id, { with: cause }))

/** Deletes a first batch of the rows that the transaction has marked as removed. A worker deletes the rest. */
export async function removeSome (db: Db, organizationId: string): Promise<void> {
  await deleteRemovedVersions(db, organizationId, START, PIECE)
  await deleteEmptyHistories(db, organizationId, PIECE)
}

/** Deletes a batch. Returns the cursor for the next batch; undefined after the last batch. */
type Step = (organization: string, place: Removal) => Promise<Removal | undefined>

/**
 * A kind of cleanup. `list` returns organizations that need this cleanup; in each, `steps` run in order, then `end`.
 */
interface Kind {
  list (db: Db, after: string, limit: number): Promise<string[]>
  steps: Step[]
  end? (organization: string): Promise<void>
}

/** An organization that needs cleanup, and the index of the kind of cleanup. */
interface Removing { kind: number, organization: string }

/** The index of the current step, and the cursor of the step. */
interface Place { step: number, at: Removal }

/**
 * Deletes in the background: purged versions, the rows of deleted levels and organizations, expired responses and
 * invitations, and invalid API tokens. The tokens in `token_removals` have a separate worker, because a former member
 * can join again only after the deletion of the tokens.
 */
export function createRemovalWorker ({ db, log }: { db: Db, log: Log }): Background {
  const inBatches = (take: (db: Db, organization: string, limit: number) => Promise<number>): Step =>
    async (organization) => await take(db, organization, PIECE) === PIECE ? START : undefined

  const versions: Step = (organization, place) => deleteRemovedVersions(db, organization, place, PIECE)
  const histories = inBatches(deleteEmptyHistories)

  const kinds: Kind[] = [
    {
      // A deleted organization is already inaccessible. Its audit events stay.
      list: listRemovedOrganizations,
      steps: [
        inBatches(deleteSecretsOfRemoved), versions, histories,
        ...LEFT_BEHIND.map((table) => inBatches((db, organization, limit) =>
          deleteLeftBehind(db, table, organization, limit)))
      ],
      async end (organization) {
        if (await endRemoval(db, organization)) log.info({ organization }, 'deleted organization removed')
      }
    },
    {
      list: listRemovals,
      steps: [versions, histories],
      async end (organization) { log.info({ organization }, 'purged and deleted versions removed') }
    },
    { list: listOwnersOfOldAnswers, steps: [inBatches(deleteOldAnswers)] },
    {
      list: listExpiredInvitations,
      steps: [inBatches((db, organization) => transaction(db, async (db) => {
        await lockPlan(db, organization)
        return expireInvitations(db, organization)
      }, { organization_id: organization }))]
    },
    { list: listUnusableTokens, steps: [inBatches(deleteUnusableTokens)] }
  ]

  async function removeTokens (removal: TokenRemoval): Promise<number> {
    const { organization_id, ended } = removal
    if (ended !== 'level') return deleteEndedTokens(db, { ...removal, ended }, PIECE)
    return transaction(db, async (db) => {
      const isThere = await lockPlan(db, organization_id) !== undefined
      const tokens = isThere ? await lockTokensOfNothing(db, organization_id, PIECE) : []
      if (tokens.length > 0) await recordEvent(db, systemOf(organization_id), ...endingsOf(tokens, ended))
      await deleteTokens(db, organization_id, tokens)
      if (tokens.length < PIECE) await deleteTokenRemoval(db, removal)
      return tokens.length
    }, { organization_id })
  }

  const failure = 'cleanup failed; will retry'
  const endedTokens = createRoundRobin<TokenRemoval, true>({
    list: (after, limit) => listTokenRemovals(db, after, limit),
    nameOf: ({ organization_id, ended, ended_id }) => `${organization_id} ${ended} ${ended_id}`,
    step: async (removal) => await removeTokens(removal) === PIECE ? { more: true } : 'nothing',
    log,
    failure,
    about: ({ organization_id }) => ({ organization: organization_id })
  })
  const others = createRoundRobin<Removing, Place>({
    async list (after = { kind: 0, organization: '' }, limit) {
      const found: Removing[] = []
      for (let { kind, organization: last } = after; kind < kinds.length && found.length < limit; kind++, last = '') {
        const organizations = await kinds[kind]!.list(db, last, limit - found.length)
        found.push(...organizations.map((organization) => ({ kind, organization })))
      }
      return found
    },
    nameOf: ({ kind, organization }) => `${kind} ${organization}`,
    async step ({ kind, organization }, { step, at } = { step: 0, at: START }) {
      const { steps, end } = kinds[kind]!
      const next = await steps[step]!(organization, at)
      if (next !== undefined) return { more: { step, at: next } }
      if (step + 1 < steps.length) return { more: { step: step + 1, at: START } }
      await end?.(organization)
      return 'nothing'
    },
    log,
    failure,
    about: ({ organization }) => ({ organization })
  })
  return sideBySide(endedTokens, others)
}

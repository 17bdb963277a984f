import { change } from '../changes/change.ts'
import { PIECE } from '../db/callers/expired.ts'
import { deleteTokenRemoval, type TokenRemoval } from '../db/callers/grants.ts'
import type { Db } from '../db/database.ts'
import { systemOf } from '../repositories/audit/audit.ts'
import {
  deleteEmptyHistories, deleteEndedTokens, deleteLeftBehind, deleteRemovedVersions, deleteSecretsOfRemoved,
  deleteUnusableTokens, endRemoval, LEFT_BEHIND, listRemovals, listRemovedOrganizations, listTokenRemovals,
  listUnusableTokens, START, type Removal
} from '../repositories/operations/cleanup.ts'
import { deleteOldAnswers, listOwnersOfOldAnswers } from '../repositories/operations/idempotency.ts'
import { listExpiredInvitations } from '../repositories/people/invitations.ts'
import { deleteTokens, lockTokensOfNothing } from '../repositories/people/tokens.ts'
import { deleteExpiredAssertions, listOwnersOfExpiredAssertions } from '../repositories/people/workloads.ts'
import type { Log } from '../telemetry/log.ts'
import { endingsOf } from '../vault/deletions.ts'
import { expireInvitations } from '../vault/memberships.ts'
import { sideBySide, type Background } from './background.ts'
import { createRoundRobin } from './round-robin.ts'

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
 * Deletes in the background: purged versions, the rows of deleted levels and organizations, expired responses,
 * invitations and used assertions, and invalid API tokens. The tokens in `token_removals` have a separate worker,
 * because a former member can join again only after the deletion of the tokens.
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
      steps: [inBatches(async (db, organization) => (await change(db, systemOf(organization), {
        decide: () => ({
          write: async (db) => expireInvitations(db, organization),
          events: ({ events }) => events
        })
      })).written.deleted)]
    },
    { list: listUnusableTokens, steps: [inBatches(deleteUnusableTokens)] },
    { list: listOwnersOfExpiredAssertions, steps: [inBatches(deleteExpiredAssertions)] }
  ]

  async function removeTokens (removal: TokenRemoval): Promise<number> {
    const { organization_id, ended } = removal
    if (ended !== 'level') return deleteEndedTokens(db, { ...removal, ended }, PIECE)
    const { written: deleted } = await change(db, systemOf(organization_id), {
      load: async (db, { is_closed }) => is_closed ? [] : lockTokensOfNothing(db, organization_id, PIECE),
      decide: (tokens) => ({
        async write (db) {
          await deleteTokens(db, organization_id, tokens)
          if (tokens.length < PIECE) await deleteTokenRemoval(db, removal)
          return tokens.length
        },
        events: endingsOf(tokens, ended)
      })
    })
    return deleted
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
      const removals: Removing[] = []
      for (let { kind, organization: last } = after; kind < kinds.length && removals.length < limit; kind++, last = '') {
        const organizations = await kinds[kind]!.list(db, last, limit - removals.length)
        removals.push(...organizations.map((organization) => ({ kind, organization })))
      }
      return removals
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

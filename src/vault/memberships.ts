import type { MemberAttributes } from '../../schemas/members.ts'
import type { Role } from '../../schemas/users.ts'
import { endingOf, endTokensOfBefore, lockTokensOfMember, namesOf } from '../db/callers/grants.ts'
import type { Db } from '../db/database.ts'
import type { Counter } from '../db/rows/counter.ts'
import { eventOf, systemOf, type Actor, type AuditEvent, type RecordedEvent } from '../repositories/audit/audit.ts'
import { findFull } from '../repositories/billing/plans.ts'
import { findOrganization } from '../repositories/levels/organizations.ts'
import {
  deleteExpiredInvitations, deleteInvitation, deleteInvitations, findInvitation, listEndedInvitations,
  listGivenInvitations, type Invitation, type Inviter
} from '../repositories/people/invitations.ts'
import { countOtherOwners, deleteMember, findActiveRoles, findMember, lockMember } from '../repositories/people/members.ts'
import { createPersonalEvent } from '../repositories/people/personal-events.ts'
import { listPrincipals } from '../repositories/people/principals.ts'
import { createMember, lockMemberships, reachedLimit } from '../repositories/people/users.ts'
import { listRulesOf } from '../repositories/people/workloads.ts'
import { canonicalEmail } from '../rules/formats/emails.ts'
import { mayInvite, powersOfRole, type Powers } from '../rules/roles.ts'

// Each function runs in the caller's transaction, and returns its events. The caller has locked the organization
// before: these functions lock accounts, and the organization comes first (decision 0029).

export interface Invitee { id: number, name: string, email: string }

/**
 * Why an invitation cannot be accepted:
 * - `gone`: the invitation was withdrawn, declined or accepted, has expired, or is to another address, or the inviter
 *   may no longer give it;
 * - `memberships_full`: the person has reached the maximum number of memberships or of owned organizations;
 * - `organization_full`: the plan allows no more members;
 * - `organization_inactive`: the organization is suspended, locked or cancelled;
 * - `tokens_left`: the API tokens of an earlier membership are not deleted yet.
 */
export type Refusal = 'gone' | 'memberships_full' | 'organization_full' | 'organization_inactive' | 'tokens_left'

/** Makes the invited person a member. Returns the role, and the event, whose actor is the person. */
export async function acceptInvitation (
  db: Db, { organization_id: organizationId, plan, status }: Counter, id: string, person: Invitee
): Promise<{ role: Role, event: AuditEvent } | Refusal> {
  const memberships = await lockMemberships(db, person.id)
  const invitation = await lockInvitationTo(db, organizationId, id, person)
  if (invitation === undefined) return 'gone'
  if ((await findGiven(db, organizationId, [invitation])).length === 0) return 'gone'
  if (status !== 'active') return 'organization_inactive'
  const member = await findMember(db, organizationId, person.id)
  const role = member?.role ?? invitation.role
  if (member === undefined) {
    if (reachedLimit(memberships, role) !== undefined) return 'memberships_full'
    // The limit already counts the open invitation as a member.
    if (await findFull(db, organizationId, plan, 'members', 0) !== undefined) return 'organization_full'
    if (!await endTokensOfBefore(db, organizationId, person.id)) return 'tokens_left'
    await createMember(db, { organization_id: organizationId, user_id: person.id, role })
  }
  await deleteInvitation(db, organizationId, id)
  return { role, event: eventOf('member.join', person.id, { invitation: id, role }) }
}

/** Declines an invitation; undefined if there is none. The event shows the organization only the e-mail address. */
export async function declineInvitation (
  db: Db, organizationId: string, id: string, person: Invitee
): Promise<RecordedEvent | undefined> {
  const invitation = await lockInvitationTo(db, organizationId, id, person)
  if (invitation === undefined) return undefined
  await deleteInvitation(db, organizationId, id)
  return { actor: systemOf(organizationId), event: eventOf('invitation.decline', id, { email: invitation.email }) }
}

/** Those of an organization's invitations that their inviters may give now. The operator may give every invitation. */
export async function findGiven (
  db: Db, organizationId: string, invitations: readonly Invitation[]
): Promise<Invitation[]> {
  const idsOf = (type: Inviter['type']) => [...new Set(invitations.flatMap(({ invited_by }) =>
    invited_by?.type === type ? [invited_by.id] : []))]
  const powers = new Map<string, Powers>()
  for (const [id, role] of await findActiveRoles(db, organizationId, idsOf('user'))) {
    powers.set(`user ${id}`, powersOfRole(role))
  }
  for (const token of await listPrincipals(db, organizationId, idsOf('api_token'))) {
    powers.set(`api_token ${token.id}`, token)
  }
  return invitations.filter(({ invited_by, role }) => {
    if (invited_by === null) return true
    const held = powers.get(`${invited_by.type} ${invited_by.id}`)
    return held !== undefined && mayInvite(held, role)
  })
}

/**
 * Ends the open invitations of an organization whose inviters may no longer give them. Returns the events. Call this
 * under the lock of the organization, after each change that ends or demotes a member or ends an API token.
 */
export async function deleteUngiven (db: Db, organizationId: string): Promise<RecordedEvent[]> {
  const open = await listGivenInvitations(db, organizationId)
  const given = new Set(await findGiven(db, organizationId, open))
  const ended = await deleteInvitations(db, open.filter((invitation) => !given.has(invitation)))
  return ended.map((invitation) => ({ actor: systemOf(organizationId), event: withdrawalOf(invitation) }))
}

/**
 * Deletes the open invitations of API tokens that ended in these organizations, and with `disabled` those of a disabled
 * account: at most `MAX_ENDED`, and none that another transaction has locked. The others cannot be accepted either
 * (`acceptInvitation`). Returns the events, for `recordOfPerson`. Takes two statements; on Citus one more for each
 * organization.
 */
export async function endInvitationsEverywhere (
  db: Db, organizationIds: readonly string[], disabled: number | null = null
): Promise<RecordedEvent[]> {
  const ended = await deleteInvitations(db, await listEndedInvitations(db, organizationIds, disabled))
  return ended.map((invitation) => ({ actor: systemOf(invitation.organization_id), event: withdrawalOf(invitation) }))
}

const withdrawalOf = ({ id, email, role }: Invitation) =>
  eventOf('invitation.withdraw', id, { email, role, with: 'inviter' })

/** Deletes up to 1,000 expired invitations. Returns their number and the events. */
export async function expireInvitations (
  db: Db, organizationId: string
): Promise<{ deleted: number, events: RecordedEvent[] }> {
  const { deleted, expired } = await deleteExpiredInvitations(db, organizationId)
  const actor = systemOf(organizationId)
  return { deleted, events: expired.map(({ id, email }) => ({ actor, event: eventOf('invitation.expire', id, { email }) })) }
}

async function lockInvitationTo (
  db: Db, organizationId: string, id: string, { email }: Invitee
): Promise<Invitation | undefined> {
  const invitation = await findInvitation(db, organizationId, id, { locks: true })
  return invitation !== undefined && canonicalEmail(invitation.email) === canonicalEmail(email) ? invitation : undefined
}

/**
 * Deletes a membership, the person's team memberships, and the API tokens that the person created in the organization.
 * Returns `last_owner` without changes if no other owner can act. `validate` validates the locked membership, and may
 * throw. Returns the former member as `member`, which is undefined if the account has a wrong MAC, and `none` without a
 * membership. Returns the events of the organization. If a person leaves, records an event of the person's account.
 * The caller has locked the organization: if two owners remove each other, the second one sees the first removal.
 */
export async function endMembership (
  db: Db, actor: Actor, userId: number, validate: (member: { role: Role }) => Promise<void> | void = () => {}
): Promise<{ member: MemberAttributes | undefined, events: RecordedEvent[] } | 'none' | 'last_owner'> {
  const { organization_id } = actor
  const otherOwners = await countOtherOwners(db, organization_id, userId, { locks: true })
  const member = await lockMember(db, organization_id, userId)
  if (member === undefined) return 'none'
  await validate(member)
  if (isLastOwner(member, otherOwners)) return 'last_owner'
  const seen = await findMember(db, organization_id, userId)
  const tokens = await lockTokensOfMember(db, organization_id, userId)
  await deleteMember(db, organization_id, userId, tokens)
  const withdrawn = await deleteUngiven(db, organization_id)
  if (actor.type === 'user' && actor.id === userId) {
    const details = { organization: (await findOrganization(db, organization_id))?.name ?? organization_id }
    const { ip, user_agent } = actor
    await createPersonalEvent(db, { user_id: userId, action: 'member.delete', actor_type: 'user', ip, user_agent, details })
  }
  const details = {
    role: member.role, ...endingOf(tokens.ended, organization_id), ...await rulesOf(db, organization_id, userId)
  }
  return { member: seen, events: [{ actor, event: eventOf('member.delete', userId, details) }, ...withdrawn] }
}

/** Details for an event: the number of trust rules that a member created, and the first 50 ids. Empty without rules. */
export async function rulesOf (
  db: Db, organizationId: string, userId: number
): Promise<{ workloads?: number, workload_ids?: string }> {
  const ids = await listRulesOf(db, organizationId, userId)
  return ids.length === 0 ? {} : { workloads: ids.length, workload_ids: namesOf(ids) }
}

/** Whether a member is an owner, and no other owner can act (`countOtherOwners`). */
export const isLastOwner = ({ role }: { role: Role }, otherOwners: number): boolean =>
  role === 'owner' && otherOwners === 0

import { ulid } from 'ulidx'
import type { MemberAttributes } from '../../schemas/members.ts'
import { TEAM_LIMITS } from '../../schemas/teams.ts'
import type { Role } from '../../schemas/users.ts'
import { endingOf, endTokensOfBefore, lockTokensOfMember, namesOf } from '../db/callers/grants.ts'
import type { Db } from '../db/database.ts'
import type { Counter } from '../db/rows/counter.ts'
import { findSlugs, idsOf } from '../db/rows/slugs.ts'
import { eventOf, systemOf, type Actor, type AuditEvent, type RecordedEvent } from '../repositories/audit/audit.ts'
import { findFull } from '../repositories/billing/plans.ts'
import { findOrganization } from '../repositories/levels/organizations.ts'
import { listTakenSlugs } from '../repositories/levels/projects.ts'
import {
  deleteExpiredInvitations, deleteInvitation, deleteInvitations, findInvitation, listEndedInvitations,
  listGivenInvitations, type Invitation, type Inviter
} from '../repositories/people/invitations.ts'
import { countOtherOwners, deleteMember, findActiveRoles, findMember, lockMember } from '../repositories/people/members.ts'
import { createPersonalEvent } from '../repositories/people/personal-events.ts'
import { listPrincipals } from '../repositories/people/principals.ts'
import {
  countTeamMembers, countTeams, createTeam, createTeamMember, findTeamOfPlace, setTeamProject
} from '../repositories/people/teams.ts'
import { listLeftTokens, lockToken, lockTokenSupport } from '../repositories/people/tokens.ts'
import { createMember, lockMemberships, lockUser, reachedLimit } from '../repositories/people/users.ts'
import { listRulesOf } from '../repositories/people/workloads.ts'
import { canonicalEmail } from '../rules/formats/emails.ts'
import { pathOfSlugs } from '../rules/formats/phrases.ts'
import { numberedSlugs, slugFrom, withSuffix } from '../rules/formats/slugs.ts'
import { mayInvite, powersOfRole, type Powers } from '../rules/roles.ts'
import { isWholeProject, restrictionOf, textOf } from '../rules/slices.ts'

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

/** The events of an accepted invitation. */
export const JOINING = [
  'member.join', 'team.create', 'team-project.update', 'team-member.create'
] as const satisfies AuditEvent['action'][]

/**
 * Makes the invited person a member, also of a team of the invitation's place. Returns the role, and the events, whose
 * actor is the person.
 */
export async function acceptInvitation (
  db: Db, { organization_id: organizationId, plan, status }: Counter, id: string, person: Invitee
): Promise<{ role: Role, events: AuditEvent[] } | Refusal> {
  const memberships = await lockMemberships(db, person.id)
  const invitation = await lockInvitationTo(db, organizationId, id, person)
  if (invitation === undefined) return 'gone'
  await lockInviter(db, invitation)
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
  const events = await joinTeamOfPlace(db, invitation, person.id)
  return { role, events: [eventOf('member.join', person.id, { invitation: id, role }), ...events] }
}

// Locks what ends the right of an inviter without a lock of the organization: the account, the grant and the API token.
// So such an end commits before the right is judged, or after the acceptance.
async function lockInviter (db: Db, { organization_id, invited_by }: Invitation): Promise<void> {
  if (invited_by?.type === 'user') return lockUser(db, invited_by.id)
  if (invited_by === null) return
  await lockTokenSupport(db, organization_id, invited_by.id, null)
  await lockToken(db, organization_id, invited_by.id)
}

/**
 * Adds a member to a team whose only role is that of the invitation, in its place. Makes the team if there is none.
 * Does nothing if the place was deleted, or if a limit of teams is reached. Does not lock the project, which a long
 * operation may hold for minutes: a deletion of the place locks the counter before it looks for roles of the place.
 */
async function joinTeamOfPlace (
  db: Db, { organization_id, id: invitation, place, place_role: role }: Invitation, user_id: number
): Promise<AuditEvent[]> {
  if (place === null || role === null) return []
  const { project_id } = place
  const [restriction] = restrictionOf(place, await findSlugs(db, organization_id, idsOf([place])))
  if (restriction === undefined) return []
  const slices = isWholeProject(place) ? null : [place]
  const found = await findTeamOfPlace(db, { organization_id, project_id, role, slices })
  const team_id = found ?? ulid()
  const { teams, is_in } = await countTeamMembers(db, { organization_id, team_id, user_id })
  if (is_in || teams >= TEAM_LIMITS.teamsOfMember) return []
  const teamEvent = (action: AuditEvent['action'], details: NonNullable<AuditEvent['details']>): AuditEvent =>
    ({ action, resource_type: 'team', resource_id: team_id, details: { ...details, invitation } })
  const made: AuditEvent[] = []
  if (found === undefined) {
    if (await countTeams(db, organization_id) >= TEAM_LIMITS.teams) return []
    const { project, inherited } = restriction
    const name = `${pathOfSlugs(restriction)}${inherited ? ' with inherited' : ''}: ${role.replace('_', ' ')}`
    const slugs = numberedSlugs(slugFrom(name, 'team'), 'team')
    const taken = await listTakenSlugs(db, { organization_id, team: true }, slugs)
    const slug = slugs.find((one) => !taken.has(one)) ?? withSuffix(slugs[0]!, team_id.toLowerCase())
    await createTeam(db, { organization_id, id: team_id, name, slug, is_of_place: true })
    await setTeamProject(db, { organization_id, team_id, project_id }, { role, sent: slices ?? undefined })
    const restrictions = slices && { restrictions: slices.map(textOf).join(' ') }
    made.push(
      teamEvent('team.create', { slug }), teamEvent('team-project.update', { project_id, project, role, ...restrictions })
    )
  }
  await createTeamMember(db, { organization_id, team_id, user_id })
  return [...made, teamEvent('team-member.create', { user_id })]
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
  return invitations.filter(({ invited_by, ...roles }) => {
    if (invited_by === null) return true
    const held = powers.get(`${invited_by.type} ${invited_by.id}`)
    return held !== undefined && mayInvite(held, roles)
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

const withdrawalOf = ({ id, email, role, ...invitation }: Invitation) =>
  eventOf('invitation.withdraw', id, { email, role, ...placeIn(invitation), with: 'inviter' })

/** The place of an invitation and the role there, in an audit event. */
export const placeIn = ({ place, place_role }: Pick<Invitation, 'place' | 'place_role'>) =>
  place !== null && { place: textOf(place), place_role }

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
    role: member.role, ...endingOf(tokens.ended, organization_id), ...await leftOf(db, organization_id, userId)
  }
  return { member: seen, events: [{ actor, event: eventOf('member.delete', userId, details) }, ...withdrawn] }
}

/**
 * Details for the event of a removed or demoted member: the tokens of the organization that the member knows, and the
 * trust rules that the member created. Each with the number and the first 50 ids.
 */
export async function leftOf (db: Db, organizationId: string, userId: number): Promise<{
  organization_tokens?: number, organization_token_ids?: string, workloads?: number, workload_ids?: string
}> {
  const tokens = await listLeftTokens(db, organizationId, userId)
  const rules = await listRulesOf(db, organizationId, userId)
  return {
    ...(tokens.length > 0 && { organization_tokens: tokens.length, organization_token_ids: namesOf(tokens) }),
    ...(rules.length > 0 && { workloads: rules.length, workload_ids: namesOf(rules) })
  }
}

/** Whether a member is an owner, and no other owner can act (`countOtherOwners`). */
export const isLastOwner = ({ role }: { role: Role }, otherOwners: number): boolean =>
  role === 'owner' && otherOwners === 0

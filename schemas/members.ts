import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { Body, Described, Example, OneOf, PublishedAs, Resource, Timestamp } from './shapes.ts'
import { Restriction } from './tokens.ts'
import { EMAIL_LENGTH, MEMBER_STATUSES, ProjectRole, RoleName, ROLES } from './users.ts'

/** The user id of a member, in a path. */
export const MemberInPath = Type.String({ maxLength: 128, examples: ['17'] })
export const MemberParams = Type.Object({ organization: OrganizationInPath, member: MemberInPath })

/** A role in a request; `admin` is accepted as `administrator`. */
export const RoleInBody = PublishedAs(OneOf([...ROLES, 'admin']), RoleName)

export const Member = Resource('members', { title: 'Member', id: '17' }, {
  user_id: Example(Type.Integer(), 17),
  email: Example(Type.String(), 'rosa@nimbus.example'),
  name: Example(Type.String(), 'Rosa Quill'),
  role: Example(RoleName, 'guest'),
  status: Example(OneOf(MEMBER_STATUSES), 'active'),
  joined_at: Timestamp
})
export type MemberAttributes = Static<typeof Member.attributes>

export const InviteMemberBody = Body({
  email: Type.String({ maxLength: EMAIL_LENGTH, examples: ['rosa@nimbus.example'] }),
  role: RoleInBody,
  place: Type.Optional(Described(Restriction, {
    description: 'with `place_role`, for the role `guest`: by accepting, the person joins a team with this role in this ' +
      'place, which is made if there is none; also needs team:update'
  })),
  place_role: Type.Optional(PublishedAs(RoleInBody, ProjectRole))
}, {
  title: 'InviteMemberBody',
  examples: [{
    email: 'rosa@nimbus.example',
    role: 'guest',
    place: { project: 'orbit', target: 'backend', environment: 'live' },
    place_role: 'developer'
  }]
})
export type InviteMemberBody = Static<typeof InviteMemberBody>

export const UpdateMemberBody = Body({
  role: RoleInBody
}, { title: 'UpdateMemberBody', examples: [{ role: 'administrator' }] })

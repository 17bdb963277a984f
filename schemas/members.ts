import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { Body, OneOf, PublishedAs, Resource, Timestamp } from './shapes.ts'
import { EMAIL_LENGTH, MEMBER_STATUSES, RoleName, ROLES } from './users.ts'

/** The user id of a member, in a path. */
export const MemberInPath = Type.String({ maxLength: 128, examples: ['17'] })
export const MemberParams = Type.Object({ organization: OrganizationInPath, member: MemberInPath })

/** A role in a request; `admin` is accepted as `administrator`. */
export const RoleInBody = PublishedAs(OneOf([...ROLES, 'admin']), RoleName)

const MemberAttributes = Type.Object({
  user_id: Type.Integer(),
  email: Type.String(),
  name: Type.String(),
  role: RoleName,
  status: OneOf(MEMBER_STATUSES),
  joined_at: Timestamp
}, { title: 'MemberAttributes' })
export type MemberAttributes = Static<typeof MemberAttributes>

const example = {
  user_id: 17,
  email: 'rosa@nimbus.example',
  name: 'Rosa Quill',
  role: 'developer',
  status: 'active',
  joined_at: '2026-03-01T12:00:00.000Z'
}
export const Member = Resource('members', MemberAttributes, { title: 'Member', id: '17', example })

export const InviteMemberBody = Body({
  email: Type.String({ maxLength: EMAIL_LENGTH, examples: ['rosa@nimbus.example'] }),
  role: RoleInBody
}, { title: 'InviteMemberBody', examples: [{ email: 'rosa@nimbus.example', role: 'developer' }] })

export const UpdateMemberBody = Body({
  role: RoleInBody
}, { title: 'UpdateMemberBody', examples: [{ role: 'administrator' }] })

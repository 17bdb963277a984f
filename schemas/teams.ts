import { Type, type Static } from '@sinclair/typebox'
import { MemberInPath, RoleInBody } from './members.ts'
import { OrganizationInPath } from './organizations.ts'
import {
  Answer, Body, CREATE_NAMED, Described, Example, NullableDescription, OneOf, ProjectInPath, PublishedAs, Resource,
  Slug, Timestamp, Ulid, UPDATE_NAMED
} from './shapes.ts'
import { Inherited, InheritedWarning, NamesOfRestrictions } from './tokens.ts'
import { ProjectRole, RoleName } from './users.ts'

/** Limits of teams. Listing the projects of a member reads at most `teamsOfMember` × `projects` roles. */
export const TEAM_LIMITS = { teams: 1000, members: 500, projects: 100, teamsOfMember: 20, restrictions: 50 } as const

/** A team in a path: its ULID in either letter case, or its slug. */
const TeamInPath = Type.String({ maxLength: 128, examples: ['platform'] })
export const TeamParams = Type.Object({ organization: OrganizationInPath, team: TeamInPath })
export const TeamMemberParams = Type.Object({
  organization: OrganizationInPath, team: TeamInPath, member: MemberInPath
})
export const TeamProjectParams = Type.Object({
  organization: OrganizationInPath, team: TeamInPath, project: ProjectInPath
})

// What a caller sets and may change: in a new team, in a change, and in responses.
const settable = {
  created: CREATE_NAMED,
  changed: UPDATE_NAMED,
  shown: { name: Example(Type.String(), 'Platform'), slug: Example(Slug, 'platform'), description: NullableDescription }
}

const attributes = {
  ...settable.shown,
  member_count: Example(Type.Integer(), 0),
  project_count: Example(Type.Integer(), 0),
  created_at: Timestamp,
  updated_at: Timestamp
}
const ID = '01JQZ6VF2H5K8M1P4R7T0W3Y6A'

export const Team = Resource('teams', { title: 'Team', id: ID }, attributes)
export type TeamAttributes = Static<typeof Team.attributes>

const TeamMember = Type.Object({
  id: Type.String(), name: Type.String(), email: Type.String()
}, { title: 'TeamMember' })

const EXCEPT_STATUSES = ['production'] as const
export type ExceptStatus = (typeof EXCEPT_STATUSES)[number]

/**
 * A restriction of a team's role to a part of the project: a target, an environment, or environments by status.
 * `project` can only be the project of the path.
 */
export const TeamRestriction = Type.Object({
  project: Type.Optional(Described(Slug, { description: 'the project of the path, which need not be sent' })),
  target: Type.Optional(Slug),
  environment: Type.Optional(Slug),
  except_status: Type.Optional(OneOf(EXCEPT_STATUSES, {
    description: 'only environments whose `status` is another one at the moment. The status decides, not the name: a ' +
      'new environment is `development` unless the request sets `status`. A change of the status opens or hides the ' +
      'whole history of the environment'
  })),
  inherited: Inherited
}, {
  title: 'TeamRestriction',
  additionalProperties: false,
  examples: [{ target: 'backend', environment: 'live' }, { except_status: 'production' }]
})
export type TeamRestriction = Static<typeof TeamRestriction>

const TeamProject = Type.Object({
  id: Ulid,
  slug: Slug,
  name: Type.String(),
  role: RoleName,
  restrictions: Type.Array(TeamRestriction, { description: 'empty: the whole project' }),
  restriction_names: NamesOfRestrictions
}, { title: 'TeamProject' })
export type TeamMember = Static<typeof TeamMember>
export type TeamProject = Static<typeof TeamProject>

/** A team with its members and its roles in projects. */
const WholeTeam = Resource('teams', { title: 'WholeTeam', id: ID }, {
  ...attributes,
  name: Example(Type.String(), 'Platform and tools'),
  member_count: Example(Type.Integer(), 1),
  project_count: Example(Type.Integer(), 1),
  members: Example(Type.Array(TeamMember), [{ id: '17', name: 'Rosa Quill', email: 'rosa@nimbus.example' }]),
  projects: Example(Type.Array(TeamProject), [
    {
      id: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H',
      slug: 'orbit',
      name: 'Orbit',
      role: 'developer',
      restrictions: [],
      restriction_names: []
    }
  ])
})

export const WholeTeamAnswer = Answer('WholeTeamAnswer', { data: WholeTeam.item, warning: InheritedWarning })

export const CreateTeamBody = Body(settable.created, { title: 'CreateTeamBody', examples: [{ name: 'Platform' }] })
export const UpdateTeamBody = Body(settable.changed, {
  title: 'UpdateTeamBody', examples: [{ name: 'Platform and tools' }]
})

/** The body is empty, because the path identifies the member. */
export const AddTeamMemberBody = Body({}, { title: 'AddTeamMemberBody', examples: [{}] })

export const SetTeamProjectBody = Body({
  role: Type.Optional(PublishedAs(RoleInBody, ProjectRole)),
  restrictions: Type.Optional(Type.Array(TeamRestriction, {
    maxItems: TEAM_LIMITS.restrictions,
    description:
      'the role is limited to these parts of the project; empty: the whole project; default: unchanged, as is ' +
      '`inherited` of a part that had it. Has no effect ' +
      'for members whose role in the organization allows the same in the whole project'
  }))
}, { title: 'SetTeamProjectBody', examples: [{ role: 'developer' }] })
export type SetTeamProjectBody = Static<typeof SetTeamProjectBody>

import { Type, type Static } from '@sinclair/typebox'
import { AbilityName } from './scopes.ts'
import { Answer, Example, Page, PagedMeta, Slug, Ulid } from './shapes.ts'
import { TeamRestriction } from './teams.ts'
import { NamesOfRestrictions } from './tokens.ts'
import { RoleName } from './users.ts'

/** Maximum number of projects on a page. It is small, because a project can have a thousand restrictions. */
export const MAX_ACCESS_PAGE = 25

export const MemberAccessQuery = Type.Object({
  page: Type.Optional(Page),
  per_page: Type.Optional(Type.Integer({
    minimum: 1,
    maximum: MAX_ACCESS_PAGE,
    default: MAX_ACCESS_PAGE,
    description: 'projects per page',
    'x-named': 'per_page_of_access'
  }))
})

const Restrictions = Type.Array(TeamRestriction, { description: 'empty: the whole project' })
const Scopes = (description: string) => Type.Array(AbilityName, { description })
const RESTRICTIONS = {
  restrictions: [{ project: 'orbit', target: 'backend', environment: 'live' }],
  restriction_names: [{ project: 'Orbit', target: 'Backend services', environment: 'Live' }]
}

const TeamOfAccess = Type.Object({
  id: Ulid,
  slug: Slug,
  name: Type.String(),
  role: RoleName,
  restrictions: Restrictions,
  restriction_names: NamesOfRestrictions
}, { title: 'TeamOfAccess', description: 'a team of the member with a role in the project' })

const Right = Type.Object({
  scopes: Scopes('scopes that the member has in these parts of the project'),
  restrictions: Restrictions,
  restriction_names: NamesOfRestrictions
}, { title: 'RightInProject' })

const ProjectAccess = Type.Object({
  id: Ulid,
  slug: Slug,
  name: Type.String(),
  teams: Type.Array(TeamOfAccess),
  rights: Type.Array(Right, {
    description: 'by the role in the organization and all teams together; each scope is in at most one entry'
  })
}, { title: 'ProjectAccess' })
export type ProjectAccess = Static<typeof ProjectAccess>

const Access = Type.Object({
  type: Type.Literal('member-access'),
  id: Example(Type.String(), '17'),
  attributes: Type.Object({
    role: Example(RoleName, 'billing_manager'),
    scopes: Example(
      Scopes('scopes by the role in the organization: in the organization, all its projects and all their levels'),
      ['organization:read', 'billing:read', 'billing:write']
    ),
    projects: Example(Type.Array(ProjectAccess, {
      description: 'projects in which teams give the member a role, sorted by slug; in others, only `scopes` apply'
    }), [{
      id: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H',
      slug: 'orbit',
      name: 'Orbit',
      teams: [{
        id: '01JQZ6VF2H5K8M1P4R7T0W3Y6A',
        slug: 'platform',
        name: 'Platform and tools',
        role: 'api_user',
        ...RESTRICTIONS
      }],
      rights: [{
        scopes: ['secret:read', 'project:read', 'target:read', 'environment:read'], ...RESTRICTIONS
      }]
    }])
  }, { title: 'MemberAccessAttributes' })
}, { title: 'MemberAccess' })

export const MemberAccessAnswer = Answer('MemberAccessAnswer', {
  data: Access,
  meta: PagedMeta
})

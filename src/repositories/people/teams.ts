import { and, asc, eq, getTableColumns, isNull, or, sql } from 'drizzle-orm'
import {
  TEAM_LIMITS, type TeamAttributes, type TeamMember, type TeamProject
} from '../../../schemas/teams.ts'
import { ROLES, type Role } from '../../../schemas/users.ts'
import {
  authenticatedColumns, shownOf, type AuthenticatedRow, type NewRow, type RowChanges
} from '../../db/rows/authenticated.ts'
import { changedAt } from '../../db/columns.ts'
import {
  isAuthentic, isOneOf, isOneOfOrganization, macOf, preparedSql, requireAuthentic, tampered, updateAuthentic,
  type Authenticated, type Db, type Value
} from '../../db/database.ts'
import { andOwn, engineOf, type OfOrganization } from '../../db/postgres/engine.ts'
import { joined } from '../../db/rows/joined.ts'
import { matching, queryRows } from '../../db/rows/query.ts'
import { namesNoLevel } from '../../db/rows/slices.ts'
import { findSlugs, idsOf } from '../../db/rows/slugs.ts'
import { members, projects, team_members, team_projects, teams, users } from '../../db/tables.ts'
import { andSelected, named, orderOf, patternsOf, perSelection } from '../../db/rows/selection.ts'
import { readPage, type NamedPageRequest } from '../../rules/pagination.ts'
import { keepInherited, shownRestrictions, type SentSlice } from '../../rules/slices.ts'

export type TeamRow = TeamAttributes & { id: string }
type Found = Readonly<Record<string, unknown>> & Pick<TeamRow, 'member_count' | 'project_count'>

const TEAM = joined('t', getTableColumns(teams))
const columns = sql`${TEAM.selected},
  (SELECT count(*)::int FROM team_members m WHERE m.organization_id = t.organization_id AND m.team_id = t.id${
    andOwn(sql`m.organization_id`)}) AS member_count,
  (SELECT count(*)::int FROM team_projects p WHERE p.organization_id = t.organization_id AND p.team_id = t.id${
    andOwn(sql`p.organization_id`)}) AS project_count`

function toTeam (db: Db, row: Found): TeamRow | undefined {
  const team = TEAM.read(row)!
  const { member_count, project_count } = row
  return isAuthentic(db, 'teams', team) ? { ...shownOf('teams', team), member_count, project_count } : undefined
}

const ofOrganization = ($: Value) => sql`FROM teams t WHERE t.organization_id = ${$('organization_id')}::char(26)`

const byName = preparedSql<Found, { organization_id: string, id: string, slug: string }>('team', ($) => sql`
  SELECT ${columns} ${ofOrganization($)} AND (t.id = ${$('id')}::text OR t.slug = ${$('slug')})
  ORDER BY t.id = ${$('id')}::text DESC LIMIT 1`)

/** A team by its id (in upper or lower case) or its slug. The id takes precedence over an equal slug. */
export async function findTeam (db: Db, organization_id: string, idOrSlug: string): Promise<TeamRow | undefined> {
  const [row] = await byName(db, { organization_id, id: idOrSlug.toUpperCase(), slug: idOrSlug })
  return row && toTeam(db, row)
}

const T = named(sql`t`)
const listed = perSelection((selection) =>
  preparedSql<Found & { total: number }, Record<string, unknown>>('teams', ($) => {
    const rows = sql`${ofOrganization($)}${andSelected(selection, T, $)}`
    return sql`
      SELECT ${columns}, (SELECT count(*)::int ${rows}) AS total
      ${rows} ORDER BY ${orderOf(selection, T, sql`t.slug`)} LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`
  }))

/** A page of teams, by default sorted by slug. Omits rows with a wrong MAC, but counts them in `total`. */
export async function listTeams (
  db: Db, organization_id: string, page: NamedPageRequest
): Promise<{ rows: TeamRow[], total: number }> {
  const values = { organization_id, ...patternsOf(page) }
  const { rows, total } = await readPage(page, (part) => listed(page)(db, { ...values, ...part }))
  return { rows: rows.flatMap((row) => toTeam(db, row) ?? []), total }
}

/** The names of teams by id. Omits teams with a wrong MAC. */
export async function findTeamNames (
  db: Db, organizationId: string, ids: readonly string[]
): Promise<Map<string, { id: string, slug: string, name: string }>> {
  if (ids.length === 0) return new Map()
  const rows = await db.select({ row: authenticatedColumns('teams'), name: teams.name }).from(teams)
    .where(isOneOfOrganization(teams, organizationId, ids))
  return new Map(rows.filter(({ row }) => isAuthentic(db, 'teams', row))
    .map(({ row: { id, slug }, name }) => [id, { id, slug, name }]))
}

/** The members of a team, oldest account first. Omits members whose membership or account has a wrong MAC. */
export async function listTeamMembers (db: Db, organizationId: string, teamId: string): Promise<TeamMember[]> {
  const rows = await db.select({ row: authenticatedColumns('team_members'), user: authenticatedColumns('users') })
    .from(team_members).innerJoin(users, eq(users.id, team_members.user_id))
    .where(matching(team_members, { organization_id: organizationId, team_id: teamId }))
    .orderBy(asc(team_members.user_id)).limit(TEAM_LIMITS.members)
  return rows.filter(({ row, user }) =>
    isAuthentic(db, 'team_members', row) && isAuthentic(db, 'users', user, { organization_id: organizationId }))
    .map(({ user: { id, name, email } }) => ({ id: String(id), name, email }))
}

/** The projects of a team, by slug. Omits roles with a wrong MAC. Throws TamperedRow if a project has a wrong MAC. */
export async function listTeamProjects (db: Db, organizationId: string, teamId: string): Promise<TeamProject[]> {
  const { organization_id, project_id } = team_projects
  const rows = await db
    .select({ row: authenticatedColumns('team_projects'), project: authenticatedColumns('projects'), name: projects.name })
    .from(team_projects).innerJoin(projects, matching(projects, { organization_id, id: project_id }))
    .where(matching(team_projects, { organization_id: organizationId, team_id: teamId }))
    .orderBy(asc(projects.slug)).limit(TEAM_LIMITS.projects)
  const genuine = rows.filter(({ row }) => isAuthentic(db, 'team_projects', row))
  const slices = genuine.flatMap(({ row }) => row.slices ?? [])
  const slugs = await findSlugs(db, organizationId, idsOf(slices))
  return genuine.map(({ row: { role, slices }, project, name }) => {
    requireAuthentic(db, 'projects', project)
    return { id: project.id, slug: project.slug, name, role, ...shownRestrictions(slices, slugs) }
  })
}

// The maximum number of rows to read for each role, because teams may have many projects.
const MAX_OF_ROLE = 100

type RoleFound = Authenticated<'team_projects'> & Record<'in_team_mac' | 'member_mac', Buffer | null> &
  { member_role: Role }

// Each subquery has its own LIMIT, so that PostgreSQL ends each index scan early.
const byRole = preparedSql<RoleFound, OfOrganization & { user_id: number, roles: string }>('roles in teams', ($) => sql`
  SELECT found.* FROM jsonb_array_elements_text(${$('roles')}::jsonb) AS requested (role) CROSS JOIN LATERAL (
    SELECT members.organization_id, members.role AS member_role, members.mac AS member_mac,
      its.team_id, its.mac AS in_team_mac, held.project_id, held.role, held.slices, held.mac
    FROM members CROSS JOIN LATERAL (
      SELECT m.team_id, m.mac FROM team_members m
      WHERE m.organization_id = members.organization_id AND m.user_id = members.user_id${andOwn(sql`m.organization_id`)}
      LIMIT ${sql.raw(String(TEAM_LIMITS.teamsOfMember))}
    ) its CROSS JOIN LATERAL (
      SELECT p.project_id, p.role, p.slices, p.mac FROM team_projects p
      WHERE p.organization_id = members.organization_id AND p.team_id = its.team_id AND p.role = requested.role${
        andOwn(sql`p.organization_id`)}
      LIMIT ${sql.raw(String(MAX_OF_ROLE))}
    ) held
    WHERE members.user_id = ${$('user_id')}::bigint AND members.status = 'active'${andOwn(sql`members.organization_id`)}
    LIMIT ${sql.raw(String(MAX_OF_ROLE))}
  ) found`)

/** The distinct roles that teams give a person in projects, in all organizations with an active membership. */
export async function listRolesInTeams (db: Db, user_id: number): Promise<Role[]> {
  // On Citus, runs a query for each organization, because Citus executes a LATERAL list on one machine only.
  const organizations = engineOf(db) === 'citus'
    ? await db.select({ organization_id: members.organization_id }).from(members)
      .where(matching(members, { user_id, status: 'active' })).limit(1000)
    : [{ organization_id: '' }]
  const rows = (await Promise.all(organizations.map(({ organization_id }) =>
    byRole(db, { organization_id, user_id, roles: JSON.stringify(ROLES) })))).flat()
  const own = rows.filter(({ member_role, member_mac, in_team_mac, ...held }) => {
    const { organization_id, team_id } = held
    const member = { organization_id, user_id, role: member_role, status: 'active' as const, mac: member_mac }
    return isAuthentic(db, 'members', member) && isAuthentic(db, 'team_projects', held) &&
      isAuthentic(db, 'team_members', { organization_id, team_id, user_id, mac: in_team_mac })
  })
  return [...new Set(own.map(({ role }) => role))]
}

/**
 * A team with room that was made for a place, and whose only role is this one; the oldest of several. Omits teams whose
 * MAC is wrong.
 */
export async function findTeamOfPlace (
  db: Db, { organization_id, project_id, role, slices }: Omit<AuthenticatedRow<'team_projects'>, 'team_id'>
): Promise<string | undefined> {
  const { organization_id: of, team_id, slices: stored } = team_projects
  const own = andOwn(sql`other.organization_id`, organization_id)
  const rows = await db
    .select({ team: authenticatedColumns('teams'), row: authenticatedColumns('team_projects') })
    .from(team_projects).innerJoin(teams, matching(teams, { organization_id: of, id: team_id }))
    .where(and(
      matching(team_projects, { organization_id, project_id, role }), eq(teams.is_of_place, true),
      slices === null ? isNull(stored) : sql`${stored} = ${JSON.stringify(slices)}::jsonb`,
      sql`NOT EXISTS (SELECT FROM team_projects other WHERE other.organization_id = ${of}
        AND other.team_id = ${team_id} AND other.project_id <> ${project_id}${own})`,
      sql`(SELECT count(*) FROM team_members other WHERE other.organization_id = ${of}
        AND other.team_id = ${team_id}${own}) < ${sql.raw(String(TEAM_LIMITS.members))}`
    )).orderBy(asc(team_id)).limit(TEAM_LIMITS.teams)
  return rows.find(({ team, row }) => isAuthentic(db, 'teams', team) && isAuthentic(db, 'team_projects', row))?.team.id
}

export async function countTeams (db: Db, organizationId: string): Promise<number> {
  return db.$count(teams, eq(teams.organization_id, organizationId))
}

/** Throws a unique violation if the slug is taken. */
export async function createTeam (db: Db, team: NewRow<'teams'>): Promise<void> {
  await db.insert(teams).values({ ...team, mac: macOf(db, 'teams', team) })
}

// Ends the use of a team for invitations to its place: a person changed the team, so it may get more roles later.
const NO_LONGER_OF_PLACE = { is_of_place: null }

/** Changes the name, the slug or the description of a team. Invitations to its place no longer use the team. */
export async function updateTeam (
  db: Db, organizationId: string, id: string, changes: Omit<RowChanges<'teams'>, 'id' | 'organization_id'>
): Promise<void> {
  const its = matching(teams, { organization_id: organizationId, id })
  const updated_at = changedAt(teams.updated_at, changes)
  await updateAuthentic(db, 'teams', its, { ...changes, ...NO_LONGER_OF_PLACE, updated_at }) ?? tampered()
}

/** Ends the use of a team for invitations to its place, if an invitation made the team. */
export async function endUseForPlace (db: Db, organizationId: string, id: string): Promise<void> {
  const its = and(matching(teams, { organization_id: organizationId, id }), eq(teams.is_of_place, true))!
  await updateAuthentic(db, 'teams', its, NO_LONGER_OF_PLACE)
}

/** Deletes members first, because requests that a team's role authorizes lock `team_members` before `team_projects`. */
export async function deleteTeam (db: Db, organizationId: string, id: string): Promise<void> {
  const its = { organization_id: organizationId, team_id: id }
  await db.delete(team_members).where(matching(team_members, its))
  await db.delete(team_projects).where(matching(team_projects, its))
  await db.delete(teams).where(matching(teams, { organization_id: organizationId, id }))
}

interface InTeam { organization_id: string, team_id: string, user_id: number }
const itsMember = ({ organization_id, team_id, user_id }: InTeam) =>
  matching(team_members, { organization_id, team_id, user_id })

/** The number of members of a team, the number of the person's teams, and whether the person is in this team. */
export async function countTeamMembers (
  db: Db, { organization_id, team_id, user_id }: InTeam
): Promise<{ members: number, teams: number, is_in: boolean }> {
  const isOfTeam = eq(team_members.team_id, team_id)
  const isOfPerson = eq(team_members.user_id, user_id)
  const [row] = await db.select({
    members: sql<number>`count(*) FILTER (WHERE ${isOfTeam})::int`,
    teams: sql<number>`count(*) FILTER (WHERE ${isOfPerson})::int`,
    is_in: sql<boolean>`coalesce(bool_or(${isOfTeam} AND ${isOfPerson}), false)`
  }).from(team_members).where(and(eq(team_members.organization_id, organization_id), or(isOfTeam, isOfPerson)))
  return row!
}

export async function createTeamMember (db: Db, row: InTeam): Promise<void> {
  await db.insert(team_members).values({ ...row, mac: macOf(db, 'team_members', row) })
}

/** Returns false if the person is not in the team. */
export async function deleteTeamMember (db: Db, row: InTeam): Promise<boolean> {
  return (await db.delete(team_members).where(itsMember(row)).returning({ id: team_members.user_id })).length === 1
}

interface TeamProjectKey { organization_id: string, team_id: string, project_id: string }
const itsProject = ({ organization_id, team_id, project_id }: TeamProjectKey) =>
  matching(team_projects, { organization_id, team_id, project_id })

/**
 * Sets the role of a team in a project, and the restrictions of the role (empty: none). Undefined fields stay
 * unchanged, also `inherited` of a restriction to the same part; the default for a new row is the role `member` without
 * restrictions. Returns the row; undefined if the team has reached its limit of projects.
 */
export async function setTeamProject (
  db: Db, key: TeamProjectKey, { role, sent }: { role: Role | undefined, sent: readonly SentSlice[] | undefined }
): Promise<AuthenticatedRow<'team_projects'> | undefined> {
  const [present] = await db.select(authenticatedColumns('team_projects')).from(team_projects).where(itsProject(key))
  if (present !== undefined) requireAuthentic(db, 'team_projects', present)
  const kept = sent && keepInherited(sent, present?.slices ?? [])
  const slices = kept?.length === 0 ? null : kept
  if (present !== undefined) {
    const changes = { ...(role !== undefined && { role }), ...(slices !== undefined && { slices }) }
    return await updateAuthentic(db, 'team_projects', itsProject(key), changes) ?? tampered()
  }
  const { organization_id, team_id } = key
  const held = await db.$count(team_projects, matching(team_projects, { organization_id, team_id }))
  if (held >= TEAM_LIMITS.projects) return undefined
  const row = { ...key, role: role ?? 'member' as const, slices: slices ?? null }
  await db.insert(team_projects).values({ ...row, mac: macOf(db, 'team_projects', row) })
  return row
}

/** The teams whose role in a project is restricted to deleted levels only. Such a role gives no access. */
export async function listTeamsOfNothing (db: Db, organizationId: string, projectId: string): Promise<string[]> {
  const rows = await queryRows<{ team_id: string }>(db, sql`
    SELECT t.team_id FROM team_projects t WHERE t.organization_id = ${organizationId} AND t.project_id = ${projectId}
      AND ${namesNoLevel(organizationId)}
    ORDER BY t.team_id LIMIT ${TEAM_LIMITS.teams}`)
  return rows.map(({ team_id }) => team_id)
}

/** Deletes the roles of these teams in a project. */
export async function deleteTeamsOfProject (
  db: Db, organizationId: string, projectId: string, teamIds: readonly string[]
): Promise<void> {
  if (teamIds.length === 0) return
  await db.delete(team_projects).where(and(
    matching(team_projects, { organization_id: organizationId, project_id: projectId }),
    isOneOf(team_projects.team_id, teamIds)
  ))
}

/** Returns false if the team has no role in the project. */
export async function deleteTeamProject (db: Db, row: TeamProjectKey): Promise<boolean> {
  const gone = await db.delete(team_projects).where(itsProject(row)).returning({ id: team_projects.project_id })
  return gone.length === 1
}

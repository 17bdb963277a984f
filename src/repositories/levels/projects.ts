import { and, eq, getTableColumns, sql, type SQL } from 'drizzle-orm'
import type { ListedProject, ProjectAttributes } from '../../../schemas/projects.ts'
import type { Selection } from '../../../schemas/shapes.ts'
import { TEAM_LIMITS } from '../../../schemas/teams.ts'
import type { Role } from '../../../schemas/users.ts'
import { authenticatedColumns, shownOf } from '../../db/rows/authenticated.ts'
import { waitUnlessCounter } from '../../db/rows/counter.ts'
import { changedAt } from '../../db/columns.ts'
import {
  isAuthentic, isOneOf, lookUp, macOf, preparedSql, requireAuthentic, updateAuthentic, tampered, type Authenticated,
  type Db, type Raw, type Value
} from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { makeId } from '../../db/rows/ids.ts'
import { LAST_CHANGE, lastChangeOf, lastVersionOfProject, type LastChangeFound } from '../../db/rows/last-version.ts'
import { joined, namesIn } from '../../db/rows/joined.ts'
import { matching } from '../../db/rows/query.ts'
import { findTeamRoles } from '../../db/callers/memberships.ts'
import {
  encryption_keys, environments, project_counts, projects, targets, team_members, teams
} from '../../db/tables.ts'
import { andSelected, isFiltered, named, orderOf, patternsOf, perSelection } from '../../db/rows/selection.ts'
import { isDefault, readPage, type NamedPageRequest, type PageRequest } from '../../rules/pagination.ts'
import type { KeyState, NewKey } from '../keys/encryption-keys.ts'

const oneOf = (organizationId: string, id: string) => matching(projects, { organization_id: organizationId, id })

const AUTHENTIC = joined('p', authenticatedColumns('projects'))

const columns = sql`${namesIn('p', getTableColumns(projects))}, c.secret_count, c.environment_count, c.target_count`
const itsCounts =
  sql`CROSS JOIN ${lookUp('c', project_counts, sql`organization_id = p.organization_id AND project_id = p.id`)}`
const listedColumns = sql`${columns}, ${LAST_CHANGE}`
const itsLast = sql`${itsCounts} ${lastVersionOfProject}`

type Row = Raw<typeof projects.$inferSelect> &
  Pick<ProjectAttributes, 'secret_count' | 'environment_count' | 'target_count'>

// Not `joined`, and without object spread or Object.assign, which would take most of the time for a row.
function toAttributes (db: Db, row: Row): ProjectAttributes {
  requireAuthentic(db, 'projects', row)
  const shown = shownOf('projects', row as never) as ProjectAttributes
  shown.created_at = new Date(row.created_at)
  shown.updated_at = new Date(row.updated_at)
  shown.ulid = row.id
  shown.secret_count = row.secret_count
  shown.environment_count = row.environment_count
  shown.target_count = row.target_count
  shown.has_secrets = row.secret_count > 0
  return shown
}

type ListedRow = Row & LastChangeFound

function toListed (db: Db, row: ListedRow): ListedProject {
  const attributes = toAttributes(db, row) as ListedProject
  attributes.last_change = lastChangeOf(row)
  return attributes
}

const byId = preparedSql<Row, { organization_id: string, id: string }>('project', ($) => sql`
  SELECT ${columns} FROM projects p ${itsCounts}
  WHERE p.organization_id = ${$('organization_id')}::char(26) AND p.id = ${$('id')}::char(26)`)

/** Throws TamperedRow. */
export async function findProject (db: Db, organizationId: string, id: string): Promise<ProjectAttributes | undefined> {
  const [row] = await byId(db, { organization_id: organizationId, id })
  return row && toAttributes(db, row)
}

const P = named(sql`p`)
const orderBy = (selection: Selection) => sql`ORDER BY ${orderOf(selection, P, sql`p.slug`)}`

// Selects the page in a subquery, and then looks up the counts and newest versions of the page's rows. For a plain
// join, the planner would assume an organization of average size, and read the counts of all projects instead of the
// page.
const listed = (name: string, which: (value: Value) => SQL) => perSelection((selection) => {
  const order = orderBy(selection)
  return preparedSql<ListedRow & { total: number }, Record<string, unknown>>(name, ($) => {
    const rows = sql`FROM projects p
      WHERE p.organization_id = ${$('organization_id')}::char(26)${which($)}${andSelected(selection, P, $)}`
    return sql`
      SELECT (SELECT count(*)::int ${rows}) AS total, ${listedColumns}
      FROM (
        SELECT * ${rows} ${order} LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint
      ) p ${itsLast} ${order}`
  })
})
const isListed = ($: Value) =>
  sql` AND p.id IN (SELECT value::char(26) FROM jsonb_array_elements_text(${$('ids')}::jsonb))`
const all = listed('projects', () => sql``)
const some = listed('some_projects', isListed)

type RowOfTeams = ListedRow & Record<'member_mac' | 'role_mac', Buffer | null> & { total: number, team_id: string, role: Role }

// The ids of the projects in which teams of a member have a role, once for each such team. With `isWhole`, only roles
// without restrictions.
const held = ($: Value, isWhole = false) => sql`
  SELECT h.project_id FROM team_members m
  CROSS JOIN LATERAL (
    SELECT h.project_id FROM team_projects h WHERE h.organization_id = m.organization_id AND h.team_id = m.team_id${
      isWhole ? sql` AND h.slices IS NULL` : sql``}${andOwn(sql`h.organization_id`)}
    LIMIT ${sql.raw(String(TEAM_LIMITS.projects))}
  ) h
  WHERE m.organization_id = ${$('organization_id')}::char(26) AND m.user_id = ${$('user_id')}::bigint`

// One team of the member with a role in the whole project `p`.
const itsTeam = ($: Value) => sql`LATERAL (
  SELECT h.team_id, h.role, h.mac AS role_mac, m.mac AS member_mac FROM team_projects h
  CROSS JOIN ${lookUp('m', team_members,
    sql`organization_id = h.organization_id AND team_id = h.team_id AND user_id = ${$('user_id')}::bigint`)}
  WHERE h.organization_id = p.organization_id AND h.project_id = p.id AND h.slices IS NULL${
      andOwn(sql`h.organization_id`)}
  LIMIT 1) its`

const pageOf = ($: Value, selection: Selection) =>
  sql`${orderBy(selection)} LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`

const countHeld = (ids: SQL) => sql`SELECT count(DISTINCT held.project_id COLLATE "C")::int FROM (${ids}) held`

/** A page of the projects in which a team of the member has a role without restrictions, each with one such team. */
const listedByTeams = (
  name: string, page: (value: Value) => SQL, count: (value: Value) => SQL, selection: Selection = {}
) => preparedSql<RowOfTeams, Record<string, unknown>>(name, ($) => sql`
  SELECT (${count($)}) AS total, ${listedColumns}, p.team_id, p.role, p.role_mac, p.member_mac
  FROM (${page($)}) p ${itsLast} ${orderBy(selection)}`)

// Scans the organization's projects in slug order, which is fast for a page near the beginning. `MAX_SCANNED` bounds
// the scan, because the teams may have roles in only a few of many projects.
const MAX_SCANNED = 2_000
const nearOfTeams = listedByTeams('projects_of_teams_near', ($) => sql`
  SELECT p.*, its.* FROM (
    SELECT * FROM projects p WHERE p.organization_id = ${$('organization_id')}::char(26)
    ORDER BY p.slug LIMIT ${sql.raw(String(MAX_SCANNED))}
  ) p CROSS JOIN ${itsTeam($)} ${pageOf($, {})}`, ($) => countHeld(held($, true)))

const ofTeams = (name: string, which?: (value: Value) => SQL) => perSelection((selection) => {
  const ids = ($: Value) => sql`${held($, true)}${which?.($) ?? sql``}`
  const rows = ($: Value) => sql`FROM (SELECT DISTINCT held.project_id FROM (${ids($)}) held) held
    CROSS JOIN ${lookUp('p', projects,
      sql`organization_id = ${$('organization_id')}::char(26) AND id = held.project_id`)}
    WHERE true${andSelected(selection, P, $)}`
  return listedByTeams(name, ($) => sql`
    SELECT p.*, its.* FROM (SELECT p.* ${rows($)} ${pageOf($, selection)}) p CROSS JOIN ${itsTeam($)}`,
  ($) => isFiltered(selection) ? sql`SELECT count(*)::int ${rows($)}` : countHeld(ids($)), selection)
})
const allOfTeams = ofTeams('projects_of_teams')
const someOfTeams = ofTeams('some_projects_of_teams', ($) =>
  sql` AND h.project_id IN (SELECT value::char(26) FROM jsonb_array_elements_text(${$('ids')}::jsonb))`)

export interface ProjectQuery {
  organization_id: string
  /** Only these projects; null for all. */
  ids: readonly string[] | null
  /**
   * Only projects in which teams of this member have a role without restrictions (every role includes `project:read`);
   * null for all.
   */
  user_id: number | null
}

/**
 * A page of projects, by default sorted by slug. For a member, the service verifies the MACs of the team roles that
 * give access to a project. If no such role has a valid MAC, the page omits the project; `total` still counts the
 * project. Throws TamperedRow if the MAC of a project is wrong.
 */
export async function listProjects (
  db: Db, { organization_id, ids, user_id }: ProjectQuery, page: NamedPageRequest
): Promise<{ rows: ListedProject[], total: number }> {
  const values = { organization_id, ids: ids && JSON.stringify(ids), ...patternsOf(page) }
  if (user_id !== null) return listByTeams(db, { ...values, user_id }, page)
  const { rows, total } = await readPage(page, (part) => (ids === null ? all : some)(page)(db, { ...values, ...part }))
  return { rows: rows.map((row) => toListed(db, row)), total }
}

async function listByTeams (
  db: Db, values: ReturnType<typeof patternsOf> & { organization_id: string, ids: string | null, user_id: number },
  page: NamedPageRequest
) {
  const { rows, total } = await readPage(page, async (part) => {
    if (values.ids !== null) return someOfTeams(page)(db, { ...values, ...part })
    if (!isDefault(page)) return allOfTeams(page)(db, { ...values, ...part })
    const near = await nearOfTeams(db, { ...values, ...part })
    // A page with fewer rows than `limit` is complete only at the end of the list. Any other short page reaches beyond
    // the bounded scan, so run the query without the bound.
    const isWhole = near.length === part.limit || near[0]?.total === part.offset + near.length
    return isWhole ? near : allOfTeams(page)(db, { ...values, ...part })
  })
  const { organization_id, user_id } = values
  // Rows with the same team have the same membership, so each membership is verified once.
  const macs = new Map(rows.map(({ team_id, member_mac }) => [team_id, member_mac]))
  const teamsOfMember = new Set([...macs].filter(([team_id, mac]) =>
    isAuthentic(db, 'team_members', { organization_id, team_id, user_id, mac })).map(([team_id]) => team_id))
  const hasRole = (row: RowOfTeams) => teamsOfMember.has(row.team_id) && isAuthentic(db, 'team_projects', {
    organization_id, team_id: row.team_id, project_id: row.id, role: row.role, slices: null, mac: row.role_mac
  })
  // If the MACs of the selected team are wrong, another team may still have a role in the project.
  const doubtful = rows.filter((row) => !hasRole(row))
  const others = await Promise.all(doubtful.map(({ id }) => findTeamRoles(db, { organization_id, user_id, id })))
  const hidden = new Set(doubtful.filter((_, i) => others[i]!.every(({ slices }) => slices !== null)))
  return { rows: rows.filter((row) => !hidden.has(row)).map((row) => toListed(db, row)), total }
}

/** A range of projects in the order of their ids, from the id `from` on. `isInclusive`: includes this project. */
export interface ProjectRange { from: string, isInclusive: boolean }

const inRange = ($: Value, id: SQL) =>
  sql`${id} >= ${$('from')}::char(26) AND (${$('is_inclusive')}::boolean OR ${id} <> ${$('from')}::char(26))`
const fromId = (name: string, which: (value: Value) => SQL) =>
  preparedSql<Record<string, unknown>, Record<string, unknown>>(name, ($) => sql`
    SELECT ${AUTHENTIC.selected} FROM projects p
    WHERE p.organization_id = ${$('organization_id')}::char(26) AND ${inRange($, sql`p.id`)}${which($)}
    ORDER BY p.id LIMIT ${$('limit')}::int`)
const allFromId = fromId('projects_from', () => sql``)
const someFromId = fromId('some_projects_from', isListed)

/** The first projects of a range, sorted by id. With `ids`, only projects with these ids. Throws TamperedRow. */
export async function listProjectsFrom (
  db: Db, organization_id: string, ids: readonly string[] | null, { from, isInclusive }: ProjectRange, limit: number
): Promise<Authenticated<'projects'>[]> {
  const values = { organization_id, from, is_inclusive: isInclusive, limit }
  const rows = await (ids === null ? allFromId(db, values) : someFromId(db, { ...values, ids: JSON.stringify(ids) }))
  return rows.map((row) => authenticProject(db, row))
}

function authenticProject (db: Db, row: Readonly<Record<string, unknown>>): Authenticated<'projects'> {
  const project = AUTHENTIC.read(row)!
  requireAuthentic(db, 'projects', project)
  return project
}

type HeldRow = Readonly<Record<string, unknown>> & { name: string, total: number }

const heldBySlug = preparedSql<HeldRow, Record<string, unknown>>('projects_held', ($) => sql`
  SELECT (${countHeld(held($))}) AS total, ${AUTHENTIC.selected}, p.name
  FROM (SELECT DISTINCT held.project_id FROM (${held($)}) held) held
  CROSS JOIN ${lookUp('p', projects, sql`organization_id = ${$('organization_id')}::char(26) AND id = held.project_id`)}
  ORDER BY p.slug LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`)

/**
 * A page of the projects in which teams of a member have a role, sorted by slug. Does not verify the MACs of the teams:
 * use `findTeamRoles` for the roles. Throws TamperedRow if the MAC of a project is wrong.
 */
export async function listProjectsOfTeams (
  db: Db, member: { organization_id: string, user_id: number }, page: PageRequest
): Promise<{ rows: { id: string, slug: string, name: string }[], total: number }> {
  const { rows, total } = await readPage(page, (part) => heldBySlug(db, { ...member, ...part }))
  const shown = rows.map(({ name, ...row }) => {
    const { id, slug } = authenticProject(db, row)
    return { id, slug, name }
  })
  return { rows: shown, total }
}

const idsOfTeams = preparedSql<{ project_id: string }, Record<string, unknown>>('project_ids_of_teams', ($) => sql`
  SELECT DISTINCT held.project_id FROM (${held($)}) held WHERE ${inRange($, sql`held.project_id`)}
  ORDER BY held.project_id LIMIT ${$('limit')}::int`)

/**
 * The ids of the first projects of a range in which teams of a member have a role. Does not verify MACs: use
 * `findTeamRoles` for the roles.
 */
export async function listProjectIdsOfTeams (
  db: Db, member: { organization_id: string, user_id: number }, { from, isInclusive }: ProjectRange, limit: number
): Promise<string[]> {
  const rows = await idsOfTeams(db, { ...member, from, is_inclusive: isInclusive, limit })
  return rows.map(({ project_id }) => project_id)
}

export type NewProject = Omit<typeof projects.$inferSelect, 'key_version' | 'created_at' | 'updated_at' | 'mac'>

/** Creates a project with its first, active key. Throws a unique violation if the slug is taken. */
export async function createProject (db: Db, project: NewProject, key: NewKey): Promise<void> {
  const row = { ...project, key_version: key.version }
  await db.insert(projects).values({ ...row, mac: macOf(db, 'projects', row) })
  await db.insert(project_counts).values({ organization_id: project.organization_id, project_id: project.id })
  await db.insert(encryption_keys).overridingSystemValue().values({
    id: makeId(), ...key, organization_id: project.organization_id, project_id: project.id, is_active: true
  })
}

export type ProjectChanges = Partial<Pick<NewProject,
  'name' | 'slug' | 'description' | 'secret_format' | 'history_policy'>>

export async function updateProject (
  db: Db, organizationId: string, id: string, changes: ProjectChanges
): Promise<void> {
  const updated_at = changedAt(projects.updated_at, changes)
  await updateAuthentic(db, 'projects', oneOf(organizationId, id), { ...changes, updated_at }) ?? tampered()
}

/**
 * Locks the row of a project until the end of the transaction. `update` excludes writes below the project and other
 * changes of the project. `share` excludes long operations on the project. A long operation locks the project before
 * the counter row of the organization. So a transaction that has already locked the counter row does not wait for the
 * project but is retried, to avoid a deadlock (`waitUnlessCounter`).
 */
export async function lockProject (
  db: Db, organizationId: string, { id }: { id: string }, strength: 'update' | 'share' = 'update'
): Promise<KeyState | undefined> {
  const [row] = await db.select(authenticatedColumns('projects')).from(projects).where(oneOf(organizationId, id))
    .for(strength === 'update' ? 'no key update' : 'share', waitUnlessCounter(db))
  if (row !== undefined) requireAuthentic(db, 'projects', row)
  return row
}

/** Deletes a project with everything below it. Before, the caller removes the histories (`removeHistories`). */
export async function deleteProject (db: Db, organizationId: string, id: string): Promise<void> {
  await db.delete(projects).where(oneOf(organizationId, id))
}

/**
 * Returns those of `slugs` that are already taken: by environments of the target, by targets of the project, or by
 * teams or projects of the organization.
 */
export async function listTakenSlugs (
  db: Db, {
    organization_id, ...among
  }: { organization_id: string, project_id?: string, target_id?: string, team?: true }, slugs: readonly string[]
): Promise<Set<string>> {
  const [table, parent] = among.target_id !== undefined
    ? [environments, eq(environments.target_id, among.target_id)] as const
    : among.project_id !== undefined
      ? [targets, eq(targets.project_id, among.project_id)] as const
      : [among.team ? teams : projects, undefined] as const
  const rows = await db.select({ slug: table.slug })
    .from(table).where(and(eq(table.organization_id, organization_id), parent, isOneOf(table.slug, slugs)))
  return new Set(rows.map((row) => row.slug))
}

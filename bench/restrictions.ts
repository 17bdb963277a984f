/**
 * Restriction rows: the latency of requests with a restricted API token, or of a member with roles through teams,
 * compared with a caller without restrictions.
 */
import type { Sql } from 'postgres'
import { ulid } from 'ulidx'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import { mintApiToken, storedToken } from '../src/crypto/bearer.ts'
import { macOf, type Db } from '../src/db/database.ts'
import { team_projects } from '../src/db/tables.ts'
import { createTeam, createTeamMember } from '../src/repositories/people/teams.ts'
import { createToken, type NewToken } from '../src/repositories/people/tokens.ts'
import type { Slice } from '../src/rules/slices.ts'
import { SCOPE_NAMES } from '../schemas/scopes.ts'
import { TEAM_LIMITS } from '../schemas/teams.ts'
import { issuePair, makePerson } from '../test/helpers/people.ts'
import { makeProject } from './bulk.ts'
import type { Bench } from './keys.ts'
import type { Request } from './load.ts'
import { measurePairs, type Pair } from './pairs.ts'
import { startService } from './processes.ts'
import { DOCUMENT, getting, makeTenants, posting, several, type Tenant } from './seed.ts'

// The number of the tenant; other rows use other tenants.
const TENANT = 2001
const TEAMS = TEAM_LIMITS.teamsOfMember
const PROJECTS_OF_TEAM = TEAM_LIMITS.projects
const TOKENS = 900
const RESTRICTIONS = 100
const PAGE = 25

const SMALL = { targets: 1, environments: 1, versions: 1 }
const WIDE = { slug: 'wide', targets: 100, environments: 1, versions: 1 }
const DEEP = { slug: 'deep', targets: 1, environments: 100, versions: 1 }
const LONG = { slug: 'long', targets: 0, environments: 0, versions: 1000 }
// Concurrent transactions; each uses a PostgreSQL process.
const AT_ONCE = 2

export async function measureRestrictions (bench: Bench): Promise<void> {
  const { dir, env } = bench
  if (!ROWS.some(bench.wanted)) return
  const [tenant] = await makeTenants(env, 1, TENANT) as [Tenant]
  const callers = await fill(env, bench.sql, tenant)
  await bench.sql`VACUUM ANALYZE`
  const service = await startService(dir, env)
  try {
    await measurePairs(bench, service.url, rowsOf(tenant, callers))
  } finally {
    await service.stop()
  }
}

/** The tokens that requests are sent with. */
interface Callers {
  /** API tokens that are restricted to environments (`narrow`) and to projects. */
  narrow: string
  projects: string
  /** The access token of a member with a role in the organization. */
  byRole: string
  /** The access token and an API token of a member with roles through teams. */
  byTeams: string
  tokenOfByTeams: string
}

const LISTS_OF_TOKENS = { [`${TOKENS + 1} API tokens`]: '', [`${PAGE} of ${TOKENS + 1} API tokens`]: `?per_page=${PAGE}` }
const LISTS_OF_LEVELS = {
  [`${RESTRICTIONS} projects`]: `projects?per_page=${RESTRICTIONS}`,
  [`${PAGE} of ${RESTRICTIONS} projects`]: `projects?per_page=${PAGE}`,
  '100 targets': 'wide/targets',
  '100 environments': 'deep/target-0/environments'
}
const VERSIONS = '25 of 1,000 versions'
const restricted = (what: string) => `restricted to ${RESTRICTIONS} places: list of ${what}: p50`

const PATH_OF_READ = '/team-0-0/target-0/env-0/secrets'
const LEVEL = { project: 'team-0-0', target: 'target-0', environment: 'env-0' }
const BY_TEAMS: Record<string, (token: string, base: string) => Request> = {
  'read by a path': (token, base) => getting(token, base + PATH_OF_READ),
  'read by a body': (token, base) => posting(token, `${base}/secrets/retrieve`, LEVEL),
  'store 4 KiB': (token, base) => posting(token, `${base}/secrets/store`, { ...LEVEL, plaintext: DOCUMENT }),
  'list of versions': (token, base) => posting(token, `${base}/secrets/versions`, { project: 'long', level: 'project' }),
  'list of targets': (token, base) => getting(token, `${base}/wide/targets?per_page=${PAGE}`),
  [`list of ${PAGE} projects`]: (token, base) => getting(token, `${base}/projects?per_page=${PAGE}`),
  'list of 1,000 projects': (token, base) => getting(token, `${base}/projects`)
}
const TOKEN_READ = 'read by a path with an API token'
const byTeams = (what: string) => `member of ${TEAMS} teams with ${PROJECTS_OF_TEAM} projects each: ${what}: p50`

const ROWS = [
  ...Object.keys(LISTS_OF_TOKENS).map(restricted), ...Object.keys(LISTS_OF_LEVELS).map(restricted),
  restricted(VERSIONS), ...Object.keys(BY_TEAMS).map(byTeams), byTeams(TOKEN_READ)
]

function rowsOf ({ id, token }: Tenant, callers: Callers): Pair[] {
  const base = `/api/v1/${id}`
  const unrestricted = 'the same, unrestricted'
  const versions = { project: 'long', level: 'project', page: 1 }
  const path = `/api/v1/organizations/${id}/api-keys`
  const member = 'a member by a role in the organization'
  return [
    ...Object.entries(LISTS_OF_TOKENS).map(([what, query]) => ({
      row: restricted(what),
      reference: unrestricted,
      most: 10,
      own: getting(callers.narrow, path + query),
      other: getting(token, path + query)
    })),
    ...Object.entries(LISTS_OF_LEVELS).map(([what, list]) => ({
      row: restricted(what),
      reference: unrestricted,
      most: 10,
      own: getting(callers.projects, `${base}/${list}`),
      other: getting(token, `${base}/${list}`)
    })),
    {
      row: restricted(VERSIONS),
      reference: unrestricted,
      most: 10,
      own: posting(callers.projects, `${base}/secrets/versions`, versions),
      other: posting(token, `${base}/secrets/versions`, versions)
    },
    ...Object.entries(BY_TEAMS).map(([what, request]) => ({
      row: byTeams(what),
      reference: member,
      most: 2,
      own: request(callers.byTeams, base),
      other: request(callers.byRole, base)
    })),
    {
      row: byTeams(TOKEN_READ),
      reference: member,
      most: 2,
      own: getting(callers.tokenOfByTeams, base + PATH_OF_READ),
      other: getting(callers.byRole, base + PATH_OF_READ)
    }
  ]
}

/**
 * Fills one organization with the projects of all teams, and with a project that has many targets, one that has many
 * environments and one with a long history; with API tokens that have the maximum number of restrictions; and with two
 * members.
 */
async function fill (env: Record<string, string>, sql: Sql, { id }: Tenant): Promise<Callers> {
  const opened = await open(loadConfig(env), { creates: true })
  const { database } = opened
  const { db } = database
  try {
    const [organization] = await sql<{ id: string, storage_key: Buffer }[]>`
      SELECT id, storage_key FROM organizations WHERE id = ${id}`
    const slugOf = (i: number) => `team-${Math.floor(i / PROJECTS_OF_TEAM)}-${i % PROJECTS_OF_TEAM}`
    const shapes = [
      ...Array.from({ length: TEAMS * PROJECTS_OF_TEAM - 3 }, (_, i) => ({ slug: slugOf(i), ...SMALL })),
      WIDE, DEEP, LONG
    ]
    await several(shapes.length, (i) => makeProject(opened, organization!, shapes[i]!), AT_ONCE)
    const projects = await sql<{ id: string, target_id: string, environment_id: string }[]>`
      SELECT DISTINCT ON (p.id) p.id, e.target_id, e.id AS environment_id FROM projects p
      LEFT JOIN environments e ON e.organization_id = p.organization_id AND e.project_id = p.id
      WHERE p.organization_id = ${id} ORDER BY p.id`
    const slices = projects.slice(0, RESTRICTIONS).map(({ id: project_id, target_id, environment_id }) =>
      ({ project_id, target_id, environment_id }))
    for (let i = 0; i < TOKENS; i++) {
      // Each token has the restrictions in another order.
      await makeToken(db, id, [...slices.slice(i % RESTRICTIONS), ...slices.slice(0, i % RESTRICTIONS)])
    }
    const people = {
      byTeams: await makePerson(opened, { [id]: 'billing_manager' }), byRole: await makePerson(opened, { [id]: 'member' })
    }
    for (let i = 0; i < TEAMS; i++) {
      await makeTeam(db, id, people.byTeams.id, projects.slice(i * PROJECTS_OF_TEAM, (i + 1) * PROJECTS_OF_TEAM))
    }
    const [byTeams, byRole] = [
      await issuePair(opened, people.byTeams, SCOPE_NAMES), await issuePair(opened, people.byRole, SCOPE_NAMES)
    ]
    return {
      narrow: await makeToken(db, id, slices),
      projects: await makeToken(db, id, projects.slice(-RESTRICTIONS).map(({ id: project_id }) =>
        ({ project_id, target_id: null, environment_id: null }))),
      byRole: byRole.access,
      byTeams: byTeams.access,
      tokenOfByTeams: await makeToken(db, id, [], {
        type: 'user',
        id: people.byTeams.id,
        name: 'By teams',
        person: { user_id: people.byTeams.id, grant_id: byTeams.grant, has_second_factor: false }
      })
    }
  } finally {
    await database.close()
  }
}

async function makeToken (
  db: Db, organization_id: string, slices: Slice[], made_by?: NewToken['made_by']
): Promise<string> {
  const token = mintApiToken(organization_id)
  await createToken(db, {
    organization_id,
    name: 'Benchmark',
    ...storedToken(token),
    abilities: made_by === undefined ? ['*'] : SCOPE_NAMES,
    slices,
    expires_at: null,
    ...made_by !== undefined && { made_by }
  })
  return token
}

async function makeTeam (
  db: Db, organization_id: string, user_id: number, projects: readonly { id: string }[]
): Promise<void> {
  const team_id = ulid()
  await createTeam(db, {
    id: team_id, organization_id, name: 'Team', slug: team_id.toLowerCase(), description: null, is_of_place: null
  })
  await createTeamMember(db, { organization_id, team_id, user_id })
  await db.insert(team_projects).values(projects.map(({ id: project_id }) => {
    const row = { organization_id, team_id, project_id, role: 'member' as const, slices: null }
    return { ...row, mac: macOf(db, 'team_projects', row) }
  }))
}

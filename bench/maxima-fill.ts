/** Fills one organization up to the limits of its lists, names and documents (for `bench/maxima.ts`). */
import { ulid } from 'ulidx'
import type { Sql } from 'postgres'
import { EVENTS } from '../schemas/events.ts'
import { MAX_OPEN_INVITATIONS } from '../schemas/invitations.ts'
import { SCOPE_NAMES } from '../schemas/scopes.ts'
import { NAME_LENGTH } from '../schemas/shapes.ts'
import { TEAM_LIMITS } from '../schemas/teams.ts'
import { CLAIM_LIMITS, MAX_WORKLOADS } from '../schemas/workloads.ts'
import type { Opened } from '../src/commands/common/open.ts'
import { mintApiToken, storedToken } from '../src/crypto/bearer.ts'
import { macOf, type Db } from '../src/db/database.ts'
import { makeId } from '../src/db/rows/ids.ts'
import type { AuthenticatedTable, NewRow } from '../src/db/rows/authenticated.ts'
import * as tables from '../src/db/tables.ts'
import { createToken } from '../src/repositories/people/tokens.ts'
import type { Slice } from '../src/rules/slices.ts'
import { issuePair, makePerson } from '../test/helpers/people.ts'
import { makeProject } from './bulk.ts'
import { DOCUMENTS, FORMATS, OTHER_DOCUMENTS } from './documents.ts'
import type { Tenant } from './seed.ts'

/** The kind, and the project, of more levels than a dry run looks at. It is for restores to a moment only. */
export const MANY = 'many'

export type Sizes = Record<'levels' | 'versions' | 'projects' | 'tokens' | 'members' | 'events', number>
export interface Filled {
  /** Tokens of callers. */
  callers: Record<'owner' | 'levels' | 'places' | 'member', string>
  /** Path parameters, and those of a project for each kind of document. */
  ids: Record<string, string>
  kinds: Record<string, Record<string, string>>
}

export const longName = (text: string | number) => String(text).padStart(NAME_LENGTH, 'ж')
const longSlug = (text: string) => text.padEnd(64, 'x')
const times = <T>(count: number, make: (i: number) => T) => Array.from({ length: count }, (_, i) => make(i))
/** A part of a list that starts again at its end. */
const windowOf = <T>(list: readonly T[], from: number, count: number) =>
  times(Math.min(count, list.length), (i) => list[(from + i) % list.length]!)

async function insert<N extends AuthenticatedTable> (db: Db, name: N, rows: NewRow<N>[]): Promise<void> {
  for (let from = 0; from < rows.length; from += 100) {
    await db.insert(tables[name] as typeof tables.api_tokens).overridingSystemValue()
      .values(rows.slice(from, from + 100).map((row) => ({ ...row, mac: macOf(db, name, row) })) as never)
  }
}

export async function fillMaxima (opened: Opened, sql: Sql, { id, token }: Tenant, sizes: Sizes): Promise<Filled> {
  const { db } = opened.database
  const [organization] = await sql<{ id: string, storage_key: Buffer }[]>`
    SELECT id, storage_key FROM organizations WHERE id = ${id}`
  const contents = { ...DOCUMENTS, ...OTHER_DOCUMENTS }
  const kinds: Filled['kinds'] = {}
  for (const [kind, documentOf] of Object.entries(contents)) {
    const slug = `docs-${kind}`
    await makeProject(opened, organization!, {
      slug,
      targets: 1,
      environments: sizes.levels - 2,
      versions: 2,
      nameOf: longName,
      documentOf,
      format: FORMATS[kind] ?? 'env',
      // Another document than that of the last version, so that a restore and a comparison of times find changes.
      earlierOf: (level) => documentOf(level + 1)
    })
    kinds[kind] = { project: slug, target: 'target-0', environment: 'env-0' }
  }
  await makeProject(opened, organization!, {
    slug: 'history', targets: 0, environments: 0, versions: sizes.versions, nameOf: longName, documentOf: DOCUMENTS.value
  })
  kinds.history = { project: 'history' }
  await makeProject(opened, organization!, { slug: MANY, targets: 150, environments: 200, versions: 2, earlierOf: () => 'A=1' })
  kinds[MANY] = { project: MANY }
  for (const shape of [{ slug: 'wide', targets: 1_000, environments: 1 }, { slug: 'tall', targets: 1, environments: 1_000 }]) {
    await makeProject(opened, organization!, { ...shape, versions: 0, nameOf: longName })
  }
  const { restrictions } = TEAM_LIMITS
  for (let i = 0; i < sizes.projects; i++) {
    await makeProject(opened, organization!, {
      slug: longSlug(`project-${i}-`), targets: 1, environments: restrictions, versions: 0, nameOf: longName
    })
  }
  // No MAC covers a description.
  for (const table of ['projects', 'targets', 'environments']) {
    await sql`UPDATE ${sql(table)} SET description = repeat('ж', 2000) WHERE organization_id = ${id}`
  }
  // The two versions of each document get different times, so that a dry run and a comparison of times open both.
  for (const table of ['projects', 'targets', 'environments', 'secrets']) {
    await sql`UPDATE ${sql(table)} SET created_at = now() - interval '2 days' WHERE organization_id = ${id}`
  }
  await sql`UPDATE secret_versions SET created_at = now() - interval '1 day'
    WHERE organization_id = ${id} AND revision = 1`
  for (const slugs of Object.values(kinds)) {
    const [version] = await sql<{ id: string }[]>`
      SELECT v.id FROM secret_versions v JOIN secrets s ON s.organization_id = v.organization_id AND s.history_id = v.history_id
      JOIN projects p ON p.organization_id = s.organization_id AND p.id = s.project_id
      WHERE p.organization_id = ${id} AND p.slug = ${slugs.project!} ORDER BY v.id LIMIT 1`
    slugs.version = version!.id
    slugs.moment = new Date(Date.now() - 12 * 3_600_000).toISOString()
    slugs.now = new Date().toISOString()
  }
  const environments = await sql<{ project_id: string, target_id: string, environment_id: string, slug: string }[]>`
    SELECT e.project_id, e.target_id, e.id AS environment_id, p.slug FROM environments e
    JOIN projects p ON p.organization_id = e.organization_id AND p.id = e.project_id
    WHERE e.organization_id = ${id} ORDER BY p.id, e.id`
  const slices = environments.map(({ slug: _, ...slice }): Slice => slice)
  const byProject: Slice[][] = []
  for (const slice of slices) {
    if (byProject.at(-1)?.[0]!.project_id === slice.project_id) byProject.at(-1)!.push(slice)
    else byProject.push([slice])
  }
  const people = await makePeople(db, id, sizes)
  const member = await makePerson(opened, { [id]: 'billing_manager' })
  const teams = await makeTeams(db, id, people, member.id, byProject)
  const tokens = times(sizes.tokens, (i) => ({
    ...ofToken(id), name: longName(i), slices: windowOf(slices, i * 37, 100)
  }))
  await insert(db, 'api_tokens', tokens)
  await insert(db, 'invitations', times(MAX_OPEN_INVITATIONS, (i) =>
    invitationOf(id, `invited-${i}@${'x'.repeat(200)}.example`, slices[i]!)))
  await insert(db, 'workload_rules', times(MAX_WORKLOADS, (i) => ruleOf(id, i, windowOf(slices, i * 41, 100))))
  const crowd = await makeCrowd(sql, times(1_000, () => ulid()))
  await insert(db, 'members', crowd.slice(0, 900).map((organization_id) =>
    ({ organization_id, user_id: member.id, role: 'member', status: 'active' as const })))
  await insert(db, 'invitations', crowd.slice(900).map((organization_id) => invitationOf(organization_id, member.email, null)))
  await makeEvents(sql, id, slices[0]!, sizes.events)
  const restricted = async (some: Slice[]) => {
    const made = mintApiToken(id)
    await createToken(db, {
      organization_id: id, name: longName('own'), ...storedToken(made), abilities: ['*'], slices: some, expires_at: null
    })
    return made
  }
  const ofJson = environments.filter(({ slug }) => slug === 'docs-json').slice(0, 100).map(({ slug: _, ...slice }) => slice)
  const ids: Record<string, string> = {
    organization: id,
    ...kinds.json!,
    member: String(member.id),
    team: teams[0]!,
    id: String(tokens[0]!.id),
    ...Object.fromEntries(await Promise.all(([['workload', 'workload_rules'], ['invitation', 'invitations']] as const)
      .map(async ([name, table]) => {
        const [row] = await sql`SELECT id FROM ${sql(table)} WHERE organization_id = ${id} LIMIT 1`
        return [name, String(row!.id)]
      })))
  }
  return {
    ids,
    kinds,
    callers: {
      owner: token,
      levels: await restricted(ofJson),
      places: await restricted(byProject.slice(0, 100).map(([slice]) => slice!)),
      member: (await issuePair(opened, member, SCOPE_NAMES)).access
    }
  }
}

const NO_CREATOR = { created_by_type: null, created_by_id: null, created_by_name: null }

const ofToken = (organization_id: string) => ({
  id: makeId(),
  organization_id,
  description: 'ж'.repeat(500),
  ...storedToken(mintApiToken(organization_id)),
  abilities: [...SCOPE_NAMES],
  expires_at: null,
  ...NO_CREATOR,
  user_id: null,
  grant_id: null,
  announced_end: null
})

const invitationOf = (organization_id: string, email: string, place: object | null) => ({
  organization_id,
  id: ulid(),
  email,
  email_normalized: email,
  role: 'guest' as const,
  invited_by_type: null,
  invited_by_id: null,
  invited_by_name: null,
  token_hash: null,
  expires_at: new Date(Date.now() + 86_400_000),
  place: place as never,
  place_role: place === null ? null : 'member' as const
})

const ruleOf = (organization_id: string, i: number, slices: Slice[]) => ({
  organization_id,
  id: makeId(),
  name: longName(i),
  description: 'ж'.repeat(2_000),
  enabled: true,
  preset: null,
  issuer: 'https://issuer.example',
  jwks: { keys: times(20, (n) => ({ kty: 'RSA', kid: `${n}`, n: 'x'.repeat(1_400), e: 'AQAB' })) },
  audience: 'https://secrets.example',
  claims: Object.fromEntries(times(CLAIM_LIMITS.claims, (n) =>
    [`claim-${n}`, times(CLAIM_LIMITS.values, (value) => `${value}-xxxxxxxxx`)])),
  scopes: [...SCOPE_NAMES],
  slices: slices as never,
  lifetime: 900,
  single_use: false,
  max_assertion_age: 3_600,
  revision: makeId(),
  ...NO_CREATOR,
  user_id: null
})

async function makePeople (db: Db, organization_id: string, { members }: Sizes): Promise<number[]> {
  const ids = times(members, () => makeId())
  await insert(db, 'users', ids.map((id, i) => {
    const email = `${i}-${'x'.repeat(40)}@${'y'.repeat(60)}.${'z'.repeat(60)}.example`
    return {
      id,
      email,
      email_normalized: email,
      name: longName(i),
      password_hash: null,
      is_verified: true,
      disabled_at: null,
      second_factor_id: null
    }
  }))
  await insert(db, 'members', ids.map((user_id) =>
    ({ organization_id, user_id, role: 'member', status: 'active' as const })))
  return ids
}

/** Teams with the most members, roles and restrictions: those of `member`, and others, as many as a page lists. */
async function makeTeams (
  db: Db, organization_id: string, people: number[], member: number, byProject: Slice[][]
): Promise<string[]> {
  const { teamsOfMember, members, projects, restrictions, teams } = TEAM_LIMITS
  const ids = times(teams, () => ulid())
  await insert(db, 'teams', ids.map((id, i) => ({
    id, organization_id, name: longName(i), slug: longSlug(`team-${i}-`), description: 'ж'.repeat(2_000), is_of_place: null
  })))
  for (const [i, team_id] of ids.slice(0, teamsOfMember + 5).entries()) {
    const its = windowOf(people, i * 31, members - 1)
    await insert(db, 'team_members', [...its, ...i < teamsOfMember ? [member] : []].map((user_id) =>
      ({ organization_id, team_id, user_id })))
    await insert(db, 'team_projects', windowOf(byProject, i * projects, projects).map((slices) => ({
      organization_id, team_id, project_id: slices[0]!.project_id, role: 'member', slices: windowOf(slices, i, restrictions)
    })))
  }
  return ids
}

/** Other organizations. */
async function makeCrowd (sql: Sql, ids: string[]): Promise<string[]> {
  await sql`INSERT INTO organizations (id, slug, storage_key)
    SELECT id, 'crowd-' || lower(id), ''::bytea FROM unnest(${ids}::text[]) AS made (id)`
  await sql`INSERT INTO organization_counters (organization_id, name, plan)
    SELECT id, lpad(id, ${NAME_LENGTH}, 'ж'), 'self-hosted' FROM unnest(${ids}::text[]) AS made (id)`
  return ids
}

/** Events of the last 90 days, of all actions, of a few actors and resources, with long details. */
async function makeEvents (sql: Sql, id: string, level: Slice, events: number): Promise<void> {
  const [counter] = await sql<{ next: number }[]>`
    SELECT next_event::float8 AS next FROM organization_counters WHERE organization_id = ${id}`
  const details = {
    ...Object.fromEntries(Object.entries(level)),
    project: longSlug('p'),
    target: longSlug('t'),
    environment: longSlug('e'),
    name: longName('event')
  }
  await sql`
    INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type,
      resource_id, request_id, ip, user_agent, details, chain_kid, mac)
    SELECT ${id}, ${counter!.next}::bigint + n, now() - interval '90 days' + n * interval '90 days' / ${events}::int,
      (${[...EVENTS] as string[]}::text[])[1 + n % ${EVENTS.length}::int], 'user', 1, 'secret', 'FIRST', 'request-' || n,
      '192.0.2.1', repeat('u', 256), ${sql.json(details)}, 'none', 'none'::bytea
    FROM generate_series(0, ${events}::int - 1) n`
  await sql`UPDATE organization_counters SET next_event = next_event + ${events} WHERE organization_id = ${id}`
}

// runs: PostgreSQL
import { sql } from 'drizzle-orm'
import t from 'tap'
import { EVENTS } from '../../schemas/events.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { TEAM_LIMITS } from '../../schemas/teams.ts'
import { PROJECT_ROLES } from '../../schemas/users.ts'
import { transaction } from '../../src/changes/transaction.ts'
import type { Db } from '../../src/db/database.ts'
import { BY_INDEX } from '../../src/db/postgres/session.ts'
import type { KeyState } from '../../src/repositories/keys/encryption-keys.ts'
import { findWaiting, growHistories, moveVersions } from '../../src/repositories/secrets/re-encryption.ts'
import { listChangedLevels } from '../../src/repositories/secrets/point-in-time.ts'
import {
  deleteEmptyHistories, deleteLeftBehind, deleteRemovedVersions, deleteSecretsOfRemoved, deleteUnusableTokens,
  LEFT_BEHIND, purgeHistories
} from '../../src/repositories/operations/cleanup.ts'
import { findDocuments } from '../../src/repositories/secrets/rotations.ts'
import { listTeamsOfNothing } from '../../src/repositories/people/teams.ts'
import { deleteTokens, lockTokensOfNothing } from '../../src/repositories/people/tokens.ts'
import { deleteRulesOfNothing } from '../../src/repositories/people/workloads.ts'
import { makeLevel, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { beside } from '../helpers/statements.ts'
import { visitor } from '../helpers/visitor.ts'

// The parts of a service that one tenant can make large: deep pages of a long history, the history of keys, lists and
// counts. The tests count the rows that each node of a plan reads, and measure no time.

const VERSIONS = 5_000
const KEYS = 300
const PROJECTS = 1_000
const DOCUMENTS = 1_000
const PER_PAGE = 25
/** The maximum number of rows that a look-up may read for a page of 25. */
const FEW = 2 * PER_PAGE

const MODES = ['custom', 'generic'] as const
type Mode = typeof MODES[number]

interface Node {
  'Node Type': string
  'Relation Name'?: string
  'Actual Rows': number
  'Actual Loops': number
  'Rows Removed by Filter'?: number
  'Rows Removed by Index Recheck'?: number
  'Index Cond'?: string
  'Recheck Cond'?: string
  Plans?: Node[]
}
interface Tx { unsafe (text: string, params?: unknown[]): PromiseLike<unknown> }
interface Client extends Tx {
  unsafe (text: string, params?: unknown[], ...more: unknown[]): PromiseLike<unknown>
  begin<T> (work: (tx: Tx) => Promise<T>): Promise<T>
}
interface Read { table: string, how: string, rows: number }

// This file has its own database, because it fills tables, and counts the rows that statements read.
const service = await startIsolatedApp(t)
const { database } = service
// The tests read plans only on a server. The embedded database has one session, and the same statements.
const onServer = { skip: database.kind === 'embedded' && 'runs on PostgreSQL' }
const owner = await service.organization()
const other = await service.organization()
const statements: { client: Client, text: string, params: unknown[] }[] = []
for (const client of new Set([database.db, database.lists, database.pages, database.reads].map((db) =>
  (db as Db & { $client: Client }).$client))) {
  const { unsafe, begin } = client
  const recording = (unsafe: Client['unsafe']): Client['unsafe'] => (text, params = [], ...more) => {
    statements.push({ client, text, params })
    return unsafe(text, params, ...more)
  }
  client.unsafe = recording(unsafe)
  client.begin = (work) => begin((tx) => work({ ...tx, unsafe: recording(tx.unsafe) }))
}

const literal = (value: unknown) => value === null
  ? 'NULL'
  : `'${Buffer.isBuffer(value) ? `\\x${value.toString('hex')}` : String(value).replaceAll("'", "''")}'`

/**
 * The rows that each read of a request reads from each table. Runs each statement again on a similar connection, with
 * both kinds of plans: a plan for these values, and a generic plan. The server uses generic plans for prepared
 * statements from the sixth run on.
 */
async function readsOf (request: () => Promise<{ status: number, text: string }>): Promise<Record<Mode, Read[]>> {
  statements.length = 0
  const { status, text } = await request()
  if (status !== 200) throw new Error(text)
  const sent = statements.splice(0).filter(({ text }) =>
    /^\s*(select|with)\b/i.test(text) && !/\b(insert|update|delete)\b(?!')/i.test(text))
  const reads = { custom: [] as Read[], generic: [] as Read[] }
  const walk = (node: Node, mode: Mode) => {
    const each = node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0) +
      (node['Rows Removed by Index Recheck'] ?? 0)
    const table = node['Relation Name']
    if (table !== undefined) reads[mode].push({ table, how: node['Node Type'], rows: each * node['Actual Loops'] })
    for (const child of node.Plans ?? []) walk(child, mode)
  }
  for (const { client, text, params } of sent) {
    const values = params.length === 0 ? '' : `(${params.map(literal).join()})`
    for (const mode of MODES) {
      const plan = await beside(() => client.begin(async (tx) => {
        await tx.unsafe(`SET LOCAL plan_cache_mode = force_${mode}_plan`)
        await tx.unsafe(`PREPARE again AS ${text}`)
        const [row] = await tx.unsafe(
          `EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE again${values}`
        ) as [{ 'QUERY PLAN': [{ Plan: Node }] }]
        await tx.unsafe('DEALLOCATE again')
        return row['QUERY PLAN'][0].Plan
      }))
      walk(plan, mode)
    }
  }
  return reads
}

const most = (reads: Read[], which: (read: Read) => boolean) =>
  Math.max(0, ...reads.filter(which).map(({ rows }) => rows))
const of = (...tables: string[]) => ({ table }: Read) => tables.includes(table)
const inIndex = ({ table, how }: Read) => table === 'secret_versions' && how === 'Index Only Scan'
const list = (at: object, page: number, { call, organization } = owner) =>
  () => call('POST', `/${organization}/secrets/versions`, { ...at, page, per_page: PER_PAGE })

/**
 * All versions are of one revision. With `isWhole`, each version has its own revision, and versions of other levels are
 * between them.
 */
async function longHistory (caller: Caller, isWhole = false) {
  const at = await makeLevel(caller, { slug: 'long' })
  const { version } = (await caller.call(
    'POST', `/${caller.organization}/secrets/store`, { ...at, plaintext: 'A=1' }
  )).body.data
  const its = `organization_id = '${caller.organization}'`
  for (let from = 1; from < VERSIONS; from += 1_000) {
    await service.sql(`
      INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes)
      SELECT organization_id, id + ${isWhole ? '3 * n' : 'n'}, history_id, action, revision${isWhole ? ' + n' : ''},
        key_version, sealed, size_bytes
      FROM secret_versions, generate_series(${from}, ${Math.min(from + 999, VERSIONS - 1)}) n WHERE ${its} AND id = ${version}`)
  }
  await service.sql(`UPDATE secrets SET version_count = ${VERSIONS} WHERE ${its}`)
  if (isWhole) await service.write(`UPDATE secrets SET revision = ${VERSIONS} WHERE ${its}`)
  return at
}

t.test('a middle page of a long history is found by halving, or by an index alone if a version is missing', onServer, async (t) => {
  const caller = await service.organization()
  const at = await longHistory(caller, true)
  const pages = [6, VERSIONS / PER_PAGE / 2 + 7, VERSIONS / PER_PAGE - 5]
  await service.sql('VACUUM ANALYZE')
  for (const page of pages) {
    for (const [mode, reads] of Object.entries(await readsOf(list(at, page, caller)))) {
      const ofVersions = reads.filter(of('secret_versions')).reduce((sum, { rows }) => sum + rows, 0)
      t.ok(ofVersions >= PER_PAGE && ofVersions <= FEW, `page ${page}, ${mode} plan: ${ofVersions} versions`)
      t.ok(most(reads, () => true) <= FEW, `page ${page}, ${mode} plan: ${JSON.stringify(reads)}`)
    }
  }
  const { data } = (await list(at, 9, caller)()).body
  await caller.call('DELETE', `/${caller.organization}/secrets/versions/${data[0].id}`)
  for (const page of pages) {
    for (const [mode, reads] of Object.entries(await readsOf(list(at, page, caller)))) {
      t.ok(reads.some(inIndex), `page ${page}, ${mode} plan: walked to`)
      t.ok(most(reads, (read) => !inIndex(read)) <= FEW, `page ${page}, ${mode} plan: ${JSON.stringify(reads)}`)
    }
  }
})

t.test('a page of a long history reads its rows; with missing revisions also an index, from the nearer end', onServer, async (t) => {
  const at = await longHistory(owner)
  await longHistory(other)
  await service.sql('VACUUM ANALYZE')
  const last = VERSIONS / PER_PAGE
  for (const page of [1, 2, last / 2, last - 1, last]) {
    const fromNearer = Math.min(page, last - page + 1) * PER_PAGE
    const isNear = fromNearer <= FEW
    for (const [mode, reads] of Object.entries(await readsOf(list(at, page)))) {
      const what = `page ${page}, ${mode} plan`
      t.equal(
        most(reads, (read) => of('secret_versions')(read) && !inIndex(read)), isNear ? fromNearer : PER_PAGE,
        `${what}: rows of versions`
      )
      t.ok(most(reads, inIndex) <= (isNear ? 0 : fromNearer), `${what}: from the nearer end`)
      if (!isNear) t.ok(most(reads, inIndex) >= PER_PAGE, `${what}: found in an index`)
      t.ok(most(reads, (read) => !inIndex(read)) <= FEW, `${what}: ${JSON.stringify(reads)}`)
    }
  }
  for (const reads of Object.values(await readsOf(list(at, 1_000_000_000)))) {
    t.ok(
      most(reads, of('secret_versions')) <= 1,
      'beyond the end only the newest one, which tells whether the document was rolled back'
    )
    t.ok(most(reads, () => true) <= FEW)
  }
})

t.test('what a level held at a moment is found in a long history by a look-up for each half of it', onServer, async (t) => {
  const caller = await service.organization()
  const at = await longHistory(caller)
  const its = `organization_id = '${caller.organization}'`
  const [first] = await service.sql(
    `SELECT id, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS at FROM secret_versions WHERE ${its} ORDER BY id LIMIT 1`
  ) as [{ id: string, at: string }]
  await service.sql(`UPDATE secret_versions SET revision = 2 WHERE ${its} AND id > ${first.id}`)
  await service.sql(`UPDATE secrets SET updated_at = now() WHERE ${its}`)
  await service.sql(`UPDATE organization_counters SET next_version = ${VERSIONS + 1} WHERE ${its}`)
  await service.sql('VACUUM ANALYZE')
  const path = `/${caller.organization}/${at.project}/${at.target}/${at.environment}/secrets?at=${first.at}`
  t.equal((await caller.call('GET', path)).body.data.attributes.levels.environment.version, String(first.id))
  for (const [mode, reads] of Object.entries(await readsOf(() => caller.call('GET', path)))) {
    const ofVersions = reads.filter(of('secret_versions')).reduce((sum, { rows }) => sum + rows, 0)
    t.ok(ofVersions >= Math.log2(VERSIONS) / 2 && ofVersions <= FEW, `${mode} plan: ${ofVersions} versions`)
    t.ok(most(reads, () => true) <= FEW, `${mode} plan: ${JSON.stringify(reads)}`)
  }
})

t.test('a page of key history reads its own keys, and counting pending versions reads only pending ones', onServer, async (t) => {
  const at = await makeLevel(owner, { slug: 'keys' })
  await owner.call('POST', `/${owner.organization}/secrets/store`, { ...at, plaintext: 'A=1' })
  const inProject =
    `organization_id = '${owner.organization}' AND project_id = (SELECT id FROM projects WHERE organization_id = '${owner.organization}' AND slug = 'keys')`
  await service.sql(`UPDATE encryption_keys SET version = ${KEYS} WHERE ${inProject}`)
  await service.sql(`
    INSERT INTO encryption_keys (organization_id, project_id, version, managed, salt, iterations, is_active, rotated_at)
    SELECT organization_id, project_id, n, managed, salt, iterations, false, now() FROM encryption_keys, generate_series(1, ${KEYS - 1}) n WHERE ${inProject}`)
  await service.sql(
    `UPDATE secret_versions SET key_version = ${KEYS} WHERE history_id = (SELECT history_id FROM secrets WHERE ${inProject})`
  )
  await service.write(`UPDATE projects SET key_version = ${KEYS} WHERE slug = 'keys'`)
  // While versions of a project move to another key, the service counts the remaining versions.
  await service.sql(
    'INSERT INTO re_encryptions (organization_id, project_id, total) SELECT organization_id, id, 1 FROM projects WHERE slug = \'keys\''
  )
  await service.sql('VACUUM ANALYZE')
  // Counting takes one index look-up for each older key.
  const perKey = of('encryption_keys', 'secrets')
  for (const page of [1, KEYS / PER_PAGE / 2, KEYS / PER_PAGE, 1_000_000_000]) {
    const request = () =>
      owner.call('GET', `/${owner.organization}/keys/encryption-key/history?page=${page}&per_page=${PER_PAGE}`)
    for (const [mode, reads] of Object.entries(await readsOf(request))) {
      const what = `page ${page}, ${mode} plan`
      t.equal(most(reads, of('secret_versions')), 0, `${what}: nothing waits`)
      t.ok(most(reads, perKey) <= KEYS, what)
      t.ok(most(reads, (read) => !perKey(read)) <= FEW, `${what}: ${JSON.stringify(reads)}`)
      if (page < 1_000_000_000) {
        t.equal(reads.filter(({ table, rows }) =>
          table === 'encryption_keys' && rows === PER_PAGE).length, 1, `${what}: its own keys`)
      }
    }
  }
})

t.test('a list of projects counts nothing below them, and reads the counts of its page alone', onServer, async (t) => {
  const { organization, call } = await service.organization()
  await makeLevel({ organization, call } as Caller, { slug: 'first' })
  await service.write(`INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type,
      history_policy, key_version)
    SELECT lpad(n::text, 26, '0'), organization_id, name, 'p-' || n, secret_format, encryption_type, history_policy, key_version
    FROM projects, generate_series(1, ${PROJECTS - 1}) n WHERE organization_id = '${organization}'`)
  await service.sql(
    `INSERT INTO project_counts (organization_id, project_id, target_count) SELECT organization_id, id, 1 FROM projects WHERE organization_id = '${organization}' AND slug <> 'first'`
  )
  await service.sql('VACUUM ANALYZE')
  for (const query of ['', `?page=1&per_page=${PER_PAGE}`, `?page=40&per_page=${PER_PAGE}`]) {
    for (const [mode, reads] of Object.entries(await readsOf(() => call('GET', `/${organization}/projects${query}`)))) {
      t.ok(most(reads, of('projects')) >= PER_PAGE)
      if (query !== '') t.equal(most(reads, of('project_counts')), PER_PAGE, `${query}, ${mode} plan: those of its page`)
      t.equal(
        most(reads, of('targets', 'environments', 'secrets', 'secret_versions', 'histories')), 0,
        `${query}, ${mode} plan`
      )
      t.ok(most(reads, () => true) <= PROJECTS + 10, `${query}, ${mode} plan: ${JSON.stringify(reads)}`)
    }
  }
})

t.test('the filters of audit events by level read only the events of the level', onServer, async (t) => {
  const { organization, call } = await service.organization()
  const id = (kind: string, n: number | string) => `01JQZ6V9T4M8N2K7R5W3X1${kind}${String(n).padStart(3, '0')}`
  const idIn = (kind: string, n: string) => `'01JQZ6V9T4M8N2K7R5W3X1${kind}' || lpad((${n})::text, 3, '0')`
  const MANY = 12_000
  // A third of the events has no level, a third is of one project, and the others are of 100 projects, targets and
  // environments.
  for (let part = 0; part < MANY; part += 1_000) {
    await service.sql(`INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id,
        resource_type, resource_id, request_id, ip, user_agent, details, chain_kid, mac)
      SELECT '${organization}', 1000 + n, '2026-01-01T00:00:00Z'::timestamptz + n * interval '1 second',
        CASE WHEN n % 2 = 0 THEN 'secret.store' ELSE 'secret.decrypt' END, 'user', 1 + n % 3 / 2, 'secret', 'S' || p,
        null, null, null, CASE WHEN n % 3 = 0 THEN '{"n":1}'::jsonb ELSE jsonb_build_object('project_id', ${idIn('P', 'p')},
          'target_id', ${idIn('T', 'p')}, 'environment_id', ${idIn('E', 'p')}) END, 'none', 'none'::bytea
      FROM (SELECT n, CASE WHEN n % 3 = 1 THEN 0 ELSE 1 + n / 3 % 100 END AS p FROM generate_series(1 + ${part}, ${part + 1_000}) n) AS its`)
  }
  await service.sql('VACUUM ANALYZE')
  const [large, small] = [MANY / 3, MANY / 300]
  const queries: [query: string, matches: number][] = [
    [`project=${id('P', 0)}`, large], [`target=${id('T', 0)}`, large], [`environment=${id('E', 0)}`, large],
    [`project=${id('P', 7)}`, small], [`target=${id('T', 7)}`, small], [`environment=${id('E', 7)}`, small],
    [`project=${id('P', 0)}&action=secret.store`, large / 2], [`environment=${id('E', 0)}&action=member.delete`, 0],
    [`project=${id('P', 0)}&from=2099-01-01T00:00:00Z`, 0], [`environment=${id('E', 0)}&to=2025-01-01T00:00:00Z`, 0],
    [`project=${id('P', 0)}&actor=user:1`, large], [`project=${id('P', 0)}&actor=user:2`, 0],
    [`environment=${id('E', 0)}&actor=user:2&action=secret.store`, 0],
    [`project=${id('P', 7)}&target=${id('T', 7)}&environment=${id('E', 7)}`, small],
    [`environment=${id('E', 7)}&resource=secret:S7`, small], [`project=${id('P', 'ZZZ')}`, 0]
  ]
  for (const [query, matches] of queries) {
    const path = `/${organization}/audit-events?per_page=${PER_PAGE}&${query}`
    t.equal((await call('GET', path)).body.meta.total, matches, query)
    for (const [mode, reads] of Object.entries(await readsOf(() => call('GET', path)))) {
      t.ok(most(reads, of('audit_events')) <= matches + FEW, `${query}, ${mode} plan: ${JSON.stringify(reads)}`)
    }
  }
})

t.test('a deep page of filtered events reads the events up to the page, of all actions together', onServer, async (t) => {
  const { organization, call } = await service.organization()
  const project = '01JQZ6V9T4M8N2K7R5W3X1P000'
  const OF_ACTION = 100
  for (let part = 0; part < OF_ACTION; part += 10) {
    await service.sql(`INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id,
        resource_type, resource_id, request_id, ip, user_agent, details, chain_kid, mac)
      SELECT '${organization}', 1000 + n, '2026-01-01T00:00:00Z'::timestamptz + n * interval '1 second',
        ('{${EVENTS.join()}}'::text[])[1 + n % ${EVENTS.length}], 'user', 1, 'project', '${project}', null, null, null,
        '{"project_id": "${project}"}'::jsonb, 'none', 'none'::bytea
      FROM generate_series(1 + ${part * EVENTS.length}, ${(part + 10) * EVENTS.length}) n`)
  }
  await service.sql('VACUUM ANALYZE')
  const matches = EVENTS.length * OF_ACTION
  const page = OF_ACTION / PER_PAGE
  for (const query of ['actor=user:1', `resource=project:${project}`, `project=${project}`, `project=${project}&actor=user:1`]) {
    const path = `/${organization}/audit-events?per_page=${PER_PAGE}&page=${page}&${query}`
    const { data, meta } = (await call('GET', path)).body
    t.equal(meta.total, matches)
    t.strictSame(data.map(({ id }: { id: string }) => 1000 + matches - Number(id)),
      Array.from({ length: PER_PAGE }, (_, i) => (page - 1) * PER_PAGE + i), `${query}: in the order of time`)
    for (const [mode, reads] of Object.entries(await readsOf(() => call('GET', path)))) {
      const all = reads.filter(of('audit_events')).reduce((sum, { rows }) => sum + rows, 0)
      t.ok(all <= matches + EVENTS.length + page * PER_PAGE + FEW, `${query}, ${mode} plan: the count, and ${all - matches}`)
    }
  }
})

t.test('a level of an organization with very many, among small ones, reads its own documents alone', onServer, async (t) => {
  const { organization, call } = await service.organization()
  const at = await makeLevel({ organization, call } as Caller, { slug: 'among' })
  await call('POST', `/${organization}/secrets/store`, { ...at, plaintext: 'A=1' })
  const many = `FROM generate_series(1, ${DOCUMENTS}) n, projects p
    WHERE p.organization_id = '${organization}' AND p.slug = 'among'`
  const id = "lpad(n::text, 26, '0')"
  await service.sql(`
    INSERT INTO targets (organization_id, id, project_id, name, slug)
    SELECT organization_id, ${id}, p.id, 'T', 't-' || n ${many}`)
  await service.sql(`INSERT INTO histories (organization_id, id) SELECT organization_id, ${id} ${many}`)
  await service.sql(`
    INSERT INTO secrets (organization_id, id, project_id, target_id, level, level_id, revision, key_version, size_bytes,
      history_id)
    SELECT organization_id, ${id}, p.id, ${id}, 'target', ${id}, 1, p.key_version, 0, ${id} ${many}`)
  await service.sql('VACUUM ANALYZE')
  const path = `/${organization}/${at.project}/${at.target}/${at.environment}/secrets`
  for (const [mode, reads] of Object.entries(await readsOf(() => call('GET', path)))) {
    t.ok(reads.some(of('secrets')))
    // The versions of the project, of the target and of the environment.
    t.ok(most(reads, of('secrets')) <= 3, `${mode} plan: ${JSON.stringify(reads)}`)
    t.equal(most(reads, of('projects', 'targets', 'environments', 'encryption_keys')), 1, `${mode} plan`)
  }
})

t.test('the scopes through teams are found among very many projects by reading a few rows of each role', onServer, async (t) => {
  const [{ organization, call }, small] = [await service.organization(), await service.organization()]
  await makeLevel({ organization, call } as Caller, { slug: 'held' })
  const rosa = await makePerson(service, { [organization]: 'billing_manager', [small.organization]: 'member' })
  const id = (of: string, n: string) => `lpad('${of}' || ${n}, 26, '0')`
  const [teams, held] = [TEAM_LIMITS.teamsOfMember, TEAM_LIMITS.projects]
  await service.sql(`
    INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type, history_policy, key_version)
    SELECT ${id('P', 'n')}, organization_id, name, 'p-' || n, secret_format, encryption_type, history_policy, key_version
    FROM projects, generate_series(1, ${held}) n WHERE organization_id = '${organization}'`)
  await service.write(`INSERT INTO teams (id, organization_id, name, slug)
    SELECT ${id('T', 'n')}, '${organization}', 'Team', 'team-' || n FROM generate_series(1, ${teams}) n`)
  await service.write(`INSERT INTO team_members (organization_id, team_id, user_id)
    SELECT '${organization}', ${id('T', 'n')}, ${rosa.id} FROM generate_series(1, ${teams}) n`)
  await service.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role)
    SELECT '${organization}', ${id('T', 'n')}, ${id('P', 'p')}, CASE WHEN n = ${teams} THEN 'auditor' ELSE 'developer' END
    FROM generate_series(1, ${teams}) n, generate_series(1, ${held}) p`)
  await service.sql('VACUUM ANALYZE')
  const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
  const browser = visitor(address)
  await browser.signIn(await browser.open('/account'), rosa.email, rosa.password)
  const query = new URLSearchParams({
    response_type: 'code',
    client_id: 'dotenv-cli',
    redirect_uri: 'http://127.0.0.1:49152/callback',
    code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
    code_challenge_method: 'S256',
    scope: 'secret:read secret:write secret:history secret:purge'
  })
  let page = ''
  for (const [mode, reads] of Object.entries(await readsOf(async () => {
    const seen = await browser.open(`/oauth/authorize?${query}`)
    page = seen.text
    return seen
  }))) {
    const inTeams = of('team_projects')
    t.ok(reads.some(inTeams))
    // The query must not read all rows of the teams. The plan rounds the number of rows of repeated look-ups.
    t.ok(most(reads, inTeams) <= 4 * held, `${mode} plan: ${JSON.stringify(reads)}`)
    t.ok(most(reads, of('team_members')) <= (PROJECT_ROLES.length + 1) * teams, `${mode} plan: ${JSON.stringify(reads)}`)
  }
  const offered = [...page.matchAll(/name="scope" value="([^"]+)"/g)].map(([, scope]) => scope)
  t.strictSame(offered, ['secret:read', 'secret:write', 'secret:history'])
})

t.test('with teams of very many projects, a request about one project reads only the team rows for it', onServer, async (t) => {
  const [{ organization, call: ask }, large] = [await service.organization(), await service.organization()]
  const at = await makeLevel({ organization, call: ask } as Caller, { slug: 'p-0' })
  await ask('POST', `/${organization}/secrets/store`, { ...at, plaintext: 'A=1' })
  const version = (await ask('POST', `/${organization}/secrets/versions`, at)).body.data[0].id
  const rosa = await makePerson(service, { [organization]: 'billing_manager' })
  const stranger = await makePerson(service, { [large.organization]: 'member' })
  const [teams, held] = [TEAM_LIMITS.teamsOfMember, TEAM_LIMITS.projects]
  const id = (of: string, n: string) => `lpad('${of}' || ${n}, 26, '0')`
  // Another organization has the same number of teams, of the same size.
  for (const [of, person] of [[organization, rosa], [large.organization, stranger]] as const) {
    await service.write(`INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type,
        history_policy, key_version)
      SELECT ${id('P', 'n')}, '${of}', 'P', 'p-' || n, 'env', 'server', 'keep', 1
      FROM generate_series(1, ${teams * held - 1}) n`)
    await service.sql(`INSERT INTO project_counts (organization_id, project_id)
      SELECT organization_id, id FROM projects WHERE organization_id = '${of}' AND slug <> 'p-0'`)
    await service.write(`INSERT INTO teams (id, organization_id, name, slug)
      SELECT ${id('T', 'n')}, '${of}', 'Team', 'team-' || n FROM generate_series(1, ${teams}) n`)
    await service.write(`INSERT INTO team_members (organization_id, team_id, user_id)
      SELECT '${of}', ${id('T', 'n')}, ${person.id} FROM generate_series(1, ${teams}) n`)
    await service.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role)
      SELECT organization_id, ${id('T', `(row_number() OVER (ORDER BY slug) - 1) / ${held} + 1`)}, id, 'developer'
      FROM projects WHERE organization_id = '${of}'`)
  }
  await service.sql('VACUUM ANALYZE')
  const { access } = await issuePair(service, rosa, SCOPE_NAMES)
  const call = (method: string, path: string, body?: object) => () =>
    ask(method, `/${organization}/${path}`, body, { authorization: `Bearer ${access}` })
  const inTeams = of('team_projects')
  const requests = {
    'by a path': { request: call('GET', 'p-0/backend/live/secrets'), most: teams },
    'by a body': { request: call('POST', 'secrets/retrieve', at), most: teams * PROJECT_ROLES.length },
    'by an id': { request: call('GET', `secrets/versions/${version}`), most: teams * PROJECT_ROLES.length }
  }
  for (const [what, { request, most: allowed }] of Object.entries(requests)) {
    for (const [mode, reads] of Object.entries(await readsOf(request))) {
      t.ok(reads.some(inTeams))
      const sum = reads.filter(inTeams).reduce((sum, { rows }) => sum + rows, 0)
      t.ok(sum <= allowed, `${what}, ${mode} plan: ${sum} roles of teams`)
      t.ok(most(reads, () => true) <= allowed, `${what}, ${mode} plan: ${JSON.stringify(reads)}`)
    }
  }
  // A list counts the projects of all teams, but looks up only those of its page.
  for (const [mode, reads] of Object.entries(await readsOf(call('GET', `projects?page=1&per_page=${PER_PAGE}`)))) {
    t.ok(most(reads, inTeams) <= teams * held, `a list, ${mode} plan`)
    t.ok(most(reads, of('team_members')) <= teams * PROJECT_ROLES.length, `a list, ${mode} plan`)
    const others = reads.filter(({ table }) => !['team_projects', 'team_members'].includes(table))
    t.ok(most(others, () => true) <= FEW, `a list, ${mode} plan: ${JSON.stringify(reads)}`)
  }
})

t.test('a caller is found by reading only its own rows, among very many tokens, people and organizations', onServer, async (t) => {
  const caller = await service.organization()
  const at = await makeLevel(caller, { slug: 'called' })
  const { version } = (await caller.call(
    'POST', `/${caller.organization}/secrets/store`, { ...at, plaintext: 'A=1' }
  )).body.data
  const rosa = await makePerson(service, { [caller.organization]: 'owner' })
  const { access, grant } = await issuePair(service, rosa, ['secret:read'])
  const many = 'FROM generate_series(1, 3000) n'
  await service.sql(`INSERT INTO organizations (id, slug, storage_key)
    SELECT lpad('M' || n, 26, '0'), 'many-' || n, '' ${many}`)
  await service.sql(`INSERT INTO organization_counters (organization_id, name, plan)
    SELECT lpad('M' || n, 26, '0'), 'Many', 'self-hosted' ${many}`)
  await service.sql(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities)
    SELECT lpad('M' || n, 26, '0'), 'T', sha256(('M' || n)::bytea), 'srt_', '', '{}' ${many}`)
  await service.sql(`INSERT INTO users (email, email_normalized, name)
    SELECT 'many-' || n, 'many-' || n, 'Many' ${many}`)
  await service.sql(`INSERT INTO members (organization_id, user_id, role)
    SELECT lpad('M' || row_number() OVER (), 26, '0'), id, 'owner' FROM users WHERE name = 'Many'`)
  await service.sql(`INSERT INTO oauth_grants (user_id, client_id, scopes, expires_at)
    SELECT users.id, client_id, scopes, expires_at FROM oauth_grants, users WHERE oauth_grants.id = ${grant}`)
  await service.sql(`INSERT INTO oauth_tokens (grant_id, access_hash, refresh_hash, scopes, access_expires_at,
      refresh_expires_at)
    SELECT id, sha256(('A' || id)::bytea), sha256(('R' || id)::bytea), scopes, expires_at, expires_at
    FROM oauth_grants WHERE id > ${grant}`)
  await service.sql('VACUUM ANALYZE')
  const path = `/${caller.organization}/${at.project}/${at.target}/${at.environment}/secrets`
  const requests = {
    'a token without a person': () => caller.call('GET', path),
    'an application of a person': () => caller.call('GET', path, undefined, { authorization: `Bearer ${access}` }),
    'a version': () => caller.call('GET', `/${caller.organization}/secrets/versions/${version}`)
  }
  for (const [what, request] of Object.entries(requests)) {
    for (const [mode, reads] of Object.entries(await readsOf(request))) {
      t.ok(reads.some(of('api_tokens', 'oauth_tokens')))
      t.ok(most(reads, () => true) <= FEW, `${what}, ${mode} plan: ${JSON.stringify(reads)}`)
    }
  }
})

t.test('what writes or reveals something looks up the counters of its own organizations, among very many', onServer, async (t) => {
  const callers = await Promise.all(Array.from({ length: 8 }, () => service.organization()))
  const stores: (() => Promise<unknown>)[] = []
  for (const { organization, call } of callers) {
    const at = await makeLevel({ organization, call } as Caller, { slug: 'counted' })
    stores.push(() => call('POST', `/${organization}/secrets/store`, { ...at, plaintext: 'A=1' }))
    const path = `/${organization}/${at.project}/${at.target}/${at.environment}/secrets?decrypt=true`
    stores.push(() => call('GET', path))
  }
  await service.sql(`INSERT INTO organization_counters (organization_id, name, plan)
    SELECT lpad('C' || n, 26, '0'), 'Many', 'self-hosted' FROM generate_series(1, 3000) n`)
  await service.sql('VACUUM ANALYZE')
  statements.length = 0
  await Promise.all(stores.map((store) => store()))
  const texts = new Map(statements.splice(0).filter(({ text }) => /organization_counters/.test(text))
    .map(({ text, ...one }) => [text, one]))
  t.ok([...texts.keys()].some((text) => /FOR NO KEY UPDATE SKIP LOCKED/.test(text)), 'counters of several are locked')
  t.ok([...texts.keys()].some((text) => /UPDATE organization_counters/.test(text)), 'and moved')
  for (const [text, { client, params }] of texts) {
    const plan = await beside(() => client.begin(async (tx) => {
      await tx.unsafe('SET LOCAL plan_cache_mode = force_generic_plan')
      await tx.unsafe(`PREPARE again AS ${text}`)
      const [row] = await tx.unsafe(
        `EXPLAIN (FORMAT JSON) EXECUTE again${params.length === 0 ? '' : `(${params.map(() => 'NULL').join()})`}`
      ) as [{ 'QUERY PLAN': [{ Plan: Node }] }]
      await tx.unsafe('DEALLOCATE again')
      return row['QUERY PLAN'][0].Plan
    }))
    const walk = (node: Node): void => {
      if (node['Relation Name'] === 'organization_counters' && node['Node Type'] !== 'ModifyTable') {
        t.match(node['Index Cond'] ?? node['Recheck Cond'], /organization_id/, `${node['Node Type']} of ${text}`)
      }
      for (const child of node.Plans ?? []) walk(child)
    }
    walk(plan)
  }
})

t.test('rows of a request are found by index, in small tables too: a table that changed often is not scanned', onServer, async (t) => {
  const { organization, call } = await service.organization()
  const at = await makeLevel({ organization, call } as Caller, { slug: 'small' })
  await call('POST', `/${organization}/secrets/store`, { ...at, plaintext: 'A=1' })
  await service.sql('VACUUM ANALYZE')
  const scans = (reads: Read[]) => reads.filter(({ how }) => how === 'Seq Scan')
  const path = `/${organization}/${at.project}/${at.target}/${at.environment}/secrets`
  for (const request of [() => call('GET', path), () => call('GET', `/${organization}/projects`)]) {
    for (const [mode, reads] of Object.entries(await readsOf(request))) t.strictSame(scans(reads), [], mode)
  }
  for (const db of [database.db, database.reads, database.lists, database.pages]) {
    for (const [name, value] of Object.entries(BY_INDEX)) t.match(await db.execute(`SHOW ${name}`), [{ [name]: value }])
  }
})

t.test('who is looked up does not wait behind lists, and no page behind what may be long', onServer, async (t) => {
  let release = () => {}
  const released = new Promise<void>((resolve) => { release = resolve })
  // There are more lists than connections for lists, so some of them wait for a connection.
  const holding = Array.from({ length: 20 }, () =>
    database.lists.transaction(async () => await released).catch(() => {}))
  let listed = false
  const slow = owner.call('GET', `/organizations/${owner.organization}/api-keys`).finally(() => { listed = true })
  t.equal((await owner.call('GET', '/organization')).status, 200)
  t.equal((await owner.call('GET', `/${owner.organization}/projects`)).status, 200)
  t.equal((await list({ project: 'long', target: 'backend', environment: 'live' }, 2)()).status, 200)
  t.notOk(listed, 'a list waits meanwhile')
  release()
  await Promise.all([slow, ...holding])
})

const MANY = 3_000

/** The number of rows and index entries that the work read, from the table or index with the most. */
async function mostLookedAt (work: (db: Db) => Promise<unknown>): Promise<number> {
  return transaction(database.db, async (db) => {
    await work(db)
    const [row] = await beside(async () => db.execute(sql`
      SELECT max(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))::int AS most
      FROM pg_class WHERE relkind IN ('r', 'i') AND relnamespace = 'public'::regnamespace`)) as unknown as { most: number }[]
    return row!.most
  })
}

t.test('an operation on very many rows of a tenant reads each a few times, even if the statistics are old', onServer, async (t) => {
  const large = await service.organization()
  const { organization, call } = await service.organization()
  await makeLevel({ organization, call } as Caller, { slug: 'grown' })
  const grow = async (of: string, from: number, to: number) => {
    const many = `generate_series(${from}, ${to}) n`
    const id = `lpad('${of === organization ? 'G' : 'L'}' || n, 26, '0')`
    await service.sql(`
      INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, expires_at)
      SELECT '${of}', 'T', sha256(('${of}' || n)::bytea), 'srt_', '', '{}', now() - interval '60 days' FROM ${many}`)
    await service.sql(`INSERT INTO histories (organization_id, id) SELECT '${of}', ${id} FROM ${many}`)
    await service.sql(`
      INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes)
      SELECT '${of}', 10000000 + n, ${id}, 'put', 1, 1, ''::bytea, 0 FROM ${many}`)
    await service.sql(`
      INSERT INTO secrets (organization_id, id, project_id, target_id, level, level_id, revision, key_version,
        size_bytes, history_id, version, updated_at)
      SELECT '${of}', ${id}, p.id, NULL, 'project', ${id}, 1, 1, 0, ${id}, 10000000 + n, now() + interval '1 hour'
      FROM ${many}, projects p WHERE p.organization_id = '${of}' LIMIT ${to - from + 1}`)
  }
  await makeLevel(large as Caller, { slug: 'large' })
  await grow(large.organization, 1, MANY)
  for (const table of ['api_tokens', 'histories', 'secret_versions', 'secrets']) {
    await service.sql(`ALTER TABLE ${table} SET (autovacuum_enabled = false)`)
  }
  await service.sql('VACUUM ANALYZE')
  await grow(organization, 1, MANY)
  const ids = (await service.sql(`SELECT id FROM api_tokens WHERE organization_id = '${organization}' ORDER BY id DESC`))
    .map((row) => Number(row.id))
  const versions = Array.from({ length: MANY }, (_, n) => 10_000_001 + n)
  const [project] = await service.sql(`SELECT * FROM projects WHERE organization_id = '${organization}'`) as unknown as
    [KeyState]
  const work: Record<string, (db: Db) => Promise<unknown>> = {
    'levels of a moment': async (db) => listChangedLevels(db, project, new Date(), null, null),
    'versions under a new key': async (db) => moveVersions(db, project, versions.map((id) =>
      ({ id, sealed: Buffer.of(1), size_bytes: 1 }))),
    'versions that waited': async (db) => findWaiting(db, { ...project, key_version: 2 }, versions, null, 'wait'),
    'documents of a rotation': async (db) =>
      findDocuments(db, organization, versions.map((_, n) => `${n + 1}`.padStart(26, '0'))),
    'growth of histories': async (db) => growHistories(db, project, versions.map((_, n) =>
      ({ secret_id: `G${n + 1}`.padStart(26, '0'), growth: 1 }))),
    'a purge': async (db) => purgeHistories(db, organization, project.id, { project_id: project.id }),
    'purged versions': async (db) => deleteRemovedVersions(db, organization, { history_id: '', id: 0 }, MANY),
    'purged histories': async (db) => deleteEmptyHistories(db, organization, MANY),
    'tokens that are narrowed to nothing': async (db) => deleteTokens(db, organization, ids.slice(0, MANY / 3)),
    'tokens that expired long ago': async (db) => deleteUnusableTokens(db, organization, MANY / 3),
    'documents of an organization that is gone': async (db) => deleteSecretsOfRemoved(db, organization, MANY),
    'tokens of an organization that is gone': async (db) => deleteLeftBehind(db, LEFT_BEHIND[0], organization, MANY)
  }
  for (const [what, run] of Object.entries(work)) {
    const most = await mostLookedAt(run)
    // The work finds each row once or twice, and checks its references.
    t.ok(most <= 10 * MANY, `${what}: ${most}`)
  }
})

t.test('a deletion looks up each restriction of tokens, rules and teams once, not all levels for each', onServer, async (t) => {
  const { organization, call } = await service.organization()
  await makeLevel({ organization, call } as Caller, { slug: 'cut' })
  const [{ id: project }] = await service.sql(`SELECT id FROM projects WHERE organization_id = '${organization}'`) as
    unknown as [{ id: string }]
  const LEVELS = 2_000
  const RESTRICTED = 300
  const id = (n: number | string) => `lpad('L' || ${n}, 26, '0')`
  const target = (n: number) => `L${n}`.padStart(26, '0')
  await service.sql(`INSERT INTO targets (organization_id, id, project_id, name, slug)
    SELECT '${organization}', ${id('n')}, '${project}', 'T', 'l-' || n FROM generate_series(1, ${LEVELS}) n`)
  // The last ones have a second restriction, to a level that stays.
  const slice = (n: string) => `jsonb_build_object('project_id', '${project}', 'target_id', ${n}, 'environment_id', null)`
  const slices = `CASE WHEN n < ${RESTRICTED} THEN jsonb_build_array(${slice(id('n'))})
    ELSE jsonb_build_array(${slice(id('1'))}, ${slice(id('n'))}) END`
  await service.sql(`INSERT INTO api_tokens (organization_id, id, name, token_hash, token_prefix, token_suffix, abilities, slices)
    OVERRIDING SYSTEM VALUE
    SELECT '${organization}', 900000 + n, 'T', sha256(('cut' || n)::bytea), '', '', '{}', ${slices}
    FROM generate_series(1, ${RESTRICTED + 5}) n`)
  await service.sql('VACUUM ANALYZE')
  const work: Record<string, (db: Db) => Promise<unknown>> = {
    tokens: async (db) => lockTokensOfNothing(db, organization, LEVELS, { target_id: target(1) }),
    'all tokens': async (db) => lockTokensOfNothing(db, organization, LEVELS),
    rules: async (db) => deleteRulesOfNothing(db, organization, { target_id: target(1) }),
    teams: async (db) => listTeamsOfNothing(db, organization, project)
  }
  const targetsRead = async (db: Db) => {
    const [row] = await beside(async () => db.execute(sql`
      SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))::int AS read FROM pg_class
      WHERE oid = 'targets'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'targets'::regclass)
    `)) as unknown as { read: number }[]
    return row!.read
  }
  for (const [what, run] of Object.entries(work)) {
    const read = await transaction(database.db, async (db) => {
      const before = await targetsRead(db)
      await run(db)
      return await targetsRead(db) - before
    })
    t.ok(read <= 3 * RESTRICTED, `${what}: ${read}`)
  }
  await service.sql(`DELETE FROM targets WHERE organization_id = '${organization}' AND id = '${target(1)}'`)
  const gone = (deleted?: { target_id: string } | { project_id: string }) =>
    transaction(database.db, async (db) => lockTokensOfNothing(db, organization, LEVELS, deleted))
  t.strictSame(await gone({ target_id: target(1) }), [900_001], 'those with another restriction stay')
  t.strictSame(await gone({ project_id: project }), [900_001])
  t.strictSame(await gone({ target_id: target(2) }), [])
  t.strictSame(await gone(), [900_001])
})

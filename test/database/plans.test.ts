// runs: PostgreSQL; after all others
// Runs after all other tests (scripts/test.mjs). Plans every statement that the service has sent, with settings that
// make a full scan more expensive than anything else. A statement that still scans a whole table has no suitable index.
import postgres from 'postgres'
import t from 'tap'
import { BY_INDEX, MEANING } from '../../src/db/postgres/session.ts'
import { freshDatabase } from '../helpers/app.ts'
import { collected } from '../helpers/statements.ts'

const { database, url, drop } = await freshDatabase()
t.teardown(async () => {
  await database.close()
  await drop()
})

interface Node {
  'Node Type': string
  'Relation Name'?: string
  'Index Name'?: string
  Schema?: string
  Filter?: string
  'Index Cond'?: string
  Plans?: Node[]
}

/**
 * Tables that stay small with any number of organizations: settings of the operator, and work lists of background jobs.
 */
const SMALL = [
  'plans', 'plan_prices', 'coupons', 'master_key_canaries', 'service_keys', 'last_backup', 'oauth_clients', 'organization_removals',
  'token_removals', 'late_events'
]

/**
 * The tables are empty here, and the cheapest join of two empty tables reads both completely. These settings allow only
 * joins by look-up. A full scan then means that an index is missing, for any statistics.
 */
const BY_LOOK_UP = {
  plan_cache_mode: 'force_generic_plan', enable_hashjoin: 'off', enable_mergejoin: 'off', enable_material: 'off'
}

/** Full scans that are allowed, with their statements and reasons. */
const READ_THROUGH: { what: RegExp, reads: string[], why: string }[] = [
  {
    what: /^with recursive recorded as \( select min\(organization_id\)/,
    reads: ['organization_counters_pkey', 'organizations_pkey'],
    why: 'audit verify and audit export: every chain that there is'
  },
  {
    what: /^select count\(\*\)::int as count from \( select storage_key as wrapped from organizations union all /,
    reads: ['organizations', 'second_factors', 'chain_keys', 'encryption_keys'],
    why: 'rewrap: what is under a master key'
  },
  {
    what: /^select kid, organization_id, kid, from_seq, wrapped from chain_keys where \(chain_keys\.kid > \$1 /,
    reads: ['chain_keys_organization_id_kid_pk'],
    why: 'rewrap: every key of a chain'
  },
  {
    what: /^select [\w, ]+ from (organizations|encryption_keys)( order by | where (encryption_keys\.version|id <>) |$)/,
    reads: [
      'organizations', 'organizations_pkey', 'encryption_keys', 'encryption_keys_by_id',
      'encryption_keys_organization_id_project_id_version_index'
    ],
    why: 'tests look at all rows'
  },
  { what: /^update second_factors set secret = secret \|\| /, reads: ['second_factors'], why: 'a test spoils all rows' },
  {
    what: /^select count\(\*\) as count from organizations;$/,
    reads: ['organizations_slug_unique', 'organizations_pkey'],
    why: 'a start looks whether it is the first one'
  },
  {
    what: /^select organization_id from (charges|invoices|refunds) where \1\.id = \$1 limit \$2$/,
    reads: ['charges_organization_id_id_pk', 'invoices_organization_id_id_pk', 'refunds_organization_id_id_pk'],
    why: 'the operator names one by its id, by hand'
  },
  {
    what: /^select .* from refunds .*where \(.* refunds\.id > \$\d\) order by refunds\.id asc limit /,
    reads: ['refunds_organization_id_id_pk'],
    why: 'the operator lists what to pay back, by hand'
  },
  // Each of these statements has an index, but the planner prefers another index while the tables are empty. scale.test
  // counts the rows that they read from full tables.
  {
    what: /^with r as \(.*target_id char\(26\), documents int\)/,
    reads: ['project_counts_organization_id_project_id_pk'],
    why: 'one row, by its whole key'
  },
  {
    what: /^(delete from oauth_grants where oauth_grants\.id in \()?select id from oauth_grants where (\(?oauth_grants\.id in .*|\()oauth_grants\.expires_at </,
    reads: ['oauth_grants_pkey'],
    why: 'grants that are over, by when they expired and by when they were revoked'
  },
  {
    what: /^select organizations\.id, .* from organizations inner join organization_counters .*where organizations\.id > \$1 /,
    reads: ['organization_counters_pkey'],
    why: 'the counter row of each organization on the page, by its id'
  },
  {
    what: /^delete from sign_in_devices where \(sign_in_devices\.user_id = \$1 and sign_in_devices\.id not in /,
    reads: ['sign_in_devices_expires_at_index'],
    why: 'the few devices of one person'
  },
  {
    what: /^select organization_id, id from api_tokens where \(api_tokens\.grant_id in .* order by api_tokens\.id asc limit /,
    reads: ['api_tokens_by_id'],
    why: 'the tokens of some grants, by the grant'
  },
  {
    what: /^select secret_versions\.id, secrets\.id, secret_versions\.revision, .* from secret_versions inner join secrets /,
    reads: ['secrets_organization_id_project_id_id_index'],
    why: 'the document of each version, by its history'
  }
]

const client = url === undefined
  ? undefined
  : postgres(url, {
    max: 1, onnotice: () => {}, fetch_types: false, connection: { ...MEANING, ...BY_INDEX, ...BY_LOOK_UP }
  })
t.teardown(() => client?.end())
const onServer = { skip: client === undefined && 'runs on PostgreSQL' }

const plainly = (text: string) => text.replace(/--.*$/gm, '').replaceAll('"', '').replace(/\s+/g, ' ').trim().toLowerCase()

// undefined_table and undefined_column: some statements use tables that tests create, or schemas of earlier releases.
const ELSEWHERE = ['42P01', '42703']

/**
 * The tables or indexes that a statement scans completely, for any values. Undefined if the statement is for another
 * schema.
 */
async function readsThrough (text: string): Promise<string[] | undefined> {
  const count = Math.max(0, ...[...text.matchAll(/\$(\d+)/g)].map(([, n]) => Number(n)))
  const isHere = await client!.unsafe(`PREPARE it AS ${text}`).then(() => true, (error: { code: string }) => {
    if (ELSEWHERE.includes(error.code)) return false
    throw error
  })
  if (!isHere) return undefined
  try {
    const [row] = await client!.unsafe(
      `EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE it${count === 0 ? '' : `(${Array(count).fill('NULL').join()})`}`
    )
    const found: string[] = []
    const walk = (node: Node, above?: Node) => {
      const { 'Node Type': type, 'Relation Name': table, 'Index Name': index, 'Index Cond': condition = '' } = node
      // A LIMIT without a filter reads only the requested number of rows.
      const isCut = above?.['Node Type'] === 'Limit' && node.Filter === undefined
      if (type === 'Seq Scan' && node.Schema === 'public' && !SMALL.includes(table!) && !isCut) found.push(table!)
      // A scan without a condition on the first column reads a whole index. A partial index contains only the wanted
      // rows.
      const its = indexes.get(index ?? '')
      const isBounded = its === undefined || its.is_partial || new RegExp(`\\b${its.first}\\b`).test(condition)
      if (!isBounded && !SMALL.includes(its.table) && !isCut) found.push(index!)
      for (const child of node.Plans ?? []) walk(child, node)
    }
    walk(row!['QUERY PLAN'][0].Plan)
    return found
  } finally {
    await client!.unsafe('DEALLOCATE it')
  }
}

const indexes = new Map((await client?.unsafe(`
  SELECT i.indexrelid::regclass::text AS name, i.indrelid::regclass::text AS table, i.indpred IS NOT NULL AS is_partial,
    a.attname AS first
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid AND c.relnamespace = 'public'::regnamespace
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]`) ?? [])
  .map(({ name, ...row }) => [name as string, row as unknown as { table: string, is_partial: boolean, first: string }]))

// Selects the statements that use tables.
const isData = (text: string) =>
  /^\s*(with|select|insert|update|delete)\b/i.test(text) && /\b(from|into|update)\b/i.test(text)

const texts = (collected() ?? []).filter(isData)

t.test('every statement that the suite sends finds its rows by an index', {
  skip: onServer.skip || (texts.length === 0 && 'no other test ran before, in npm test, which collects them')
}, async (t) => {
  let planned = 0
  for (const text of texts) {
    const plain = plainly(text)
    const allowed = READ_THROUGH.filter(({ what }) => what.test(plain)).flatMap(({ reads }) => reads)
    const all = await readsThrough(text).catch((error: unknown) => [String(error)])
    if (all !== undefined) planned++
    const found = (all ?? []).filter((name) => !allowed.includes(name))
    if (found.length > 0) t.fail(`${found.join()}: ${plain}`)
  }
  t.ok(planned > texts.length / 2, `${planned} of ${texts.length} are of this schema`)
})

t.test('a statement without an index is caught, and so is one whose index is gone', onServer, async (t) => {
  for (const [text, found] of [
    ['SELECT id FROM users WHERE name = $1', ['users']],
    ['SELECT id FROM projects WHERE id = $1', ['projects_organization_id_id_pk']],
    ['DELETE FROM password_links WHERE expires_at < now()', []],
    ['SELECT p.id FROM projects p JOIN targets t ON t.organization_id = p.organization_id AND t.project_id = p.id ' +
      'WHERE p.organization_id = $1', []],
    ['SELECT name FROM plans', []], ['SELECT id FROM users LIMIT 1', []], ['SELECT id FROM things', undefined]
  ] as const) t.same(await readsThrough(text), found, text)
  await client!.unsafe('DROP INDEX password_links_expires_at_index')
  t.same(await readsThrough('DELETE FROM password_links WHERE expires_at < now()'), ['password_links'])
})

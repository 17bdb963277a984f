// Checks every SQL statement that a process sends through src/db. A statement that uses a table of organizations must
// have a condition on the organization; otherwise the test fails or the process ends. Importing this file enables the
// check. Test runs import it through NODE_OPTIONS, also in the servers and commands that tests start.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomUUID } from 'node:crypto'
import { subscribe } from 'node:diagnostics_channel'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

// The newest snapshot equals src/db/tables.ts (test/database/migrations.test.ts). Each process of a run reads the
// snapshot, because the import of tables.ts takes longer.
const SNAPSHOTS = new URL('../../drizzle/meta/', import.meta.url)
const [snapshot] = readdirSync(SNAPSHOTS).filter((name) => name.endsWith('_snapshot.json')).sort().reverse()
const { tables } = JSON.parse(readFileSync(new URL(snapshot!, SNAPSHOTS), 'utf8')) as {
  tables: Record<string, { name: string, columns: object }>
}

/** Tables whose rows belong to an organization. */
export const TENANT_TABLES = Object.values(tables).filter(({ columns }) => 'organization_id' in columns)
  .map(({ name }) => name)

/** Statements that may use several organizations, and the reasons. */
export const EXCEPTIONS: { what: RegExp, why: string }[] = [
  {
    what: /^(?:\(?select slug from organizations .* union all .*)?\(?select (?:organization_id|slug) from former_slugs where \(former_slugs\.slug (?:= \$1|in \(select value.*\)) and former_slugs\.reserved_until > now\(\)\)\)?$/,
    why: 'whether a slug is reserved, and for which organization'
  },
  {
    what: /^delete from former_slugs where \(former_slugs\.slug = \$1 and former_slugs\.reserved_until > now\(\)\) returning organization_id$/,
    why: 'the operator releases a slug, and learns which organization had it'
  },
  {
    what: /^delete from former_slugs where former_slugs\.slug in \(select slug from former_slugs where former_slugs\.reserved_until < now\(\) limit \$1 for update skip locked\)$/,
    why: 'reservations that are over are removed when another one is made'
  },
  {
    what: /^select count\(distinct organization_id\)::int from former_slugs where \(former_slugs\.owner_id = \$1 and /,
    why: 'how many organizations a person deleted a short time ago'
  },
  {
    what: /^with recursive recorded as \( select min\(organization_id\) as id from audit_events union all /,
    why: 'audit verify and audit export: every chain that there is'
  },
  {
    what: /^select coalesce\(sum\(next_event - 1\), 0\)::float8 as events from organization_counters where organization_id = any /,
    why: 'and how many events they have, for the progress'
  },
  {
    what: /^select distinct organization_id as id from audit_events union select organization_id from organization_counters /,
    why: 'and on Citus'
  },
  {
    what: /^delete from api_tokens where \(\((?:api_tokens\.grant_id in .*|api_tokens\.user_id = \$1 and not exists \(select from oauth_grants g .*)\) and api_tokens\.id <= \$\d\)$/,
    why: 'what a person made, or was made through a grant, ends with it, in every organization'
  },
  {
    what: /^select organization_id, id from api_tokens where \((?:api_tokens\.grant_id in .*|api_tokens\.user_id = \$1 and not exists \(select from oauth_grants g .*)\) order by .*$/,
    why: 'and is held before'
  },
  {
    what: /^select organization_id, count\(\*\)::int, .* from api_tokens where \(api_tokens\.grant_id in .*\) group by api_tokens\.organization_id$/,
    why: 'and counted'
  },
  {
    what: /^insert into token_removals .*select distinct organization_id, '' as ended, grant_id from api_tokens where \(api_tokens\.grant_id in /,
    why: 'and left to the background worker, where it is much'
  },
  {
    what: /^select .* from api_tokens inner join organizations .*where \(?api_tokens\.user_id = /,
    why: 'the tokens of a person, in every organization'
  },
  {
    what: /^select late\.\*, again\.\*, \(select count\(\*\)::int from \(select 1 from organization_removals limit \d+\) /,
    why: 'how much waits, of all organizations together, for the metrics'
  },
  {
    what: /^select .* from re_encryptions inner join projects .*finished_at is null/,
    why: 'what the background worker has to do'
  },
  {
    what: /^select organizations\.id, .* from organizations inner join organization_counters .* where organizations\.id (?:= \$1|in \(|> \$1)/,
    why: 'organizations by their ids, and a page of all for the operator: the counter row of each has its status and plan'
  },
  {
    what: /^select organization_id from organization_counters where .*in \(select organization_id from late_events\)/,
    why: 'the events that the background worker has to number'
  },
  {
    what: /^select api_tokens\.organization_id from api_tokens inner join organizations .* where api_tokens\.id = \$1$/,
    why: 'a token that an operator names by its id'
  },
  {
    what: /^select .* from invitations (?:inner join organizations .*)?where \(invitations\.email_normalized = \$1 and /,
    why: 'the invitations to the address of a person, from every organization'
  },
  {
    what: /^select organization_id from invitations where expires_at <= now\(\) .* union select organization_id from invitation_mails /,
    why: 'the expired invitations that the background worker has to remove'
  },
  {
    what: /^select distinct organization_id from idempotency_keys where /,
    why: 'the old answers that the background worker has to remove'
  },
  {
    what: /^select distinct organization_id from spent_assertions where /,
    why: 'the used assertions that have expired, which the background worker has to remove'
  },
  {
    what: /^select distinct over\.organization_id from \( ?\(select t\.organization_id from api_tokens t where t\.expires_at < /,
    why: 'the API tokens that expired long ago, or whose grant did, which the background worker has to remove'
  },
  {
    what: /^select .* from api_tokens where \(\(?api_tokens\.expires_at > now\(\) .*announced_end is distinct from /,
    why: 'the API tokens that end soon, about which the background worker mails the owners'
  },
  {
    what: /^delete from oauth_grants where oauth_grants\.id in \(select id from oauth_grants where .*not exists \(select from api_tokens where api_tokens\.grant_id = oauth_grants\.id\)/,
    why: 'a grant that is over is deleted after the last API token that was made through it'
  },
  {
    what: /^select distinct grant_id from api_tokens where api_tokens\.grant_id in \(select value/,
    why: 'and on Citus, where the API tokens are on other nodes'
  },
  {
    what: /^select distinct organization_id from histories where removed_at is not null /,
    why: 'on Citus, what the background worker has to remove'
  },
  {
    what: /^select organization_id, ended, ended_id from token_removals where .* order by/,
    why: 'the API tokens that the background worker has to remove'
  },
  { what: /^select organization_id from organization_removals where .* order by/, why: 'what the background worker has to remove' },
  {
    what: /^select .*organization_id from subscriptions inner join organization_counters .*subscriptions\.period_end <= now\(\)/,
    why: 'the subscriptions that the background worker has to renew'
  },
  {
    what: /^update (charges|refunds) set asked_at = now\(\) where \(\1\.organization_id, \1\.id\) = \(select .* limit \$\d for no key update skip locked\) returning/,
    why: 'what the background worker has to tell the payment provider'
  },
  {
    what: /^select organization_id, id from (charges|refunds) where \(\1\.submitted_at is null and .* limit \$\d$/,
    why: 'and on Citus, where each is then claimed by itself'
  },
  {
    what: /^select organization_id from (?:invoices|charges|refunds) where (?:invoices|charges|refunds)\.id = \$1 limit \$2$/,
    why: 'the operator names an invoice or a refund by its id, and learns the organization'
  },
  { what: /^select .* from refunds .*where \(refunds\.status = \$1 and refunds\.id > \$2\) order/, why: 'what the operator has to pay back' },
  {
    what: /^select .* from invoices left join charges .*where \(invoices\.organization_id, invoices\.number\) > /,
    why: 'the operator exports every invoice'
  },
  {
    what: /^with recursive found as \( \(select organization_id from histories where removed_at is not null/,
    why: 'what the background worker has to remove'
  },
  {
    what: /^select .* from encryption_keys where \(encryption_keys\.id > \$1 .*(?:for no key update|limit \$\d+)$/,
    why: 'rewrap: every key of the installation'
  },
  { what: /^update encryption_keys k set key_string = v\.key_string/, why: 'rewrap: every key of the installation' },
  {
    what: /^(?:select id, organization_id, [\w, ]+\bhint\b[\w, ]+ from encryption_keys(?: where (?:id <>|encryption_keys\.(?:id|version) =) \$1)?(?: order by encryption_keys\.id(?: desc limit \$\d)?)?|update encryption_keys set [\w$=, ]*\bhint = \$\d[\w$=, ]* where encryption_keys\.id = \$\d)$/,
    why: 'tests of rewrap look at every column of every key: the service reads no hint'
  },
  { what: /^select kid from chain_keys limit \$1$/, why: 'whether chains of this service are handed over to keys of their own' },
  {
    what: /^select kid, organization_id, kid, from_seq, wrapped from chain_keys where \(chain_keys\.kid > \$1 .*(?:for no key update|limit \$\d+)$/,
    why: 'rewrap: every key of a chain'
  },
  {
    what:
      /^select count\(\*\)::int as count from \( select storage_key as wrapped from organizations union all select (wrapped from service_keys union all select )?(secret from second_factors union all select )?(wrapped from chain_keys union all select )?unnest/,
    why: 'rewrap: what is under a master key'
  }
]

const besideTheService = new AsyncLocalStorage<true>()

/** Runs a test's own statements, outside of the service, without the check. */
export const beside = <T>(work: () => Promise<T>): Promise<T> => besideTheService.run(true, work)

/** The error of a statement that uses several organizations; undefined for one organization, and for exceptions. */
export function crossesTenants (statement: string): string | undefined {
  if (!/^\s*(with|select|insert|update|delete)\b/i.test(statement)) return undefined
  const text = statement.replace(
    /'(?:[^']|'')*'/g, "''"
  ).replace(/--.*$/gm, '').replaceAll('"', '').replace(/\s+/g, ' ').trim().toLowerCase()
  if (EXCEPTIONS.some(({ what }) => what.test(text))) return undefined
  const all = queriesOf(text).flatMap((query) => tablesIn(query).map((table) => ({ ...table, query })))
  // The memberships of a person may be selected by the user id; other tables need a condition on the organization.
  const theirs = all.filter(({ table, alias, query }) =>
    table === 'members' && !CHANGES_MEMBERS.test(query) && isNamed(query, alias, false, 'user_id'))
  const used = all.filter((one) => !theirs.includes(one))
  const loose = used.find(({ alias, query, alone }) => !isNamed(query, alias, alone))
  if (loose !== undefined) return `${loose.table} without its organization`
  if (EITHER.test(text)) return 'its organization, or something else'
  const isGiven = /organization_id (=|in) ?(any)?\(?\$|organization_id( ,|,| ?\))|= ''/.test(text) ||
    LISTED.test(text) || theirs.some(({ alias, query }) => isNamed(query, alias, false))
  return used.length > 0 && !isGiven ? 'no organization is given' : undefined
}

// A parameter that is a list of rows, each with its organization.
const LISTED = /jsonb_to_recordset\(\$\d+::jsonb\) as \w+ \( ?(?:[\w, ()]*, )?organization_id char\(26\)/

const CHANGES_MEMBERS = /\b(?:update|delete from|insert into) (?:only )?members\b/

// A condition on the organization that another condition can replace (OR).
const EITHER = /\bor \(?(?:\w+\.)?organization_id (?:=|in)|(?<![\w.])(?:\w+\.)?organization_id (?:= [^\s()]+|in \([^()]*\)) or\b/

// Splits nested queries: each query in parentheses is separate; other parentheses stay in the surrounding query.
function queriesOf (text: string): string[] {
  const queries: string[] = []
  const open = ['']
  for (const character of text) {
    if (character === '(') open.push('')
    else if (character === ')' && open.length > 1) {
      const inner = open.pop()!
      if (/^ ?(select|insert|update|delete|with)\b/.test(inner)) {
        queries.push(inner)
        open[open.length - 1] += '()'
      } else open[open.length - 1] += `(${inner})`
    } else open[open.length - 1] += character
  }
  return [...queries, ...open]
}

const NO_ALIAS =
  /^(where|on|set|inner|left|right|full|cross|join|for|using|order|group|limit|returning|values|select|default|union|offset)$/

function tablesIn (query: string) {
  const pattern = new RegExp(
    `(?:\\b(from|join|update|into|using)|,) (?:only |lateral )?(${TENANT_TABLES.join('|')})(?![\\w.])(?: (?:as )?(\\w+))?`,
    'g'
  )
  // A name after a comma is a table only in the FROM list. It is not a table in a column list or in parentheses.
  const isListed = (before: string) =>
    /\bfrom\b/.test(before) && before.split('(').length === before.split(')').length
  const found = [...query.matchAll(pattern)]
    .filter(({ 1: word, index }) => word !== undefined || isListed(query.slice(0, index)))
  return found.map(([, , table, next]) =>
    ({ table: table!, alias: next === undefined || NO_ALIAS.test(next) ? table! : next, alone: found.length === 1 }))
}

function isNamed (query: string, alias: string, alone: boolean, by = 'organization_id'): boolean {
  if (new RegExp(`\\binsert into ${alias} \\([^)]*\\b${by}\\b`).test(query)) return true
  const column = alone ? `(?:${alias}\\.)?${by}` : `${alias}\\.${by}`
  return new RegExp(`(?<![\\w.])${column}(?: (?:=|>|in\\b)|, [\\w.]+\\) in\\b)|= ${column}\\b`).test(query)
}

// Each text is checked once, because the service sends the same few hundred texts again and again.
const judged = new Set<string>()
subscribe('strongroom:statement', (message) => {
  const { phase, text } = message as { phase: string, text: unknown }
  if (phase !== 'before' || typeof text !== 'string' || judged.has(text) || besideTheService.getStore()) return
  judged.add(text)
  const wrong = crossesTenants(text)
  // An error in a subscriber is an uncaught exception, so the service cannot catch it.
  if (wrong !== undefined) throw new Error(`${wrong} (see test/helpers/statements.ts): ${text}`)
})

// At its exit, each process writes its statements to a file for test/database/plans.test.ts, which runs at the end.
const COLLECTION = process.env.TEST_STATEMENTS
const MOST = 5_000
if (COLLECTION !== undefined) {
  process.once('exit', () => {
    const right = [...judged].slice(0, MOST).filter((text) => crossesTenants(text) === undefined)
    writeFileSync(join(COLLECTION, `${randomUUID()}.json`), JSON.stringify(right))
  })
}

/** All distinct statements of ended processes; undefined if the run does not collect statements. */
export function collected (): string[] | undefined {
  if (COLLECTION === undefined) return undefined
  return [...new Set(readdirSync(COLLECTION).flatMap((name) =>
    JSON.parse(readFileSync(join(COLLECTION, name), 'utf8')) as string[]))].sort()
}

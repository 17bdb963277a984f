// runs: no database
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import t from 'tap'
import { DAYS_OF_USAGE } from '../../schemas/billing.ts'
import { SECRET_NAME_LENGTH } from '../../schemas/changes.ts'
import { PRIVILEGED_SECONDS, SESSION_IDLE_HOURS } from '../../schemas/console.ts'
import { DRY_RUN_LIMITS } from '../../schemas/dry-run.ts'
import { ERRORS } from '../../schemas/errors.ts'
import { EVENTS } from '../../schemas/events.ts'
import { INVITATION_DAYS } from '../../schemas/invitations.ts'
import { MATRIX_LIMITS } from '../../schemas/matrix.ts'
import { MAX_OPENED_VERSIONS, SEARCH_LIMITS } from '../../schemas/names.ts'
import { LIFETIMES, MAX_GRANTS, OAUTH_ERRORS, REDIRECT_LENGTH, STATE_LENGTH } from '../../schemas/oauth.ts'
import { FORMER_SLUG_DAYS } from '../../schemas/organizations.ts'
import { SCOPE_NAMES, SCOPE_RESOURCES } from '../../schemas/scopes.ts'
import { loadConfig, WRAPPED_BYTES } from '../../src/config.ts'
import { MAX_OF_ONE, MAX_TO_ADDRESS } from '../../src/mail/outbox.ts'
import { RESET_MINUTES } from '../../src/repositories/people/password-resets.ts'
import { SESSION_SECONDS } from '../../src/repositories/people/sessions.ts'
import { MAX_NAMES } from '../../src/rules/documents/env.ts'
import { YAML_LENGTH } from '../../src/rules/documents/yaml.ts'
import { MAX_LEVELS_OF_SHORT_DELETION } from '../../src/vault/operations/long-operations.ts'
import { ELSEWHERE, PAGES, readDoc, variablesOfService } from '../helpers/docs.ts'

// Files, variables, error codes, scopes, events, limits and defaults on the pages must exist in the code.

// The change log and the decisions describe the state at their time.
const pages = PAGES.filter((path) => path !== 'CHANGELOG.md' && !path.startsWith('docs/decisions/'))
  .map((path) => ({ path, text: readDoc(path).text }))
const spansOf = (text: string) => [...text.matchAll(/`([^`\n]+)`/g)].map(([, span]) => span!)
/** Words on the pages that match the pattern and are unknown, each with its page. */
const unknownIn = (pattern: RegExp, isKnown: (word: string, path: string) => boolean) => {
  const found = pages.flatMap(({ path, text }) => spansOf(text.replace(/^ *```.*?^ *```$/gms, '')).flatMap((span) =>
    (span.match(pattern) ?? []).filter((word) => !isKnown(word, path)).map((word) => `${path}: ${word}`)))
  return [...new Set(found)]
}

const TOP = readdirSync('.').filter((name) => !ELSEWHERE.includes(name))
const files = TOP.flatMap((name) => statSync(name).isDirectory()
  ? readdirSync(name, { recursive: true, encoding: 'utf8' }).map((below) => join(name, below))
  : [name]).filter((path) => !path.includes('node_modules'))
const CODE = /\.(?:conf|html|js|json|mjs|py|sh|sql|tsx?|ya?ml|cfg|go)$/
const code = files.filter((path) => CODE.test(path) && !path.startsWith('docs/'))
  .map((path) => readFileSync(path, 'utf8')).join('\n')
const words = new Set(code.match(/[A-Za-z_][A-Za-z0-9_]*/g))

t.test('every file that a page mentions is there', async (t) => {
  // Files that the build or a command of the page creates, or names under which the service serves files.
  const made = ['dist/', 'openapi.json', 'openapi-3.0.json', 'identity.txt', 'docs/callback', '.test.ts', '.ts.txt', 'go.yaml', '.strongroom.yaml', 'strongroom.mjs', 'usr/local/bin/']
  const names = new Set(files.map((path) => basename(path)))
  t.ok(files.length > 500)
  t.same(unknownIn(
    /(?:[\w.@-]+\/)*[\w.-]+\.(?:cfg|conf|gz|json|m?js|md|py|sh|sql|tsx?|txt|ya?ml)\b|\b(?:bench|clients|console|docs|drizzle|examples|patches|schemas|scripts|src|test)\/[\w./-]+/g,
    (word, path) => made.some((one) => word.startsWith(one)) || existsSync(word) || existsSync(`${word}.ts`) ||
      existsSync(join(dirname(path), word)) || names.has(basename(word)) || files.some((file) => file.endsWith(`/${word}`))
  ), [])
})

t.test('every variable that a page names is one of the service, or belongs to another program', async (t) => {
  const read = variablesOfService()
  const ofClient = new Set(files.filter((path) => /^cli\/.*\.ts$/.test(path))
    .flatMap((path) => readFileSync(path, 'utf8').match(/\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b/g) ?? []))
  /** Variables of other programs, of examples and of tests; each page may name them. */
  const OTHERS = [
    'CITUS_URL', 'CREDENTIALS_DIRECTORY', 'HSM_PIN', 'NODE_EXTRA_CA_CERTS', 'NODE_OPTIONS', 'POSTGRES_PASSWORD', 'STRONGROOM_PASSWORD', 'STRONGROOM_TOKEN',
    'STRONGROOM_TOKEN_FILE', 'STRONGROOM_URL', 'TEST_CYCLES', 'TEST_DATABASE_URL', 'CONSOLE_SCREENSHOTS',
    // The service sets this variable for a command of a KMS. The other one is an example of a misspelled name.
    'MASTER_KEY_ID', 'DATABSE_URL', 'TLS_KEY', 'OLD_FLAG'
  ]
  const found = unknownIn(
    /(?<![\w.])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b(?!\()/g, (word) => read.has(word) || ofClient.has(word) || OTHERS.includes(word)
  )
  // All other names are constants of the code.
  t.same(found.filter((line) => !new RegExp(`\\bconst ${line.split(': ')[1]}\\b`).test(code)), [])
  t.ok(read.size > 40)
})

t.test('every error code that a page names with its status has this status', async (t) => {
  // A code can be sent with several statuses: further ones are entries with `as`.
  const sent = new Set(Object.entries({ ...ERRORS, ...OAUTH_ERRORS } as Record<string, { status: number, as?: string }>)
    .map(([name, { status, as = name }]) => `${status} ${as}`))
  let compared = 0
  const wrong = pages.flatMap(({ path, text }) =>
    [...text.matchAll(/\b([45]\d\d)\s+`([a-z]+(?:_[a-z]+)*)`/g)].flatMap(([, number, name]) => {
      compared++
      return sent.has(`${number} ${name}`) ? [] : [`${path}: ${number} ${name}`]
    }))
  t.same(wrong, [])
  t.ok(compared > 40, `${compared} compared`)
})

t.test('every word with an underscore that a page names is a word of the code', async (t) => {
  /** Settings and functions of other programs. */
  const OTHERS = [
    'citus_create_restore_point', 'citus_rebalance_start', 'from_collapse_limit', 'geqo_threshold',
    'ignore_startup_parameters', 'join_collapse_limit', 'log_min_duration_statement', 'rsa_oaep_md', 'rsa_padding_mode',
    'target_session_attrs', 'wal_writer_delay', 'yb_enable_read_committed_isolation'
  ]
  t.same(unknownIn(/\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b/g, (word) => words.has(word) || OTHERS.includes(word)), [])
})

t.test('every scope that a page names is one, and so is every event', async (t) => {
  const resources = new Set(SCOPE_NAMES.map((scope) => scope.split(':')[0]!))
  t.same(Object.keys(SCOPE_RESOURCES).sort(), [...resources].sort())
  const isScope = new RegExp(`(?<![\\w/.:-])(?:${[...resources].join('|')}):[a-z-]+(?![\\w:])`, 'g')
  t.same(unknownIn(isScope, (word) => (SCOPE_NAMES as string[]).includes(word)), [])
  const subjects = [...new Set(EVENTS.map((event) => event.split('.')[0]!))]
  const isEvent = new RegExp(`(?<![\\w/.-])(?:${subjects.join('|')})\\.[a-z_]+(?![\\w.])`, 'g')
  t.same(unknownIn(isEvent, (word) => (EVENTS as readonly string[]).includes(word) || CODE.test(word)), [])
})

/** The value of a constant that its file does not export. The value is a product of numbers. */
function constant (file: string, name: string): number {
  const [, value = ''] = new RegExp(`\\b${name} = ([\\d_ *]+)$`, 'm').exec(readFileSync(file, 'utf8')) ?? []
  if (value === '') throw new Error(`${file} has no number ${name}`)
  return value.split('*').reduce((product, factor) => product * Number(factor.replaceAll('_', '')), 1)
}

const MIB = 1024 ** 2
const WORDS = ['no', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten']
const number = (value: number) => value.toLocaleString('en')
const inWords = (value: number) => WORDS[value]!

t.test('the limits and defaults that pages name are those of the code', async (t) => {
  const { rateLimits } = loadConfig({})
  const app = readFileSync('src/app.ts', 'utf8')
  const seconds = (option: string) => Number(new RegExp(`${option}: ([\\d_]+)`).exec(app)![1]!.replaceAll('_', '')) / 1000
  const idle = `${SESSION_IDLE_HOURS} hours`
  const life = SESSION_SECONDS / (24 * 60 * 60)
  const large = (name: string) => constant('src/http/bodies/large-bodies.ts', name)
  const rotation = (name: string) => constant('src/plugins/encryption-keys.ts', name)
  const attempts = /FROM = \{ place: (\d+), account: (\d+), reset: (\d+) \}/.exec(
    readFileSync('src/repositories/people/attempts.ts', 'utf8'))!.slice(1).map(Number) as [number, number, number]
  const [place, account, reset] = attempts
  const said: Record<string, string[]> = {
    'docs/access.md': [`open for ${inWords(INVITATION_DAYS)} days`],
    'docs/concepts.md': [
      `opens at most ${SEARCH_LIMITS.documents} documents, and ends earlier after ${SEARCH_LIMITS.bytes / MIB} MiB of content, ${number(SEARCH_LIMITS.names)} names or ${SEARCH_LIMITS.projects} projects`,
      `at most ${SECRET_NAME_LENGTH} characters`,
      `more than ${number(MAX_NAMES)} names`,
      `at most ${YAML_LENGTH / 1024} KiB`,
      `reserved for ${FORMER_SLUG_DAYS} days`,
      `opens at most ${MAX_OPENED_VERSIONS} versions, and fewer if they are large (${constant('src/vault/documents/name-history.ts', 'MAX_BYTES') / MIB} MiB)`,
      `at most ${MATRIX_LIMITS.levels} levels, and fewer if they are large (${MATRIX_LIMITS.bytes / MIB} MiB, ${number(MATRIX_LIMITS.names)} names)`
    ],
    'docs/console.md': [
      `After ${constant('console/ui.tsx', 'SHOWN_MS') / 1000} seconds`,
      `After ${constant('console/held-keys.ts', 'FORGET_AFTER_MS') / 60_000} minutes without use`,
      `a token that lives ${inWords(PRIVILEGED_SECONDS / 60)} minutes`
    ],
    'docs/encryption.md': [
      `${rateLimits.keyRotation} rotations an hour`,
      `${rotation('BODY_LIMIT_FACTOR')} times as large as \`BODY_LIMIT\` (at most ${rotation('MAX_BYTES') / MIB} MiB), and must arrive within ${seconds('requestTimeout')} seconds`,
      `handles ${inWords(large('MAX_SLOTS'))} bodies above \`BODY_LIMIT\` at a time, ${inWords(large('MAX_SLOTS_OF_ORGANIZATION'))} for each organization`,
      `${constant('src/gate.ts', 'QUEUE_TIMEOUT_MS') / 1000} seconds at most (503)`,
      `${inWords(constant('src/crypto/keyring.ts', 'CACHE_MILLISECONDS') / 60_000)} minutes at most`,
      `${rateLimits.longOperations} changes an hour (\`RATE_LIMIT_LONG_OPERATIONS\`)`
    ],
    'docs/oauth.md': [
      `${number(REDIRECT_LENGTH)} characters`, `up to ${number(STATE_LENGTH)} bytes`,
      `at most ${MAX_GRANTS} grants`, `lasts ${idle} without use and ${life} days at most`,
      `Within ${LIFETIMES.code} seconds`, `more than ${constant('src/plugins/oauth/body.ts', 'MAX_BODY_BYTES') / 1024} KiB`,
      `\`max_age\` of at most ${PRIVILEGED_SECONDS}`, `ends ${LIFETIMES.grantDays} days after its last sign-in`,
      `${rateLimits.oauth} requests a minute to the token endpoint`,
      `${LIFETIMES.refreshIdleDays} days without a refresh, or ${LIFETIMES.grantDays} days in all`
    ],
    'docs/requests.md': [
      `${rateLimits.api} requests a minute, or more by its plan`,
      `${rateLimits.oauth} requests a minute for OAuth tokens`, `${2 * rateLimits.oauth} attempts to sign in`,
      `at most ${DRY_RUN_LIMITS.levels} levels and ${DRY_RUN_LIMITS.bytes / MIB} MiB`
    ],
    'docs/recipes.md': [`${rateLimits.api} requests a minute by default`],
    'docs/operations/billing.md': [
      `every ${inWords(constant('src/jobs/usage.ts', 'RECORD_EVERY') / 1000)} seconds`, `last ${DAYS_OF_USAGE} days`
    ],
    'docs/operations/configure.md': [
      `within ${seconds('requestTimeout')} seconds`, `idle connections open for ${seconds('keepAliveTimeout')} seconds`,
      `after ${seconds('connectionTimeout')} seconds without activity`
    ],
    'docs/operations/keys.md': [
      `1 to ${number(WRAPPED_BYTES)} bytes`,
      `tries a command ${inWords(constant('src/commands/common/key-provider.ts', 'MAX_ATTEMPTS'))} times`
    ],
    'docs/operations/limits.md': [
      `${number(constant('src/repositories/operations/idempotency.ts', 'MAX_RESPONSES'))} at once`,
      `more than ${number(MAX_LEVELS_OF_SHORT_DELETION)} levels`
    ],
    'docs/operations/monitor.md': [`beyond ${constant('src/http/observability/log.ts', 'MAX_UNREAD_BYTES') / MIB} MiB`],
    'docs/operations/people.md': [
      `${idle} without use or ${life} days`, `within ${RESET_MINUTES} minutes`, `${MAX_TO_ADDRESS} mails an hour`,
      `${MAX_OF_ONE} queued mails`, `with ${inWords(constant('src/vault/keys/second-factor.ts', 'RECOVERY_CODES'))} recovery codes`
    ],
    'SECURITY.md': [
      `404 for ${FORMER_SLUG_DAYS} days`, `${MAX_TO_ADDRESS} mails an hour`, `${place} in 15 minutes; each further one`,
      `| ${account} in half an hour |`, `| ${reset} in half an hour;`, `${2 * rateLimits.oauth} a minute (twice \`RATE_LIMIT_OAUTH\`)`,
      `within ${RESET_MINUTES} minutes`
    ]
  }
  for (const [path, sentences] of Object.entries(said)) {
    const { text } = readDoc(path)
    t.same(sentences.filter((sentence) => !text.includes(sentence)), [], path)
  }
})

import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { Type, type Static, type TSchema } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { ADDRESS_LENGTH, NOTE_LENGTH, TAX_ID_LENGTH, type Party } from '../schemas/billing.ts'
import { PLANS, type PlanName } from '../schemas/organizations.ts'
import { NAME_LENGTH, OneOf } from '../schemas/shapes.ts'
import type { TracesConfig } from './telemetry/traces.ts'

/** The configuration is invalid. The message is one line for the operator and never contains a secret. */
export class ConfigError extends Error {
  override name = 'ConfigError'
}

const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const
const CLIENT_ADDRESSES = ['off', 'network', 'full'] as const
const KIBIBYTE = 1024
const MEBIBYTE = 1024 * KIBIBYTE

const PORT_ALLOWED = 'a whole number from 0 to 65535 (0 picks a free port)'
/** Maximum bytes of a wrapped master key: with base64 and its id, it must fit into a key file. */
export const WRAPPED_BYTES = 3000
const MASTER_KEY_ALLOWED = '<id>:<base64 of 32 bytes>, where id is 1 to 32 letters, digits, ".", "_" or "-"; ' +
  'create one with: echo "k1:$(openssl rand -base64 32)"; or the output of `key new`'
const COMMAND_ALLOWED = 'a program and its arguments separated by spaces, or a JSON array of strings if one contains spaces or ' +
  'shell metacharacters; at most 64 words of at most 4096 characters'

const Credential = Type.RegExp(/^\P{C}{1,512}$/u)
/** A mail server. TLS from the first byte when `secure`; `auth` only when a user and a password were given. */
const Smtp = Type.Object({
  host: Type.String({ pattern: '^[A-Za-z0-9._:-]{1,255}$' }),
  port: Type.Integer({ minimum: 1, maximum: 65535 }),
  secure: Type.Boolean(),
  auth: Type.Optional(Type.Object({ user: Credential, pass: Credential }))
})
/** A Redis server, over TLS where `tls`. */
const Redis = Type.Object({
  host: Type.String({ pattern: '^[A-Za-z0-9._:-]{1,255}$' }),
  port: Type.Integer({ minimum: 1, maximum: 65535 }),
  tls: Type.Boolean(),
  db: Type.Integer({ minimum: 0, maximum: 65535 }),
  username: Type.Optional(Credential),
  password: Type.Optional(Credential)
})
// `Type.RegExp` would convert an array to text and accept it.
const Command = Type.Array(Type.String({ pattern: '^[^\\0]{1,4096}$' }), { minItems: 1, maxItems: 64 })
/** The sender of e-mails; the name may be empty. */
const Sender = Type.Object({
  name: Type.RegExp(/^[^<>"\p{C}]{0,100}$/u),
  address: Type.RegExp(/^[^\s@<>",;:\p{C}]{1,64}@[^\s@<>",;:\p{C}]{1,255}$/u)
})

interface Variable<T extends TSchema = TSchema> {
  /** Validates the parsed value; `read` only parses. */
  schema: T
  read: (text: string) => unknown
  /** Ends the line "… is allowed". */
  allowed: string
  /** Redacts the given text for messages; by default, removes credentials from URLs. */
  show?: (text: string) => string
}

function variable<T extends TSchema> (
  schema: T, read: Variable['read'], allowed: string, show?: Variable['show']
): Variable<T> {
  return { schema, read, allowed, ...show && { show } }
}

const integer = (minimum: number, maximum: number, allowed = `a whole number from ${minimum} to ${maximum}`) =>
  variable(Type.Integer({ minimum, maximum }), readInteger, allowed)
const word = <const T extends readonly string[]> (words: T) => variable(OneOf(words), (text) => text, words.join(', '))
const text = (most: number) => variable(
  Type.RegExp(new RegExp(`^[^\\p{Cc}]{1,${most}}$`, 'u')), (text) => text.trim(),
  `1 to ${most} characters, without control characters; | starts a new line`
)
const onOrOff = () => variable(Type.Boolean(), readSwitch, 'on, off, 1, 0, true or false')

/** All environment variables. */
const VARIABLES = {
  HOST: variable(Type.String({ pattern: '^[A-Za-z0-9._:-]{1,255}$' }), (text) => text,
    'a host name or an IP address without port, as in 127.0.0.1'),
  PORT: integer(0, 65535, PORT_ALLOWED),
  DATABASE_URL: variable(Type.String(), readDatabaseUrl,
    'postgres://user:password@host:5432/database; percent-encode special characters of user and password', showScheme),
  DATABASE_POOL: integer(2, 100),
  DATABASE_WAIT: integer(0, 3600, 'a whole number of seconds from 0 to 3600'),
  WORKERS: integer(1, 64),
  DATA_DIR: variable(Type.String({ pattern: '\\S' }), (text) => text, 'a directory'),
  PUBLIC_URL: variable(Type.String(), readPublicUrl,
    'an http:// or https:// address in normal form (lower-case host, no default port), ' +
    'without user, query, fragment or trailing slash, as in https://secrets.example.com'),
  TRUST_PROXY: variable(Type.Union([Type.Literal(false), Type.Array(Type.String(), { minItems: 1 })]), readProxies,
    'off, or a comma-separated list of IP addresses, networks as in 10.0.0.0/8, loopback, linklocal and uniquelocal'),
  SMTP_URL: variable(Smtp, readSmtpUrl,
    'smtp://user:password@host:587 or smtps://user:password@host:465; percent-encode special characters of user and password', showScheme),
  MAIL_FROM: variable(
    Sender, readSender, 'an address, or a name with an address as in Strongroom <no-reply@example.com>'
  ),
  REDIS_URL: variable(Redis, readRedisUrl,
    'redis://user:password@host:6379/0 or rediss://user:password@host:6379/0; percent-encode special characters of user and password', showScheme),
  MASTER_KEY: variable(Type.String(), readMasterKey, MASTER_KEY_ALLOWED, hide),
  MASTER_KEY_FILE: variable(Type.String({ pattern: '\\S' }), (text) => text, 'the path of a file'),
  MASTER_KEYS_PREVIOUS: variable(Type.Array(Type.String()), (text) => readList(text, readMasterKey),
    'a comma-separated list of <id>:<base64 of 32 bytes>', hide),
  MASTER_KEY_WRAP_COMMAND: variable(Command, readCommand, COMMAND_ALLOWED, hide),
  MASTER_KEY_UNWRAP_COMMAND: variable(Command, readCommand, COMMAND_ALLOWED, hide),
  MASTER_KEY_COMMAND_TIMEOUT: integer(1, 120, 'a whole number of seconds from 1 to 120'),
  RATE_LIMIT_API: integer(0, 1_000_000),
  RATE_LIMIT_OAUTH: integer(0, 1_000_000),
  RATE_LIMIT_KEY_ROTATION: integer(0, 1_000_000),
  RATE_LIMIT_BILLING: integer(0, 1_000_000),
  RATE_LIMIT_LONG_OPERATIONS: integer(0, 1_000_000),
  DEFAULT_PLAN: word(PLANS),
  INVOICE_SELLER_NAME: text(NAME_LENGTH),
  INVOICE_SELLER_ADDRESS: text(ADDRESS_LENGTH),
  INVOICE_SELLER_TAX_ID: text(TAX_ID_LENGTH),
  INVOICE_NOTE: text(NOTE_LENGTH),
  INVOICE_PAYMENT_DETAILS: text(1000),
  INVOICE_DUE_DAYS: integer(0, 365),
  SHUTDOWN_DELAY: integer(0, 300, 'a whole number of seconds from 0 to 300'),
  BODY_LIMIT: variable(Type.Integer({ minimum: 16 * KIBIBYTE, maximum: 64 * MEBIBYTE }), readSize,
    '16 KiB to 64 MiB, as bytes or as in 512KiB or 2 MiB'),
  ALLOW_INSECURE_PUBLIC_URL: onOrOff(),
  ALLOW_REVEALING_KEY_PROOF: onOrOff(),
  DOCS_UI: onOrOff(),
  LOG_LEVEL: word(LOG_LEVELS),
  LOG_CLIENT_ADDRESS: word(CLIENT_ADDRESSES),
  METRICS_TOKEN: variable(Type.RegExp(/^[\x21-\x7e]{16,512}$/), (text) => text,
    '16 to 512 visible ASCII characters; create one with: openssl rand -hex 32', hide),
  OTEL_EXPORTER_OTLP_ENDPOINT: variable(Type.String(), readReceiver,
    'an http:// or https:// address without user, query, fragment or trailing slash, as in http://127.0.0.1:4318',
    showScheme),
  OTEL_EXPORTER_OTLP_HEADERS: variable(Type.Record(Type.String(), Type.String()), readHeaders,
    'a comma-separated list of name=value, with percent-encoded values, as in x-api-key=…', hide),
  OTEL_SERVICE_NAME: text(NAME_LENGTH),
  OTEL_TRACES_SAMPLER_ARG: variable(Type.Number({ minimum: 0, maximum: 1 }), readShare, 'a share from 0 to 1, as in 0.1'),
  CORS_ORIGINS: variable(Type.Array(Type.String()), (text) => readList(text, readOrigin),
    'a comma-separated list of exact origins, as in https://app.example.com (neither * nor null)')
}

type Name = keyof typeof VARIABLES
type Given = { [N in Name]?: Static<(typeof VARIABLES)[N]['schema']> }

/** The commands that wrap and unwrap master keys. */
export interface KeyCommands {
  /** A program and its arguments; only needed for new keys. */
  wrap: string[] | undefined
  unwrap: string[] | undefined
  /** Seconds. */
  timeout: number
  /** The environment of the commands, without variables of the service. */
  env: Record<string, string>
}

/** The configuration. Only `cli.ts` reads the environment. */
export interface Config {
  host: string
  /** 0 means that the system picks a free port. */
  port: number
  /** Without it the embedded database in `dataDir` is used. */
  databaseUrl: string | undefined
  /** Connections of each process. */
  databasePool: number
  /** Seconds that a start waits for an unavailable PostgreSQL. */
  databaseWait: number
  /** Processes that share the port; above 1 only with a `databaseUrl`. */
  workers: number
  dataDir: string
  /** By default, the listening address. Never ends with a slash. */
  publicUrl: string | undefined
  /** Addresses, networks and names of Fastify's `trustProxy`; never `true`. */
  trustProxy: false | string[]
  /** Without it no mail is sent. */
  smtp: Static<typeof Smtp> | undefined
  /** Without it an address at the host of `publicUrl`. */
  mailFrom: Static<typeof Sender> | undefined
  /** Counts limits for all instances; without it, each instance counts separately. */
  redis: Static<typeof Redis> | undefined
  /**
   * `id:base64`, or wrapped `id:exec:base64`; validated. At most one of `masterKey` and `masterKeyFile` is set; with a
   * `databaseUrl`, exactly one.
   */
  masterKey: string | undefined
  /** Not read yet: see `readKeyFile`. */
  masterKeyFile: string | undefined
  /** In the same forms, validated, with unique ids. */
  masterKeysPrevious: string[]
  /** Undefined when no command is set. */
  keyCommands: KeyCommands | undefined
  /** Calls a window (a minute; an hour for `keyRotation`); 0 turns a limit off. */
  rateLimits: { api: number, oauth: number, keyRotation: number, billing: number, longOperations: number }
  defaultPlan: PlanName
  /** Fixed contents of every invoice. */
  invoices: {
    /** Without a name, no invoices are created. */
    seller: Party
    /** Additional text in lines; may be empty. */
    note: string
    /** Payment instructions in lines; may be empty. */
    paymentDetails: string
    dueDays: number
  }
  /** Seconds between failing readiness and refusing requests on shutdown. */
  shutdownDelay: number
  /** Bytes. */
  bodyLimit: number
  allowRevealingKeyProof: boolean
  docsUi: boolean
  logLevel: (typeof LOG_LEVELS)[number]
  /** The part of client addresses in the log: `network` is IPv4 /24, IPv6 /64. */
  logClientAddress: (typeof CLIENT_ADDRESSES)[number]
  corsOrigins: string[]
  /** The bearer token for `/metrics`; without it, metrics are disabled. */
  metricsToken: string | undefined
  /** Undefined without an `OTEL_EXPORTER_OTLP_ENDPOINT`: tracing is disabled. */
  traces: TracesConfig | undefined
}

/**
 * Reads and checks every variable; an empty one counts as not set. Throws a `ConfigError` that names the first wrong
 * variable, what was given (nothing of a secret) and what is allowed, in one line.
 */
export function loadConfig (env: NodeJS.ProcessEnv): Config {
  const given = readVariables(env)
  checkPublicUrl(given)
  checkMasterKeys(given)
  checkWorkers(given)
  return {
    host: given.HOST ?? '127.0.0.1',
    port: given.PORT ?? 8080,
    databaseUrl: given.DATABASE_URL,
    databasePool: given.DATABASE_POOL ?? 10,
    databaseWait: given.DATABASE_WAIT ?? 60,
    workers: given.WORKERS ?? 1,
    dataDir: given.DATA_DIR ?? './data',
    publicUrl: given.PUBLIC_URL,
    trustProxy: given.TRUST_PROXY ?? false,
    smtp: given.SMTP_URL,
    mailFrom: given.MAIL_FROM,
    redis: given.REDIS_URL,
    masterKey: given.MASTER_KEY,
    masterKeyFile: given.MASTER_KEY_FILE,
    masterKeysPrevious: given.MASTER_KEYS_PREVIOUS ?? [],
    keyCommands: keyCommandsOf(given, env),
    rateLimits: {
      api: given.RATE_LIMIT_API ?? 100,
      oauth: given.RATE_LIMIT_OAUTH ?? 10,
      keyRotation: given.RATE_LIMIT_KEY_ROTATION ?? 10,
      billing: given.RATE_LIMIT_BILLING ?? 10,
      longOperations: given.RATE_LIMIT_LONG_OPERATIONS ?? 60
    },
    defaultPlan: given.DEFAULT_PLAN ?? 'self-hosted',
    invoices: {
      seller: {
        name: given.INVOICE_SELLER_NAME ?? '',
        address: linesOf(given.INVOICE_SELLER_ADDRESS),
        tax_id: given.INVOICE_SELLER_TAX_ID ?? ''
      },
      note: linesOf(given.INVOICE_NOTE),
      paymentDetails: linesOf(given.INVOICE_PAYMENT_DETAILS),
      dueDays: given.INVOICE_DUE_DAYS ?? 14
    },
    shutdownDelay: given.SHUTDOWN_DELAY ?? 0,
    bodyLimit: given.BODY_LIMIT ?? 2 * MEBIBYTE,
    allowRevealingKeyProof: given.ALLOW_REVEALING_KEY_PROOF ?? false,
    docsUi: given.DOCS_UI ?? true,
    logLevel: given.LOG_LEVEL ?? 'info',
    logClientAddress: given.LOG_CLIENT_ADDRESS ?? 'network',
    corsOrigins: given.CORS_ORIGINS ?? [],
    metricsToken: given.METRICS_TOKEN,
    traces: given.OTEL_EXPORTER_OTLP_ENDPOINT === undefined
      ? undefined
      : {
          endpoint: given.OTEL_EXPORTER_OTLP_ENDPOINT,
          headers: given.OTEL_EXPORTER_OTLP_HEADERS ?? {},
          serviceName: given.OTEL_SERVICE_NAME ?? 'strongroom',
          ratio: given.OTEL_TRACES_SAMPLER_ARG ?? 1
        }
  }
}

/** Loads only the key commands, for `key new`: the other checks require an existing key. */
export function loadKeyCommands (env: NodeJS.ProcessEnv): KeyCommands | undefined {
  return keyCommandsOf(readVariables(env), env)
}

/**
 * The master key of a file: a regular file (a link to one will do, as secret mounts use them) that belongs to this
 * user or to root and that neither group nor others may touch. Refused with a `ConfigError` naming `name` otherwise.
 */
export function readKeyFile (path: string, name = 'MASTER_KEY_FILE'): string {
  return readMasterKey(readSecretFile(path, name).trim()) ??
    refuseFile(name, path, 'does not hold a master key', `one line of ${MASTER_KEY_ALLOWED}`)
}

/** The text of a file with a secret, with the same permission checks as a key file. */
export function readSecretFile (path: string, name: string): string {
  const refuse = (given: string, allowed: string) => refuseFile(name, path, given, allowed)
  let file: number
  try {
    // Without O_NONBLOCK, opening a named pipe without a writer would block.
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch (error) {
    return refuse(`cannot be read (${(error as NodeJS.ErrnoException).code})`, 'a file that this user can read')
  }
  try {
    // Check the open file, not its path: the path could be replaced in between.
    const { mode, uid, size } = fstatSync(file)
    if ((mode & constants.S_IFMT) !== constants.S_IFREG) refuse('is not a regular file', 'a regular file')
    const me = process.getuid?.()
    if (me !== undefined) {
      const bits = (mode & 0o777).toString(8).padStart(4, '0')
      if ((mode & 0o077) !== 0) refuse(`has mode ${bits}`, 'mode 0400 or 0600')
      if (uid !== me && uid !== 0) refuse(`belongs to user ${uid}`, `a file of user ${me} or of root`)
    }
    if (size > 4096) refuse(`has ${size} bytes`, 'a file of at most 4096 bytes')
    return readFileSync(file, 'utf8')
  } finally {
    closeSync(file)
  }
}

function refuseFile (name: string, path: string, given: string, allowed: string): never {
  throw new ConfigError(`${name}: ${quote(path)} ${given}; ${allowed} is allowed`)
}

/** The http address of a host, which may be an IPv6 one, and a port. */
export function httpAddress (host: string, port: number): string {
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`
}

function readVariables (env: NodeJS.ProcessEnv): Given {
  const given: Record<string, unknown> = {}
  for (const [name, { schema, read, allowed, show = redact }] of Object.entries<Variable>(VARIABLES)) {
    const text = env[name]
    if (text === undefined || text === '') continue
    const value = read(text)
    if (!Value.Check(schema, value)) throw new ConfigError(`${name} is ${show(text)}; allowed: ${allowed}`)
    given[name] = value
  }
  return given as Given
}

// Plain HTTP exposes tokens, passwords and secrets on the network, except on loopback addresses.
function checkPublicUrl ({ PUBLIC_URL, ALLOW_INSECURE_PUBLIC_URL = false }: Given) {
  if (PUBLIC_URL === undefined || PUBLIC_URL.startsWith('https:') || ALLOW_INSECURE_PUBLIC_URL) return
  if (isLoopback(new URL(PUBLIC_URL).hostname)) return
  throw new ConfigError(`PUBLIC_URL is ${redact(PUBLIC_URL)}; allowed: https://, or http:// with 127.0.0.1, [::1] or localhost. ` +
    'To allow it anyway, set ALLOW_INSECURE_PUBLIC_URL=on')
}

/** Whether the host of a URL is a loopback host. */
export function isLoopback (hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127(?:\.\d{1,3}){3}$/.test(hostname)
}

function checkMasterKeys ({ DATABASE_URL, MASTER_KEY, MASTER_KEY_FILE, MASTER_KEYS_PREVIOUS = [] }: Given) {
  if (MASTER_KEY !== undefined && MASTER_KEY_FILE !== undefined) {
    throw new ConfigError('MASTER_KEY and MASTER_KEY_FILE are both set; allowed: one of them')
  }
  if (DATABASE_URL !== undefined && MASTER_KEY === undefined && MASTER_KEY_FILE === undefined) {
    throw new ConfigError(
      'MASTER_KEY and MASTER_KEY_FILE are not set, but DATABASE_URL is; allowed: one of them with ' + MASTER_KEY_ALLOWED
    )
  }
  const ids = MASTER_KEYS_PREVIOUS.map(keyId)
  if (MASTER_KEY !== undefined) ids.push(keyId(MASTER_KEY))
  const twice = ids.find((id, index) => ids.indexOf(id) !== index)
  if (twice !== undefined) {
    throw new ConfigError(
      `MASTER_KEYS_PREVIOUS has the id ${quote(twice)} twice, or MASTER_KEY has it too; allowed: each id once`
    )
  }
}

// The commands get the environment, because cloud tools read their credentials there, but no variables of the service,
// such as the database password.
function keyCommandsOf (
  { MASTER_KEY_WRAP_COMMAND: wrap, MASTER_KEY_UNWRAP_COMMAND: unwrap, MASTER_KEY_COMMAND_TIMEOUT: timeout = 10 }: Given,
  env: NodeJS.ProcessEnv
): KeyCommands | undefined {
  if (wrap === undefined && unwrap === undefined) return undefined
  const isOwn = (name: string) => Object.hasOwn(VARIABLES, name) || name === 'NODE_OPTIONS' || /^(?:PG|OTEL_)/.test(name)
  const rest = Object.entries(env).filter((entry): entry is [string, string] =>
    entry[1] !== undefined && !isOwn(entry[0]))
  return { wrap, unwrap, timeout, env: Object.fromEntries(rest) }
}

// The embedded database runs inside one process, so several workers cannot share it.
function checkWorkers ({ DATABASE_URL, WORKERS = 1 }: Given) {
  if (WORKERS === 1 || DATABASE_URL !== undefined) return
  throw new ConfigError(
    `WORKERS is ${WORKERS}, but DATABASE_URL is not set; allowed: 1 with the embedded database, or a DATABASE_URL`
  )
}

const linesOf = (text = '') => text.split('|').map((line) => line.trim()).join('\n')

const keyId = (key: string) => key.slice(0, key.indexOf(':'))

function readInteger (text: string) {
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined
}

function readSwitch (text: string) {
  if (/^(?:1|on|true)$/i.test(text)) return true
  return /^(?:0|off|false)$/i.test(text) ? false : undefined
}

function readSize (text: string) {
  const [, digits, unit] = /^(\d{1,12}) ?(B|KiB|MiB)?$/i.exec(text) ?? []
  if (digits === undefined) return undefined
  const bytes = { b: 1, kib: KIBIBYTE, mib: MEBIBYTE }[unit?.toLowerCase() ?? 'b'] ?? 1
  return Number(digits) * bytes
}

/** Undefined when one of the members is wrong; a trailing comma is one. */
function readList (text: string, read: (member: string) => string | undefined) {
  const members = text.split(',').map((member) => read(member.trim()))
  return members.includes(undefined) ? undefined : members
}

function readMasterKey (text: string) {
  const [, exec, encoded = ''] = /^[A-Za-z0-9._-]{1,32}:(exec:)?([A-Za-z0-9+/]+={0,2})$/.exec(text) ?? []
  // Non-canonical base64 indicates truncated or mistyped text.
  const bytes = Buffer.from(encoded, 'base64')
  if (encoded === '' || bytes.toString('base64') !== encoded) return undefined
  return (exec === undefined ? bytes.length === 32 : bytes.length <= WRAPPED_BYTES) ? text : undefined
}

// Commands run without a shell, so shell metacharacters are refused.
function readCommand (text: string) {
  if (!text.trimStart().startsWith('[')) {
    return /["'`\\$|&;<>(){}*?~#!]/.test(text) ? undefined : text.trim().split(/\s+/)
  }
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

function readDatabaseUrl (text: string) {
  if (!/^postgres(?:ql)?:\/\/\S+$/.test(text)) return undefined
  // The driver takes several hosts; URL takes one.
  const url = parseUrl(text.replace(/^([^:]+:\/\/(?:[^/@]*@)?[^/,?#]*),[^/?#]*/, '$1'))
  if (!url || url.hash !== '') return undefined
  try {
    // The driver decodes these parts, and would throw a URIError without context.
    decodeURIComponent(url.username + url.password + url.pathname)
  } catch {
    return undefined
  }
  return text
}

function readPublicUrl (text: string) {
  const url = parseUrl(text)
  if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.password !== '') return undefined
  // Clients compare the issuer byte by byte, so only the normal form is accepted.
  const plain = url.search === '' && url.hash === '' && !text.endsWith('/')
  return plain && (url.href === text || url.href === `${text}/`) ? text : undefined
}

// No query: the mail library would read options from it, including one that disables certificate checks.
function readSmtpUrl (text: string) {
  const url = /^smtps?:\/\/[^\s?#]+$/.test(text) ? parseUrl(text) : undefined
  if (!url || !/^\/?$/.test(url.pathname)) return undefined
  const secure = url.protocol === 'smtps:'
  const credentials = readCredentials(url)
  return credentials && {
    ...readHost(url, secure ? 465 : 587),
    secure,
    ...(credentials.user + credentials.pass !== '' && { auth: credentials })
  }
}

// No query, as for SMTP: the library would read options from it.
function readRedisUrl (text: string) {
  const url = /^rediss?:\/\/[^\s?#]+$/.test(text) ? parseUrl(text) : undefined
  const path = /^(?:\/(\d{0,5}))?$/.exec(url?.pathname ?? '?')
  const credentials = url && readCredentials(url)
  return url && path && credentials && {
    ...readHost(url, 6379),
    tls: url.protocol === 'rediss:',
    db: Number(path[1] ?? 0),
    ...(credentials.user !== '' && { username: credentials.user }),
    ...(credentials.pass !== '' && { password: credentials.pass })
  }
}

function readHost ({ hostname, port }: URL, usual: number) {
  return { host: hostname.replace(/^\[(.*)\]$/, '$1'), port: port === '' ? usual : Number(port) }
}

function readCredentials ({ username, password }: URL) {
  try {
    return { user: decodeURIComponent(username), pass: decodeURIComponent(password) }
  } catch {
    return undefined
  }
}

function readSender (text: string) {
  const [, name = '', address = text] = /^([^<>]*) <([^<>]*)>$/.exec(text) ?? []
  return { name: name.trim(), address }
}

function readReceiver (text: string) {
  const url = parseUrl(text)
  if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.password !== '') return undefined
  return url.search === '' && url.hash === '' && !text.endsWith('/') ? text : undefined
}

// The format of W3C Baggage, as the OpenTelemetry specification requires.
function readHeaders (text: string) {
  if (text.length > 4096) return undefined
  const headers: Record<string, string> = {}
  for (const member of text.split(',')) {
    const [, name, value = ''] = /^\s*([A-Za-z0-9!#$%&'*+.^_`|~-]{1,100})\s*=\s*([\x21-\x7e]+)\s*$/.exec(member) ?? []
    if (name === undefined) return undefined
    try {
      headers[name.toLowerCase()] = decodeURIComponent(value)
    } catch {
      return undefined
    }
    if (/[^\x20-\x7e]/.test(headers[name.toLowerCase()]!)) return undefined
  }
  return headers
}

function readShare (text: string) {
  return /^(?:0|1|[01]?\.\d{1,9})$/.test(text) ? Number(text) : undefined
}

function readOrigin (text: string) {
  const url = parseUrl(text)
  return url && /^https?:$/.test(url.protocol) && url.origin === text && !text.includes('*') ? text : undefined
}

function readProxies (text: string) {
  return text === 'off' ? false : readList(text, readProxy)
}

function readProxy (text: string) {
  if (/^(?:loopback|linklocal|uniquelocal)$/.test(text)) return text
  const [, address = '', bits] = /^([^/]*)(?:\/(\d{1,3}))?$/.exec(text) ?? []
  // Prefix /0 would trust every proxy: any client could then choose the address that rate limits count.
  const fits = bits === undefined || (Number(bits) > 0 && Number(bits) <= (isIP(address) === 4 ? 32 : 128))
  return isIP(address) !== 0 && !address.includes('%') && fits ? text : undefined
}

function parseUrl (text: string) {
  return URL.canParse(text) ? new URL(text) : undefined
}

function hide () {
  return 'invalid (the value is not shown)'
}

/** Shows only the scheme: in an invalid URL, the password may be anywhere. */
function showScheme (text: string) {
  const [scheme] = /^[a-z][a-z0-9+.-]{0,19}:\/\//i.exec(text) ?? []
  return scheme ? `${quote(`${scheme}…`)} (the rest is not shown)` : hide()
}

function redact (text: string) {
  return quote(text.replace(/\/\/[^/\s]*@/g, '//…@'))
}

/** The text in quotes, on one line and not too long for one. */
function quote (text: string) {
  const short = text.length > 120 ? `${text.slice(0, 120)}…` : text
  return JSON.stringify(short).replace(/[\u007f-\u009f\u2028\u2029]/g, (character) =>
    `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

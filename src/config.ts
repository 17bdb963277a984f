import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { createSecureContext } from 'node:tls'
import { Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { distance } from 'fastest-levenshtein'
import { ADDRESS_LENGTH, NOTE_LENGTH, TAX_ID_LENGTH } from '../schemas/billing.ts'
import { PLANS } from '../schemas/organizations.ts'
import { NAME_LENGTH } from '../schemas/shapes.ts'

/** The configuration is invalid. The message is one line for the operator and never contains a secret. */
export class ConfigError extends Error {
  override name = 'ConfigError'
}

function refuse (line: string): never {
  throw new ConfigError(line)
}

const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const
const CLIENT_ADDRESSES = ['off', 'network', 'full'] as const
const KIBIBYTE = 1024
const MEBIBYTE = 1024 * KIBIBYTE

/** Maximum bytes of a wrapped master key, so that its base64 form and its id fit into a key file of 4096 bytes. */
export const WRAPPED_BYTES = 3000
const MASTER_KEY_ALLOWED = '<id>:<base64 of 32 bytes>, where id is 1 to 32 letters, digits, ".", "_" or "-"; ' +
  'create one with: echo "k1:$(openssl rand -base64 32)"; or the output of `key new`'

/** The variables of the rate limits, with their defaults (S-14.2). */
export const RATE_LIMITS = {
  api: { variable: 'RATE_LIMIT_API', byDefault: 100 },
  oauth: { variable: 'RATE_LIMIT_OAUTH', byDefault: 10 },
  keyRotation: { variable: 'RATE_LIMIT_KEY_ROTATION', byDefault: 10 },
  billing: { variable: 'RATE_LIMIT_BILLING', byDefault: 10 },
  longOperations: { variable: 'RATE_LIMIT_LONG_OPERATIONS', byDefault: 60 }
} as const

const HOST = /^[A-Za-z0-9._:-]{1,255}$/
const Command = Type.Array(Type.String({ pattern: '^[^\\0]{1,4096}$' }), { minItems: 1, maxItems: 64 })

interface Variable<T> {
  /** Returns the value; undefined if the text is invalid. */
  read: (text: string) => T | undefined
  /** Shown after `allowed:` in the error message. */
  allowed: string
  /** Returns the text for error messages, without secrets. */
  show: (text: string) => string
}

const variable = <T>(read: Variable<T>['read'], allowed: string, show = redact): Variable<T> => ({ read, allowed, show })
const matching = (pattern: RegExp, allowed: string, show = redact) =>
  variable((text) => pattern.test(text) ? text : undefined, allowed, show)
const integer = (minimum: number, maximum: number, allowed = `a whole number from ${minimum} to ${maximum}`) =>
  variable((text) => /^\d{1,15}$/.test(text) ? within(minimum, maximum, Number(text)) : undefined, allowed)
const seconds = (minimum: number, maximum: number) =>
  integer(minimum, maximum, `a whole number of seconds from ${minimum} to ${maximum}`)
const word = <const T extends string>(words: readonly T[]) =>
  variable((text) => words.find((word) => word === text), words.join(', '))
const text = (most: number) => variable((text) => {
  const trimmed = text.trim()
  return new RegExp(`^[^\\p{Cc}]{1,${most}}$`, 'u').test(trimmed) ? trimmed : undefined
}, `1 to ${most} characters, without control characters; | starts a new line`)
const onOrOff = variable(readSwitch, 'on, off, 1, 0, true or false')
const perWindow = integer(0, 1_000_000)
const command = variable(readCommand, 'a program and its arguments separated by spaces, or a JSON array of strings if one contains spaces or shell metacharacters; at most 64 words of at most 4096 characters', hide)

/** The configuration. Only `cli.ts` reads the environment. */
export type Config = ReturnType<typeof loadConfig>

export type KeyCommands = NonNullable<Config['keyCommands']>

/** A host or network of OUTGOING_ALLOW. */
export interface Destination {
  /** A name in lower case, or an address. */
  host: string
  /** The bits of the network; undefined for a name. */
  bits: number | undefined
  /** Undefined: all ports. */
  port: number | undefined
}

/**
 * Parses and validates the variables; an empty variable counts as not set. Throws a ConfigError for the first invalid
 * variable, with its redacted value and the allowed values.
 */
export function loadConfig (env: NodeJS.ProcessEnv) {
  const { allowInsecurePublicUrl, ...config } = readVariables(env)
  if (!allowInsecurePublicUrl) checkPublicUrl(config.publicUrl)
  checkMasterKeys(config)
  // The embedded database runs inside one process, so several workers cannot share it.
  if (config.workers !== 1 && config.databaseUrl === undefined) {
    refuse(`WORKERS is ${config.workers}, but DATABASE_URL is not set; allowed: 1 with the embedded database, or a DATABASE_URL`)
  }
  return config
}

/** Returns the key commands for `key new`. Skips the checks of `loadConfig`, because there is no master key yet. */
export function loadKeyCommands (env: NodeJS.ProcessEnv): Config['keyCommands'] {
  return readVariables(env).keyCommands
}

const MAX_EDITS = 2
// A short name allows fewer edits, because many unrelated words are within two edits of a short name.
const LETTERS_PER_EDIT = 4

/** A warning for each set variable that is unknown, but is named like a known variable. Never contains a value. */
export function unknownVariables (env: NodeJS.ProcessEnv): string[] {
  const own = new Set<string>()
  readVariables({}, own)
  return Object.entries(env).filter(([name, value]) => value && !own.has(name)).flatMap(([name]) => {
    const nearest = [...own].find((known) =>
      distance(name.toUpperCase(), known) <= Math.min(MAX_EDITS, known.length / LETTERS_PER_EDIT))
    return nearest === undefined ? [] : [`${quote(name)} is not a variable of Strongroom: did you mean ${nearest}?`]
  })
}

/** @param own receives the names of all variables */
function readVariables (env: NodeJS.ProcessEnv, own = new Set<string>()) {
  function read<T> (name: string, variable: Variable<T>): T | undefined {
    own.add(name)
    const text = env[name]
    if (text === undefined || text === '') return undefined
    return variable.read(text) ?? refuse(`${name} is ${variable.show(text)}; allowed: ${variable.allowed}`)
  }
  const readLimit = (setting: keyof typeof RATE_LIMITS): number =>
    read(RATE_LIMITS[setting].variable, perWindow) ?? RATE_LIMITS[setting].byDefault

  const config = {
    host: read('HOST', matching(HOST, 'a host name or an IP address without port, as in 127.0.0.1')) ?? '127.0.0.1',
    port: read('PORT', integer(0, 65535, 'a whole number from 0 to 65535 (0 picks a free port)')) ?? 8080,
    /** If not set, the embedded database in `dataDir` is used. */
    databaseUrl: read('DATABASE_URL', variable(readDatabaseUrl,
      'postgres://user:password@host:5432/database; percent-encode special characters of user, password and database', showScheme)),
    /** Maximum database connections of each process. */
    databasePool: read('DATABASE_POOL', integer(2, 100)) ?? 10,
    /** Seconds that a start waits for an unavailable PostgreSQL. */
    databaseWait: read('DATABASE_WAIT', seconds(0, 3600)) ?? 60,
    /** Number of worker processes, which share the port. More than 1 requires a `databaseUrl`. */
    workers: read('WORKERS', integer(1, 64)) ?? 1,
    dataDir: read('DATA_DIR', matching(/\S/, 'a directory')) ?? './data',
    /** If not set, the listening address is used. Never ends with a slash. */
    publicUrl: read('PUBLIC_URL', variable(readPublicUrl,
      'an http:// or https:// address in normal form (lower-case host, no default port), ' +
      'without user, query, fragment or trailing slash, as in https://secrets.example.com')),
    allowInsecurePublicUrl: read('ALLOW_INSECURE_PUBLIC_URL', onOrOff) ?? false,
    /** Fastify's `trustProxy`: false, or a list of addresses, networks, and names of networks such as `loopback`. */
    trustProxy: read('TRUST_PROXY', variable((text) => text === 'off' ? false : readList(text, readProxy),
      'off, or a comma-separated list of IP addresses, networks as in 10.0.0.0/8, loopback, linklocal and uniquelocal')) ?? false,
    /** If not set, no mail is sent. */
    smtp: read('SMTP_URL', variable(readSmtpUrl,
      'smtp://user:password@host:587 or smtps://user:password@host:465; percent-encode special characters of user and password', showScheme)),
    /** The sender of mails; its name may be empty. If not set, an address at the host of `publicUrl` is used. */
    mailFrom: read('MAIL_FROM', variable(readSender,
      'an address, or a name with an address as in Strongroom <no-reply@example.com>')),
    /** The Redis server that counts rate limits for all instances. If not set, each instance counts separately. */
    redis: read('REDIS_URL', variable(readRedisUrl,
      'redis://user:password@host:6379/0 or rediss://user:password@host:6379/0; percent-encode special characters of user and password', showScheme)),
    /**
     * `id:base64`, or `id:exec:base64` for a wrapped key. At most one of `masterKey` and `masterKeyFile` is set. With a
     * `databaseUrl`, exactly one of them is set.
     */
    masterKey: read('MASTER_KEY', variable(readMasterKey, MASTER_KEY_ALLOWED, hide)),
    /** The path of a file for `readKeyFile`. */
    masterKeyFile: read('MASTER_KEY_FILE', matching(/\S/, 'the path of a file')),
    /** Keys in the format of `masterKey`, with unique ids. */
    masterKeysPrevious: read('MASTER_KEYS_PREVIOUS', variable((text) => readList(text, readMasterKey),
      'a comma-separated list of <id>:<base64 of 32 bytes>', hide)) ?? [],
    /**
     * Base values of the limits in `http/limits/limits.ts`, in requests per minute or hour (stated for each limit in
     * that file). 0 disables the limits with this base value.
     */
    rateLimits: {
      api: readLimit('api'),
      oauth: readLimit('oauth'),
      keyRotation: readLimit('keyRotation'),
      billing: readLimit('billing'),
      longOperations: readLimit('longOperations')
    },
    defaultPlan: read('DEFAULT_PLAN', word(PLANS)) ?? 'self-hosted',
    /** Settings for all invoices. Texts may have several lines. */
    invoices: {
      /** If the name is empty, only invoices whose amount after the discount is 0 can be issued. */
      seller: {
        name: read('INVOICE_SELLER_NAME', text(NAME_LENGTH)) ?? '',
        address: linesOf(read('INVOICE_SELLER_ADDRESS', text(ADDRESS_LENGTH))),
        tax_id: read('INVOICE_SELLER_TAX_ID', text(TAX_ID_LENGTH)) ?? ''
      },
      note: linesOf(read('INVOICE_NOTE', text(NOTE_LENGTH))),
      paymentDetails: linesOf(read('INVOICE_PAYMENT_DETAILS', text(1000))),
      dueDays: read('INVOICE_DUE_DAYS', integer(0, 365)) ?? 14
    },
    outgoing: {
      /** Where outgoing requests may connect to although the address is not public. */
      allow: read('OUTGOING_ALLOW', variable((text) => readList(text, readDestination),
        'a comma-separated list of hosts and networks, each with or without a port, as in git.example.com, 10.0.0.0/8:443 or [fd00::/8]:443')) ?? [],
      /** Certificates in PEM that outgoing requests trust in addition to the public authorities. */
      authorities: read('OUTGOING_CA', variable(readAuthorities, 'the path of a file with certificates in PEM'))
    },
    /** Seconds after the start of a shutdown during which readiness fails but requests are still accepted. */
    shutdownDelay: read('SHUTDOWN_DELAY', seconds(0, 300)) ?? 0,
    /** Bytes. */
    bodyLimit: read('BODY_LIMIT', variable((text) => within(16 * KIBIBYTE, 64 * MEBIBYTE, readSize(text)),
      '16 KiB to 64 MiB, as bytes or as in 512KiB or 2 MiB')) ?? 2 * MEBIBYTE,
    allowRevealingKeyProof: read('ALLOW_REVEALING_KEY_PROOF', onOrOff) ?? false,
    docsUi: read('DOCS_UI', onOrOff) ?? true,
    /** Whether the console is served, and its OAuth client is accepted. */
    console: read('CONSOLE', onOrOff) ?? true,
    logLevel: read('LOG_LEVEL', word(LOG_LEVELS)) ?? 'info',
    /** How client addresses are logged: `network` logs the /24 (IPv4) or /64 (IPv6) network of an address. */
    logClientAddress: read('LOG_CLIENT_ADDRESS', word(CLIENT_ADDRESSES)) ?? 'network',
    corsOrigins: read('CORS_ORIGINS', variable((text) => readList(text, readOrigin),
      'a comma-separated list of exact origins, as in https://app.example.com (neither * nor null)')) ?? [],
    /** The bearer token for `/metrics`; without it, metrics are disabled. */
    metricsToken: read('METRICS_TOKEN', matching(/^[\x21-\x7e]{16,512}$/,
      '16 to 512 visible ASCII characters; create one with: openssl rand -hex 32', hide))
  }
  const endpoint = read('OTEL_EXPORTER_OTLP_ENDPOINT', variable((text) => readHttpUrl(text) && text,
    'an http:// or https:// address without user, query, fragment or trailing slash, as in http://127.0.0.1:4318',
    showScheme))
  const traces = {
    headers: read('OTEL_EXPORTER_OTLP_HEADERS', variable(readHeaders,
      'a comma-separated list of name=value, with percent-encoded values, as in x-api-key=…', hide)) ?? {},
    serviceName: read('OTEL_SERVICE_NAME', text(NAME_LENGTH)) ?? 'strongroom',
    ratio: read('OTEL_TRACES_SAMPLER_ARG', variable(readShare, 'a share from 0 to 1, as in 0.1')) ?? 1
  }
  const commands = {
    /** A program and its arguments. Needed only to create a wrapped master key. */
    wrap: read('MASTER_KEY_WRAP_COMMAND', command),
    unwrap: read('MASTER_KEY_UNWRAP_COMMAND', command),
    /** Seconds. */
    timeout: read('MASTER_KEY_COMMAND_TIMEOUT', seconds(1, 120)) ?? 10
  }
  const hasCommand = commands.wrap !== undefined || commands.unwrap !== undefined
  return {
    ...config,
    /** Without an endpoint, tracing is disabled. */
    traces: endpoint === undefined ? undefined : { endpoint, ...traces },
    keyCommands: hasCommand ? { ...commands, env: environmentOfCommands(env, own) } : undefined
  }
}

// The environment of key commands. These commands, such as cloud tools, read their credentials from the environment.
// Excludes the variables of the service, such as the database password.
function environmentOfCommands (env: NodeJS.ProcessEnv, own: ReadonlySet<string>): Record<string, string> {
  const entries = Object.entries(env).filter((entry): entry is [string, string] => {
    const [name, value] = entry
    return value !== undefined && !own.has(name) && name !== 'NODE_OPTIONS' && !/^(?:PG|OTEL_)/.test(name)
  })
  return Object.fromEntries(entries)
}

/** Reads a master key with `readSecretFile`. Throws a ConfigError if the file does not contain a master key. */
export function readKeyFile (path: string, name = 'MASTER_KEY_FILE'): string {
  return readMasterKey(readSecretFile(path, name).trim()) ??
    refuseFile(name, path, 'does not hold a master key', `one line of ${MASTER_KEY_ALLOWED}`)
}

/**
 * Reads a regular file of at most 4096 bytes; symbolic links are followed, because secret mounts use them. Throws a
 * ConfigError for any other file, for a file that cannot be read, if neither this user nor root owns the file, or if
 * its group or others have any permission.
 *
 * @param name the variable or option that is the source of the path, for error messages
 */
export function readSecretFile (path: string, name: string): string {
  const check = (isAllowed: boolean, given: string, allowed: string) => {
    if (!isAllowed) refuseFile(name, path, given, allowed)
  }
  let file: number
  try {
    // Without O_NONBLOCK, opening a named pipe without a writer would block.
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    return code === 'ENOENT'
      ? refuse(`${name}: ${quote(path)} does not exist. Correct the path, or restore the file from where you keep it`)
      : refuseFile(name, path, `cannot be read (${code})`, 'a file that this user can read')
  }
  try {
    // Check the open file, because the file at this path could be replaced after a check of the path.
    const { mode, uid, size } = fstatSync(file)
    check((mode & constants.S_IFMT) === constants.S_IFREG, 'is not a regular file', 'a regular file')
    const me = process.getuid?.()
    if (me !== undefined) {
      const bits = (mode & 0o777).toString(8).padStart(4, '0')
      check((mode & 0o077) === 0, `has mode ${bits}`, 'mode 0400 or 0600')
      check(uid === me || uid === 0, `belongs to user ${uid}`, `a file of user ${me} or of root`)
    }
    check(size <= 4096, `has ${size} bytes`, 'a file of at most 4096 bytes')
    return readFileSync(file, 'utf8')
  } finally {
    closeSync(file)
  }
}

function refuseFile (name: string, path: string, given: string, allowed: string): never {
  refuse(`${name}: ${quote(path)} ${given}; ${allowed} is allowed`)
}

/**
 * Returns the http URL under which this machine can open a host and a port. Replaces a wildcard address, on which the
 * service listens on every address, by the loopback address. Adds brackets to an IPv6 address.
 */
export function httpAddress (host: string, port: number): string {
  const written = host.includes(':') ? `[${host}]` : host
  // The URL parser normalizes other spellings of a wildcard, such as `0:0:0:0:0:0:0:0`.
  const wildcard = WILDCARDS[parseUrl(`http://${written}`)?.hostname ?? '']
  return `http://${wildcard ?? written}:${port}`
}

const WILDCARDS: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '[::]': '[::1]' }

/** Whether browsers on other machines can open the pages over plain http, so that the network can read passwords. */
export const isOpenInsecurely = ({ publicUrl, host }: Pick<Config, 'publicUrl' | 'host'>): boolean =>
  publicUrl === undefined ? !isLoopback(host) : isInsecureUrl(publicUrl)

const isInsecureUrl = (url: string) => url.startsWith('http:') && !isLoopback(new URL(url).hostname)

// Plain HTTP exposes tokens, passwords and secrets on the network, except on loopback addresses.
function checkPublicUrl (url: string | undefined) {
  if (url === undefined || !isInsecureUrl(url)) return
  refuse(`PUBLIC_URL is ${redact(url)}; allowed: https://, or http:// with 127.0.0.1, [::1] or localhost. ` +
    'To allow it anyway, set ALLOW_INSECURE_PUBLIC_URL=on')
}

/** Whether a host name or an IP address, with or without brackets, refers to this machine. */
export function isLoopback (hostname: string): boolean {
  return /^(?:localhost|\[::1\]|::1|127(?:\.\d{1,3}){3})$/.test(hostname)
}

function checkMasterKeys (
  { databaseUrl, masterKey, masterKeyFile, masterKeysPrevious }: Omit<ReturnType<typeof readVariables>, 'allowInsecurePublicUrl'>
) {
  if (masterKey !== undefined && masterKeyFile !== undefined) {
    refuse('MASTER_KEY and MASTER_KEY_FILE are both set; allowed: one of them')
  }
  if (databaseUrl !== undefined && masterKey === undefined && masterKeyFile === undefined) {
    refuse(`MASTER_KEY and MASTER_KEY_FILE are not set, but DATABASE_URL is; allowed: one of them with ${MASTER_KEY_ALLOWED}`)
  }
  const ids = [...masterKeysPrevious, ...masterKey === undefined ? [] : [masterKey]].map(keyId)
  const twice = ids.find((id, index) => ids.indexOf(id) !== index)
  if (twice !== undefined) {
    refuse(`MASTER_KEYS_PREVIOUS has the id ${quote(twice)} twice, or MASTER_KEY has it too; allowed: each id once`)
  }
}

const linesOf = (text = '') => text.split('|').map((line) => line.trim()).join('\n')

const keyId = (key: string) => key.slice(0, key.indexOf(':'))

function within (minimum: number, maximum: number, number: number | undefined) {
  return number !== undefined && number >= minimum && number <= maximum ? number : undefined
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

function readList<T> (text: string, read: (member: string) => T | undefined) {
  const members = text.split(',').map((member) => read(member.trim()))
  return members.every((member) => member !== undefined) ? members : undefined
}

function readMasterKey (text: string) {
  const [, exec, encoded = ''] = /^[A-Za-z0-9._-]{1,32}:(exec:)?([A-Za-z0-9+/]+={0,2})$/.exec(text) ?? []
  // Non-canonical base64 indicates a truncated or mistyped key.
  const bytes = Buffer.from(encoded, 'base64')
  if (encoded === '' || bytes.toString('base64') !== encoded) return undefined
  return (exec === undefined ? bytes.length === 32 : bytes.length <= WRAPPED_BYTES) ? text : undefined
}

// Commands run without a shell, so shell metacharacters are refused, except in a JSON array.
function readCommand (text: string) {
  const isJson = text.trimStart().startsWith('[')
  if (!isJson && /["'`\\$|&;<>(){}*?~#!]/.test(text)) return undefined
  try {
    const words: unknown = isJson ? JSON.parse(text) : text.trim().split(/\s+/)
    return Value.Check(Command, words) ? words : undefined
  } catch {
    return undefined
  }
}

function readDatabaseUrl (text: string) {
  if (!/^postgres(?:ql)?:\/\/\S+$/.test(text)) return undefined
  // The driver accepts several hosts, but `URL` accepts only one: check the URL with only its first host.
  // A user without a host is valid for libpq if the parameters have the host, often a Unix socket (`splitUrl`).
  const url = parseUrl(text.replace(/^([^:]+:\/\/(?:[^/@]*@)?[^/,?#]*),[^/?#]*/, '$1')
    .replace(/^([^:]+:\/\/[^/@?]*@)(?=\/[^?]*\?(?:.*&)?host=)/, '$1localhost'))
  // If user, password or path cannot be percent-decoded, the driver throws a URIError without context.
  const isDecodable = url && decode(url.username + url.password + url.pathname) !== undefined
  return isDecodable && url.hash === '' ? text : undefined
}

// Rejects a URL with user, query, fragment or trailing slash.
function readHttpUrl (text: string) {
  const url = parseUrl(text)
  return url && /^https?:$/.test(url.protocol) && url.username + url.password + url.search + url.hash === '' &&
    !text.endsWith('/')
    ? url
    : undefined
}

// PUBLIC_URL is the OAuth issuer, which clients compare byte by byte. So only the normalized URL is accepted.
function readPublicUrl (text: string) {
  const url = readHttpUrl(text)
  return url?.href === text || url?.href === `${text}/` ? text : undefined
}

// Rejects a URL with a query, because options in the query would be ignored.
function readSmtpUrl (text: string) {
  const url = /^smtps?:\/\/[^\s?#]+$/.test(text) ? parseUrl(text) : undefined
  const secure = url?.protocol === 'smtps:'
  const server = url && readServer(url, secure ? 465 : 587)
  if (!server || !/^\/?$/.test(url.pathname)) return undefined
  const { host, port, user, pass } = server
  if (user === '' && pass === '') return { host, port, secure }
  return user === '' || pass === '' ? undefined : { host, port, secure, auth: { user, pass } }
}

function readRedisUrl (text: string) {
  const url = /^rediss?:\/\/[^\s?#]+$/.test(text) ? parseUrl(text) : undefined
  const server = url && readServer(url, 6379)
  const [path, number = '0'] = /^(?:\/(\d{0,5}))?$/.exec(url?.pathname ?? '?') ?? []
  const db = within(0, 65535, Number(number))
  if (!server || path === undefined || db === undefined) return undefined
  const { host, port, user, pass } = server
  const tls = url.protocol === 'rediss:'
  return { host, port, tls, db, ...(user !== '' && { username: user }), ...(pass !== '' && { password: pass }) }
}

function readServer ({ hostname, port, username, password }: URL, usualPort: number) {
  const host = hostname.replace(/^\[(.*)\]$/, '$1')
  const user = decode(username)
  const pass = decode(password)
  if (user === undefined || pass === undefined || !HOST.test(host) || port === '0') return undefined
  if (![user, pass].every((part) => /^\P{C}{0,512}$/u.test(part))) return undefined
  return { host, port: port === '' ? usualPort : Number(port), user, pass }
}

function decode (text: string) {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

function readSender (text: string) {
  const [, name = '', address = text] = /^([^<>]*) <([^<>]*)>$/.exec(text) ?? []
  const isAllowed = /^[^<>"\p{C}]{0,100}$/u.test(name.trim()) &&
    /^[^\s@<>",;:\p{C}]{1,64}@[^\s@<>",;:\p{C}]{1,255}$/u.test(address)
  return isAllowed ? { name: name.trim(), address } : undefined
}

// The format of W3C Baggage, as the OpenTelemetry specification requires.
function readHeaders (text: string) {
  if (text.length > 4096) return undefined
  const headers: Record<string, string> = {}
  for (const member of text.split(',')) {
    const [, name, value = ''] = /^\s*([A-Za-z0-9!#$%&'*+.^_`|~-]{1,100})\s*=\s*([\x21-\x7e]+)\s*$/.exec(member) ?? []
    const decoded = decode(value)
    if (name === undefined || decoded === undefined || /[^\x20-\x7e]/.test(decoded)) return undefined
    headers[name.toLowerCase()] = decoded
  }
  return headers
}

function readShare (text: string) {
  return /^(?:0|1|[01]?\.\d{1,9})$/.test(text) ? within(0, 1, Number(text)) : undefined
}

function readOrigin (text: string) {
  const url = parseUrl(text)
  return url && /^https?:$/.test(url.protocol) && url.origin === text && !text.includes('*') ? text : undefined
}

function readProxy (text: string) {
  return /^(?:loopback|linklocal|uniquelocal)$/.test(text) || readNetwork(text) !== undefined ? text : undefined
}

// The prefix /0 would trust every proxy, so that clients could choose the address that rate limits count. In
// OUTGOING_ALLOW, it would allow every address.
function readNetwork (text: string) {
  const [, host = '', digits] = /^([^/]*)(?:\/(\d{1,3}))?$/.exec(text) ?? []
  const all = isIP(host) === 4 ? 32 : 128
  const bits = within(1, all, Number(digits ?? all))
  return isIP(host) !== 0 && !host.includes('%') && bits !== undefined ? { host, bits } : undefined
}

// An IPv6 network with a port needs brackets, because each of its parts could be a port.
function readDestination (text: string): Destination | undefined {
  const whole = readNetwork(text)
  if (whole !== undefined) return { ...whole, port: undefined }
  const [, bracketed, plain = '', digits] = /^(?:\[([^[\]]+)\]|([^[\]:]+))(?::(\d{1,5}))?$/.exec(text) ?? []
  const port = digits === undefined ? undefined : within(1, 65535, Number(digits))
  if (port === undefined && digits !== undefined) return undefined
  const network = readNetwork(bracketed ?? plain)
  if (network !== undefined) return { ...network, port }
  return /^\w[\w.-]{0,252}$/.test(plain) ? { host: plain.toLowerCase(), bits: undefined, port } : undefined
}

function readAuthorities (path: string) {
  try {
    const text = readFileSync(path, 'utf8')
    createSecureContext({ ca: text })
    return text.includes('-----BEGIN CERTIFICATE-----') ? text : undefined
  } catch {
    return undefined
  }
}

function parseUrl (text: string) {
  return URL.canParse(text) ? new URL(text) : undefined
}

function hide () {
  return 'invalid (the value is not shown)'
}

// Shows only the scheme, because the password may be anywhere in an invalid URL.
function showScheme (text: string) {
  const [scheme] = /^[a-z][a-z0-9+.-]{0,19}:\/\//i.exec(text) ?? []
  return scheme ? `${quote(`${scheme}…`)} (the rest is not shown)` : hide()
}

function redact (text: string) {
  return quote(text.replace(/\/\/[^/\s]*@/g, '//…@'))
}

// Quotes the text in one line; truncates a long text.
function quote (text: string) {
  const short = text.length > 120 ? `${text.slice(0, 120)}…` : text
  return JSON.stringify(short).replace(/[\u007f-\u009f\u2028\u2029]/g, (character) =>
    `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

import { lstatSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { readIfThere } from './files.ts'
import { Failure, Misuse, reasonOf } from './failure.ts'
import { listLogins, type Login } from './logins.ts'

/** The options that all commands have. */
export interface Options {
  url?: string, organization?: string, place?: string, insecureHttp?: string[]
}

/** A level of the hierarchy, by slugs. */
export interface Place { project: string, target: string | undefined, environment: string | undefined }

/** An API token, a login, or the token of a platform: `client` is the public id of the trust rule that accepts it. */
export type Credential = { kind: 'token', token: string, source: string } | { kind: 'login', login: Login } |
  { kind: 'workload', client: string }

/** Where the service is and who calls it. */
export interface Service { url: string, source: string, credential: Credential }

const FILE = '.strongroom.yaml'
const FILE_BYTES = 64 * 1024
interface FileSettings { path: string, url?: string, organization?: string, place?: string }
const FIELDS = ['url', 'organization', 'place']

/** The nearest `.strongroom.yaml` from the working directory upwards. */
export async function findFile (): Promise<FileSettings | undefined> {
  let start: string
  // A working directory that was removed has no file.
  try { start = process.cwd() } catch { return undefined }
  for (let folder = start; ; folder = dirname(folder)) {
    const path = join(folder, FILE)
    const text = textOf(path)
    if (text !== undefined) return readSettings(path, text)
    if (folder === dirname(folder)) return undefined
  }
}

/** The text of the file; undefined if it is not there, or in a directory that this user may not search. */
function textOf (path: string): string | undefined {
  try {
    return readIfThere(path)
  } catch (error) {
    try { lstatSync(path) } catch { return undefined }
    throw new Failure(`${path} cannot be read: ${reasonOf(error)}. Correct it, or remove it.`)
  }
}

async function readSettings (path: string, text: string): Promise<FileSettings> {
  if (Buffer.byteLength(text) > FILE_BYTES) throw new Failure(`${path} is larger than 64 KiB.`)
  const { parse } = await import('yaml')
  const settings: FileSettings = { path }
  let fields: unknown
  try { fields = parse(text) ?? {} } catch { throw new Failure(`${path} is not valid YAML.`) }
  if (typeof fields !== 'object' || Array.isArray(fields)) throw new Failure(`${path} must have the fields ${FIELDS.join(', ')}.`)
  for (const [name, value] of Object.entries(fields as object)) {
    if (!FIELDS.includes(name)) throw new Failure(`${path} has the field ${name}. It may have ${FIELDS.join(', ')}, and never a credential.`)
    if (typeof value !== 'string') throw new Failure(`The field ${name} in ${path} must be a text.`)
    settings[name as 'url'] = value
  }
  return settings
}

/** The address of a service without a slash at its end. Throws for plain http to another machine. */
export function serviceUrl (text: string, source: string, { insecureHttp = [] }: Options): string {
  if (!URL.canParse(text)) throw new Failure(`${source} is no address: write it as https://strongroom.example.`)
  const url = new URL(text)
  if (!['http:', 'https:'].includes(url.protocol) || url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
    throw new Failure(`${source} must be an http or https address without a name, a password, a query and a fragment.`)
  }
  const hosts = [...insecureHttp, ...(process.env.STRONGROOM_INSECURE_HTTP ?? '').split(',')].map((host) => host.trim().toLowerCase())
  if (url.protocol === 'http:' && !isLoopback(url.hostname) && !hosts.includes(url.hostname)) {
    throw new Failure(`${source} uses plain http to ${url.hostname}, which would show the credential to the network. Use https, or name the host with --insecure-http.`)
  }
  return url.href.replace(/\/$/, '')
}

export const isLoopback = (host: string): boolean => host === 'localhost' || host === '[::1]' || /^127(?:\.\d{1,3}){3}$/.test(host)

/**
 * Finds the service and the credential for it. `STRONGROOM_TOKEN` and the token of a platform go only to an address of
 * the command line or of the environment; an address of a file works only with a login for exactly that address.
 */
export async function findService (options: Options, file: FileSettings | undefined): Promise<Service> {
  const named = namedUrl(options)
  if (named !== undefined) {
    const url = serviceUrl(named.text, named.source, options)
    return { url, source: named.source, credential: credentialOf() ?? loginFor(url) }
  }
  if (file?.url !== undefined) {
    const url = serviceUrl(file.url, `The url in ${file.path}`, options)
    return { url, source: file.path, credential: loginFor(url, hasToken() ? ` ${ONLY_TO_NAMED_URL}` : '') }
  }
  const logins = listLogins()
  const [login] = logins
  if (login === undefined) throw new Failure('No service is known. Run `strongroom login URL`, or set STRONGROOM_URL and STRONGROOM_TOKEN.')
  if (logins.length > 1) throw new Failure(`There are several logins: choose one with --url. They are for ${logins.map(({ url }) => url).join(', ')}.`)
  if (hasToken()) throw new Failure(`No address is set: set STRONGROOM_URL or --url to the service of the token. ${ONLY_TO_NAMED_URL}`)
  return { url: serviceUrl(login.url, 'The login', options), source: 'the only login', credential: { kind: 'login', login } }
}

/** The address that the command line or the environment names. */
export function namedUrl ({ url }: Options): { text: string, source: string } | undefined {
  if (url !== undefined) return { text: url, source: '--url' }
  const { STRONGROOM_URL: text = '' } = process.env
  return text === '' ? undefined : { text, source: 'STRONGROOM_URL' }
}

function loginFor (url: string, more = ''): Credential {
  const login = listLogins().find((one) => one.url === url)
  if (login === undefined) throw new Failure(`There is no login for ${url}. Run \`strongroom login ${url}\`.${more}`)
  return { kind: 'login', login }
}

const ONLY_TO_NAMED_URL = 'STRONGROOM_TOKEN is sent only to the address in STRONGROOM_URL or --url, and so is the token of a platform.'
const hasToken = (): boolean => ['STRONGROOM_TOKEN', 'STRONGROOM_TOKEN_FILE', 'STRONGROOM_WORKLOAD'].some((name) => (process.env[name] ?? '') !== '')

function credentialOf (): Credential | undefined {
  const token = tokenOf()
  const { STRONGROOM_WORKLOAD: client = '' } = process.env
  if (client === '') return token && { kind: 'token', ...token }
  if (token !== undefined) throw new Failure(`Set STRONGROOM_WORKLOAD or ${token.source}, not both.`)
  if (organizationIn(client) === undefined) {
    throw new Failure('STRONGROOM_WORKLOAD is no public id of a trust rule, such as wl_01JQZ6V9T4M8N2K7R5W3X1Y0BC_7.')
  }
  return { kind: 'workload', client }
}

/** The id of the organization in the public id of a trust rule. */
export const organizationIn = (client: string): string | undefined => /^wl_([0-9A-Z]{26})_\d{1,16}$/i.exec(client)?.[1]

function tokenOf (): { token: string, source: string } | undefined {
  const { STRONGROOM_TOKEN: text = '', STRONGROOM_TOKEN_FILE: path = '' } = process.env
  if (text !== '' && path !== '') throw new Failure('Set STRONGROOM_TOKEN or STRONGROOM_TOKEN_FILE, not both.')
  const source = path === '' ? 'STRONGROOM_TOKEN' : 'STRONGROOM_TOKEN_FILE'
  if (text === '' && path === '') return undefined
  const token = (path === '' ? text : readSecretFile(path, source)).trim()
  if (!/^[\x21-\x7e]{1,4096}$/.test(token)) throw new Failure(`${source} has no token: a token is one line of printable ASCII characters.`)
  return { token, source }
}

/** The text of a file that a person named. */
export function readSecretFile (path: string, source: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    // The path is not shown: people set the secret itself by mistake.
    throw new Failure(`The file that ${source} names cannot be read: ${reasonOf(error)}.`)
  }
}

const SLUG = /^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/

/** The level that the argument, the option, the environment or the file names. */
export function findPlace (argument: string | undefined, options: Options, file: FileSettings | undefined): Place {
  const named = [
    ['The argument', argument], ['--place', options.place], ['STRONGROOM_PLACE', process.env.STRONGROOM_PLACE || undefined],
    [`The place in ${file?.path}`, file?.place]
  ] as const
  const [source, text] = named.find(([, text]) => text !== undefined) ?? []
  if (text === undefined) throw new Misuse('No place is named. Give PROJECT/TARGET/ENVIRONMENT, or set STRONGROOM_PLACE, or `place` in .strongroom.yaml.')
  const [project = '', target, environment, ...more] = text.split('/')
  if (more.length > 0 || ![project, target ?? 'x', environment ?? 'x'].every((slug) => SLUG.test(slug))) {
    throw new Misuse(`${source} is no place. A place has one to three slugs: PROJECT/TARGET/ENVIRONMENT.`)
  }
  return { project, target, environment }
}

export const textOfPlace = ({ project, target, environment }: Place): string =>
  [project, target, environment].filter((slug) => slug !== undefined).join('/')

/** The organization that the option, the environment or the file names. */
export const namedOrganization = ({ organization }: Options, file: FileSettings | undefined): string | undefined =>
  organization ?? (process.env.STRONGROOM_ORGANIZATION || undefined) ?? file?.organization

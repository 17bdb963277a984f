import { constants } from 'node:os'
import { createApi, COMMAND_MS, namesAt, organizationOf, storedAt, type Api } from './api.ts'
import { ageText, bindingOf, recall } from './cache.ts'
import { Failure, isClientManaged, reasonOf } from './failure.ts'
import { listLogins, newCacheKey, removeLogin, storedLogin, storeLogin, whileLocked, type Login } from './logins.ts'
import { printJson, printTable, tell } from './output.ts'
import {
  findFile, findPlace, findService, namedOrganization, namedUrl, serviceUrl, textOfPlace, type Options, type Place,
  type Service
} from './settings.ts'

// Who calls the service: login, logout, whoami, doctor.

/** Signs a person in at a service and keeps the tokens. */
export async function login (
  argument: string | undefined, options: Options & { browser?: boolean, scope?: string }
): Promise<number> {
  const named = argument === undefined ? namedUrl(options) : { text: argument, source: 'The address' }
  const file = named === undefined ? await findFile() : undefined
  const text = named ?? (file?.url === undefined ? undefined : { text: file.url, source: `The url in ${file.path}` })
  if (text === undefined) throw new Failure('Which service? Run `strongroom login URL`.')
  const url = serviceUrl(text.text, text.source, options)
  const { LOGIN_SCOPES, revoke, signIn } = await import('./oauth.ts')
  const tokens = await signIn(url, options.scope ?? LOGIN_SCOPES, options.browser !== false)
  const unnamed: Login = { url, ...tokens, person: { id: '', name: '', email: '' }, cache_key: newCacheKey() }
  const service: Service = { url, source: '', credential: { kind: 'login', login: unnamed } }
  const { person, organizations } = await unlessInterrupted(callerOf(service).then(async (caller) => {
    const before = await whileLocked(unnamed, async () => {
      const before = storedLogin(unnamed)
      // The same person keeps the cache.
      const cache_key = before?.person.id === caller.person.id ? before.cache_key : unnamed.cache_key
      storeLogin({ ...unnamed, person: caller.person, cache_key })
      return before
    })
    if (before !== undefined) await revoke(before).catch((error: unknown) => { tell(notRevoked('The former login', url, error)) })
    return caller
  })).catch(async (error: unknown) => {
    // No file has the new tokens, so they must not stay valid.
    await revoke(unnamed).catch(() => {})
    throw error
  })
  tell(`Signed in at ${url} as ${person.name} <${person.email}>.`)
  for (const { slug, role } of organizations) tell(`  ${slug}${role === undefined ? '' : `: ${role}`}`)
  return 0
}

/** Waits for work, but fails at the first signal that asks this process to end, so that the caller can clean up. */
async function unlessInterrupted<T> (work: Promise<T>): Promise<T> {
  let end = (_signal: NodeJS.Signals) => {}
  const interrupted = new Promise<never>((_resolve, reject) => {
    end = (signal) => { reject(new Failure('Interrupted: you are not signed in.', 128 + constants.signals[signal])) }
  })
  for (const signal of SIGNALS) process.once(signal, end)
  try {
    return await Promise.race([work, interrupted])
  } finally {
    for (const signal of SIGNALS) process.off(signal, end)
  }
}
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

const notRevoked = (what: string, url: string, error: unknown) =>
  `${what} is removed from this machine, but not revoked: ${reasonOf(error)} Revoke the application dotenv-cli on ${url}/account.`

/** Revokes a login and removes its tokens. Says what could not be done. */
export async function logout (options: Options & { all?: boolean }): Promise<number> {
  const named = namedUrl(options)
  const url = named === undefined ? undefined : serviceUrl(named.text, named.source, options)
  const logins = listLogins().filter((one) => url === undefined || one.url === url)
  if (logins.length === 0) throw new Failure(`There is no login${url === undefined ? '' : ` for ${url}`}.`)
  if (logins.length > 1 && options.all !== true) {
    throw new Failure(`There are several logins: choose one with --url, or end them with --all. They are for ${logins.map(({ url }) => url).join(', ')}.`)
  }
  const { revoke } = await import('./oauth.ts')
  let status = 0
  for (const login of logins) {
    const problem = await whileLocked(login, async () => {
      let failed: string | undefined
      try {
        serviceUrl(login.url, 'The login', options)
        await revoke(storedLogin(login) ?? login)
      } catch (error) { failed = notRevoked(`The login for ${login.url}`, login.url, error) }
      removeLogin(login)
      return failed
    })
    if (problem === undefined) tell(`Signed out of ${login.url}.`)
    else {
      status = 1
      tell(problem)
    }
  }
  return status
}

const KINDS = {
  users: { word: 'user', shown: 'a person' },
  'api-tokens': { word: 'api_token', shown: 'an API token' },
  workloads: { word: 'workload', shown: 'a workload' }
} as const
type Kind = (typeof KINDS)[keyof typeof KINDS]

interface Caller {
  person: Login['person'], organizations: { slug: string, role: string | undefined }[], kind: Kind, expires: string | null
}

async function callerOf (service: Service): Promise<Caller> {
  const api = createApi(service, COMMAND_MS)
  const { data: { data, included } } = await api.send((client) => client.GET('/api/v1/user'))
  const { attributes } = data
  return {
    kind: KINDS[data.type],
    person: { id: String(data.id), name: attributes.name, email: 'email' in attributes ? attributes.email : '' },
    organizations: included.map(({ attributes: { slug, role } }) => ({ slug, role: role ?? undefined })),
    expires: 'expires_at' in attributes ? attributes.expires_at : null
  }
}

function sourceOf ({ credential }: Service): string {
  if (credential.kind === 'token') return credential.source
  if (credential.kind === 'workload') return 'STRONGROOM_WORKLOAD, with the token of the platform'
  const { name, email } = credential.login.person
  return `the login of ${name} <${email}>`
}

/** Says who calls which service, until when, and with which credential. */
export async function whoami (options: Options & { json?: boolean }): Promise<number> {
  const service = await findService(options, await findFile())
  const { kind, person, organizations, expires } = await callerOf(service)
  const until = service.credential.kind === 'login' ? 'renewed until you sign out or the service ends the login' : expires ?? 'no end'
  const scopes = service.credential.kind === 'login' ? service.credential.login.scope : undefined
  if (options.json === true) {
    printJson({ url: service.url, kind: kind.word, name: person.name, ...(person.email !== '' && { email: person.email }), organizations, expires_at: expires, credential: sourceOf(service), scopes: scopes?.split(' ') })
    return 0
  }
  printTable([
    ['who', `${kind.shown}: ${person.name}${person.email === '' ? '' : ` <${person.email}>`}`],
    ['where', service.url],
    ['organizations', organizations.map(({ slug, role }) => role === undefined ? slug : `${slug} (${role})`).join(', ')],
    ['until', until],
    ['credential', sourceOf(service)],
    ...scopes === undefined ? [] : [['scopes', scopes]]
  ])
  return 0
}

/** What a place has, which shows what the caller may read, and the levels that restrictions leave out. */
async function contentOf (api: Api, organization: string, place: Place): Promise<{ what: string, left_out: string[] }> {
  try {
    const { meta } = await namesAt(api, organization, place)
    return { what: `${meta.total} names`, left_out: meta.left_out ?? [] }
  } catch (error) {
    if (!isClientManaged(error)) throw error
  }
  const { data: { attributes: { levels = {} } }, meta } = await storedAt(api, organization, place)
  const count = Object.values(levels).filter((level) => level !== undefined).length
  return { what: `${count} encrypted documents, which the key string opens`, left_out: meta.left_out ?? [] }
}

/** Says what is configured, reachable and permitted, and how old the cached copy is. Shows no secret. */
export async function doctor (argument: string | undefined, options: Options & { json?: boolean }): Promise<number> {
  const rows: { check: string, ok: boolean, result: string }[] = []
  const check = async <T>(name: string, work: () => Promise<T>, say: (found: T) => string): Promise<T | undefined> => {
    try {
      const found = await work()
      rows.push({ check: name, ok: true, result: say(found) })
      return found
    } catch (error) {
      rows.push({ check: name, ok: false, result: reasonOf(error) })
      return undefined
    }
  }
  const file = await check('file', findFile, (found) => found?.path ?? 'no .strongroom.yaml here or above')
  const service = await check('service', () => findService(options, file), (found) => `${found.url} (${found.source})`)
  const place = await check('place', async () => findPlace(argument, options, file), textOfPlace)
  if (service !== undefined) {
    rows.push({ check: 'credential', ok: true, result: sourceOf(service) })
    const api = createApi(service, COMMAND_MS)
    const caller = await check('reachable', () => callerOf(service), ({ kind, person }) => `yes, as ${kind.shown} named ${person.name}`)
    const named = namedOrganization(options, file)
    const organization = caller === undefined
      ? named
      : await check('organization', () => organizationOf(api, service, named), (slug) => slug)
    if (place !== undefined && caller !== undefined && organization !== undefined) {
      await check('permitted', () => contentOf(api, organization, place), ({ what, left_out }) =>
        left_out.length === 0 ? what : `${what}, without ${left_out.join(' and ')}`)
    }
    const binding = place && bindingOf(service, named ?? '', textOfPlace(place))
    if (binding !== undefined) {
      await check('cached copy', async () => recall(binding, Infinity), ({ age }) => `${ageText(age)} old`)
    }
  }
  if (options.json === true) printJson(rows)
  else printTable(rows.map(({ check, ok, result }) => [ok ? 'ok' : '--', check, result]))
  const needed = ['file', 'service', 'reachable', 'organization', 'permitted']
  return rows.every(({ check, ok }) => ok || !needed.includes(check)) ? 0 : 1
}

import { createHash, randomBytes } from 'node:crypto'
import { readdirSync, rmSync } from 'node:fs'
import { basename, join } from 'node:path'
import { Away, Failure, reasonOf } from './failure.ts'
import { untilFinished } from './unfinished.ts'
import { configFolder, makeFolder, readIfThere, replaceFile, withLock } from './files.ts'

/** The client of the service that this command is; every service knows it. */
export const CLIENT_ID = 'dotenv-cli'

/** A person's login at a service: both tokens are in one file, which is replaced as a whole. */
export interface Login {
  url: string
  access_token: string
  refresh_token: string
  /** When the access token ends, in milliseconds since 1970. */
  expires_at: number
  scope: string
  person: { id: string, name: string, email: string }
  /** The key of the cache, base64 of 32 random bytes. */
  cache_key: string
}

const folder = (): string => join(configFolder(), 'logins')
const pathOf = (url: string): string => join(folder(), `${createHash('sha256').update(url).digest('hex').slice(0, 32)}.json`)

/** All logins of this user. */
export function listLogins (): Login[] {
  let names: string[]
  try { names = readdirSync(folder()) } catch { return [] }
  return names.filter((name) => name.endsWith('.json')).map((name) => readLogin(join(folder(), name)))
    .filter((login) => login !== undefined)
    .sort((one, other) => one.url < other.url ? -1 : 1)
}

/** A login as it is stored now: another process may have renewed or removed it. */
export const storedLogin = ({ url }: Login): Login | undefined => readLogin(pathOf(url))

function readLogin (path: string): Login | undefined {
  const text = readIfThere(path)
  if (text === undefined) return undefined
  try {
    return JSON.parse(text) as Login
  } catch { throw new Failure(`${path} is damaged. Remove it, and sign in again with \`strongroom login\`.`) }
}

/** Stores a login. Throws if it cannot be stored, because its tokens would be lost. */
export function storeLogin (login: Login): void {
  try {
    replaceFile(pathOf(login.url), `${JSON.stringify(login)}\n`)
  } catch (error) {
    throw new Failure(`The login cannot be stored in ${folder()}: ${reasonOf(error)}.`)
  }
}

/** The parts of a new login that the service does not give. */
export const newCacheKey = (): string => randomBytes(32).toString('base64')

/** Removes a login, with what a process that was killed left of it. */
export function removeLogin ({ url }: Login): void {
  const name = basename(pathOf(url))
  const leftovers = readdirSync(folder()).filter((one) => one.startsWith(name) && !one.includes('.lock'))
  for (const one of leftovers) rmSync(join(folder(), one), { force: true })
}

const LOCK_MS = 30_000

/** Runs `work` while no other process changes the login. */
export async function whileLocked<T> (
  { url }: Login, work: () => Promise<T>, signal = AbortSignal.timeout(LOCK_MS)
): Promise<T> {
  makeFolder(folder())
  return withLock(`${pathOf(url)}.lock`, signal, work)
}

/** A token is replaced in the last minute of its life. */
const RENEWAL_MS = 60_000
/**
 * How long a renewal may take. It outlasts the wait of the command: the service may have replaced the tokens already,
 * and a refresh token that is sent twice ends the login.
 */
const RENEWAL_REQUEST_MS = 10_000

/**
 * The access token of a login, renewed if it ends within a minute, or if the service rejected it. One process at a time
 * renews: the others find the new token in the file, because a refresh token works once.
 *
 * @param rejected the token that the service rejected
 */
export async function accessTokenOf (login: Login, signal: AbortSignal, rejected?: string): Promise<string> {
  const isFresh = (one: Login) => one.expires_at - Date.now() > RENEWAL_MS && one.access_token !== rejected
  if (isFresh(login)) return login.access_token
  try {
    return await inTime(login, signal, untilFinished(whileLocked(login, async () => {
      const stored = storedLogin(login)
      if (stored === undefined) {
        throw new Failure(`You signed out of ${login.url}. Run \`strongroom login ${login.url}\`.`)
      }
      if (isFresh(stored)) return stored.access_token
      const { refresh } = await import('./oauth.ts')
      if (signal.aborted) throw new Away(`${login.url} did not renew the login in time.`)
      const renewed = await refresh(stored, AbortSignal.timeout(RENEWAL_REQUEST_MS))
      storeLogin(renewed)
      return renewed.access_token
    }, signal)))
  } catch (error) {
    // The present token works for its last minute if the service is away, or if the home cannot be written.
    const isRefusal = error instanceof Failure && !(error instanceof Away)
    if (!isRefusal && rejected === undefined && login.expires_at > Date.now()) return login.access_token
    if (error instanceof Failure) throw error
    throw new Failure(`The login for ${login.url} cannot be renewed in ${folder()}: ${reasonOf(error)}.`)
  }
}

/** The result of `work`, unless the signal comes first. */
const inTime = <T>({ url }: Login, signal: AbortSignal, work: Promise<T>) => new Promise<T>((resolve, reject) => {
  signal.addEventListener('abort', () => reject(new Away(`${url} did not renew the login in time.`)), { once: true })
  work.then(resolve, reject)
})

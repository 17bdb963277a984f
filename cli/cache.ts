import { createCipheriv, createDecipheriv, createHash, hkdfSync, randomBytes } from 'node:crypto'
import { readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { parseJson } from '../src/rules/documents/json.ts'
import { Failure } from './failure.ts'
import { cacheFolder, readIfThere, replaceFile } from './files.ts'
import type { Credential, Service } from './settings.ts'
import type { Loaded } from './values.ts'

// Loaded values, sealed with AES-256-GCM. Only the caller who loaded them can open them: the key is derived from the
// API token, or lies beside the login. The additional data bind them to the service, the place and the caller.

const MAX_BYTES = 64 * 1024 * 1024

/** Who can keep copies. A workload keeps none: its job ends, and the next one is another caller. */
type Keeper = Exclude<Credential, { kind: 'workload' }>
/** What a cached copy is bound to. `organization` is empty if the caller determines it. */
export interface Binding { service: Service & { credential: Keeper }, organization: string, place: string }

interface Sealed { at: number, loaded: Loaded }

const callerOf = ({ credential }: Binding['service']): string => credential.kind === 'token'
  ? `token ${createHash('sha256').update(credential.token).digest('hex')}`
  : `login ${credential.login.person.id}`

const keyOf = ({ credential }: Binding['service']): Buffer => credential.kind === 'token'
  ? Buffer.from(hkdfSync('sha256', credential.token, '', 'strongroom cache', 32))
  : Buffer.from(credential.login.cache_key, 'base64')

const boundTo = ({ service, organization, place }: Binding): Buffer =>
  Buffer.from(JSON.stringify(['strongroom cache 1', service.url, organization, place, callerOf(service)]))

const fileNamedAfter = (text: Buffer | string): string =>
  join(cacheFolder(), `${createHash('sha256').update(text).digest('hex').slice(0, 40)}.sealed`)
const pathOf = (binding: Binding): string => fileNamedAfter(boundTo(binding))

/** A file with the time at which the service refused the caller: no copy of this caller from before may be used. */
const markOf = (service: Binding['service']): string =>
  fileNamedAfter(JSON.stringify(['strongroom cache 1', 'ended', service.url, callerOf(service)]))

/** A service whose caller keeps copies; undefined for a workload, which keeps none. */
const keeping = ({ credential, ...service }: Service): Binding['service'] | undefined =>
  credential.kind === 'workload' ? undefined : { ...service, credential }

/** What the copies of a service and a place are bound to; undefined for a caller who keeps none. */
export function bindingOf (service: Service, organization: string, place: string): Binding | undefined {
  const kept = keeping(service)
  return kept && { service: kept, organization, place }
}

/** Keeps values that were asked for at a time in milliseconds. A cache that cannot be written stops nothing. */
export function keep (binding: Binding, loaded: Loaded, at: number): void {
  const iv = randomBytes(12)
  const cipher = createCipheriv('aes-256-gcm', keyOf(binding.service), iv).setAAD(boundTo(binding))
  const text = JSON.stringify({ at, loaded } satisfies Sealed)
  const sealed = Buffer.concat([iv, cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()])
  if (sealed.length > MAX_BYTES) return
  try {
    replaceFile(pathOf(binding), sealed.toString('base64'))
    removeOldest()
  } catch { /* A read-only home, or a full disk. */ }
}

/** Forgets the copy of a place that the service has refused. */
export function forget (binding: Binding): void {
  try { rmSync(pathOf(binding), { force: true }) } catch { /* A read-only home. */ }
}

/** Ends the copies of a caller whom the service has refused. Those of a later success are valid. */
export function endCopies (service: Service): void {
  const kept = keeping(service)
  if (kept === undefined) return
  try { replaceFile(markOf(kept), String(Date.now())) } catch { /* A read-only home. */ }
}

const MAX_COPIES = 500

/** The names of copies, and of those that a stopped process left unfinished. */
const OWN = /^[0-9a-f]{40}\.sealed/

/**
 * Removes the oldest files of the cache if there are too many. The time at which a caller was refused is newer than the
 * copies that it ends, so it is removed after them. Other files in the folder stay.
 */
function removeOldest (): void {
  const paths = readdirSync(cacheFolder()).filter((name) => OWN.test(name)).map((name) => join(cacheFolder(), name))
  if (paths.length <= MAX_COPIES) return
  const aged = paths.map((path) => ({ path, at: statSync(path).mtimeMs })).sort((one, other) => one.at - other.at)
  for (const { path } of aged.slice(0, aged.length - MAX_COPIES / 2)) rmSync(path, { force: true })
}

/** The kept values and their age in seconds. Throws a sentence that says why there are none that may be used. */
export function recall (binding: Binding, maxStaleSeconds: number): { loaded: Loaded, age: number } {
  const none = () => new Failure('There is no cached copy of these values.')
  let text: string | undefined
  let ended = 0
  try {
    ended = Number(readIfThere(markOf(binding.service)) ?? 0)
    text = readIfThere(pathOf(binding))
  } catch { text = undefined }
  if (text === undefined) throw none()
  const sealed = Buffer.from(text, 'base64')
  let stored: Sealed
  try {
    const cipher = createDecipheriv('aes-256-gcm', keyOf(binding.service), sealed.subarray(0, 12), { authTagLength: 16 })
      .setAAD(boundTo(binding)).setAuthTag(sealed.subarray(-16))
    stored = parseJson(Buffer.concat([cipher.update(sealed.subarray(12, -16)), cipher.final()]).toString('utf8')) as Sealed
  } catch { throw new Failure('The cached copy of these values was changed, or belongs to another login, so it is not used.') }
  if (stored.at <= ended) throw none()
  const age = Math.floor((Date.now() - stored.at) / 1000)
  if (age < 0) throw new Failure('The cached copy of these values is from the future, so it is not used: look at the clock.')
  if (age >= maxStaleSeconds) {
    throw new Failure(`The cached copy of these values is ${ageText(age)} old, so it is not used (--max-stale).`)
  }
  return { loaded: stored.loaded, age }
}

/** An age in words, such as `3 h 12 min`. */
export function ageText (seconds: number): string {
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds % 3600 / 60)]
  return hours < 48 ? `${hours} h ${minutes} min` : `${Math.floor(hours / 24)} days`
}

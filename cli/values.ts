import { closeSync, openSync } from 'node:fs'
import { ReadStream, WriteStream } from 'node:tty'
import { deriveKey, openBlob, type ClientKey, type Derivation } from '../src/client/keys.ts'
import { emptyEntries, type DocumentFormat } from '../src/rules/documents/entries.ts'
import { parseJson } from '../src/rules/documents/json.ts'
import { COMMAND_MS, createApi, organizationOf, parametersOf, RUN_MS, storedAt, templateOf, type Api } from './api.ts'
import { ageText, bindingOf, forget, keep, recall } from './cache.ts'
import { Away, endedBy, Failure, isClientManaged, Misuse, Refusal } from './failure.ts'
import { tell } from './output.ts'
import {
  findFile, findPlace, findService, namedOrganization, readSecretFile, textOfPlace, type Options, type Place,
  type Service
} from './settings.ts'

// The values of a place, merged over its levels. Documents of client-managed projects are decrypted and merged here.

export const LEVELS = ['project', 'target', 'environment'] as const
export type LevelName = typeof LEVELS[number]

/** What the service gave: values, or the encrypted documents of a client-managed project from the project down. */
export type Loaded = { left_out: string[] } & (
  { kind: 'values', values: Record<string, string> } |
  { kind: 'documents', format: DocumentFormat, documents: { level: LevelName, content: string }[], derivation: Derivation }
)

/** A place at a service, with who asks. */
export interface At {
  service: Service
  api: Api
  place: Place
  /** The organization that the person named. */
  named: string | undefined
  organization (): Promise<string>
}

/** Finds the service, the credential and the place of a command. */
export async function locate (options: Options, argument?: string, waitMs = COMMAND_MS): Promise<At> {
  const file = await findFile()
  const place = findPlace(argument, options, file)
  const service = await findService(options, file)
  const api = createApi(service, waitMs)
  const named = namedOrganization(options, file)
  return { service, api, place, named, organization: () => organizationOf(api, service, named) }
}

/** Loads the values of a place from the service. */
export async function load ({ api, place, organization }: At): Promise<Loaded> {
  const slug = await organization()
  const path = parametersOf(slug, place)
  try {
    const { data, headers } = await api.send(async (client) => {
      const { data, error, response } = await client.GET(templateOf(place, '/secrets/values'), { params: { path }, parseAs: 'text' })
      return { error, response, ...(data !== undefined && { data: parseJson(data) as Record<string, string> }) }
    })
    const left_out = (headers.get('strongroom-left-out') ?? '').split(',').map((level) => level.trim()).filter((level) => level !== '')
    return { kind: 'values', values: data, left_out }
  } catch (error) {
    if (!isClientManaged(error)) throw error
  }
  const { data: { attributes: { levels = {} } }, meta } = await storedAt(api, slug, place)
  const documents = LEVELS.flatMap((level) => {
    const document = levels[level]
    return document === undefined ? [] : [{ level, content: document.content }]
  })
  const derivation = await derivationOf(api, path, documents[0]?.level)
  return {
    kind: 'documents',
    format: await formatOf(api, path),
    documents,
    derivation,
    left_out: meta.left_out ?? []
  }
}

type PathParameters = ReturnType<typeof parametersOf>

async function formatOf (api: Api, { organization, project }: PathParameters): Promise<DocumentFormat> {
  const { data: { data: { attributes } } } = await api.send((client) =>
    client.GET('/api/v1/{organization}/{project}', { params: { path: { organization, project } } }))
  return attributes.secret_format
}

/**
 * The parameters of the key of a client-managed project. A caller without `key:retrieve` finds them in the newest
 * version of a level, which needs `secret:history`.
 */
async function derivationOf (
  api: Api, { organization, project, target, environment }: PathParameters, first: LevelName | undefined
): Promise<Derivation> {
  try {
    const { data: { data: { attributes } } } = await api.send((client) =>
      client.GET('/api/v1/{organization}/{project}/encryption-key', { params: { path: { organization, project } } }))
    return derivationIn(attributes)
  } catch (error) {
    if (!(error instanceof Refusal) || error.httpStatus !== 403 || first === undefined) throw error
    const level = {
      project, level: first, ...(first !== 'project' && { target }), ...(first === 'environment' && { environment })
    }
    const { data: { data: [newest] } } = await api.send((client) =>
      client.POST('/api/v1/{organization}/secrets/versions', { params: { path: { organization } }, body: { ...level, per_page: 1 } }))
    if (newest === undefined) throw error
    const { data: { data: { key } } } = await api.send((client) =>
      client.GET('/api/v1/{organization}/secrets/versions/{version}', { params: { path: { organization, version: newest.id } } }))
    return derivationIn(key)
  }
}

const derivationIn = ({ key_check_salt: salt = '', key_check_iterations: iterations = 0 }: { key_check_salt?: string, key_check_iterations?: number }) =>
  ({ salt, iterations })

/** A value, the level that it comes from, and the levels above that have the name as well. */
export interface Value { value: string, level: LevelName | undefined, overrides: LevelName[] }

/** The values of a place by name. Asks for the key string of a client-managed project. */
export async function valuesOf (
  loaded: Loaded, { place }: At, keyFile: string | undefined
): Promise<Map<string, Value>> {
  const values = new Map<string, Value>()
  if (loaded.kind === 'values') {
    const nowhere = { level: undefined, overrides: [] }
    return new Map(Object.entries(loaded.values).map(([name, value]) => [name, { value, ...nowhere }]))
  }
  const { format, documents, derivation } = loaded
  if (format === 'text') throw new Failure(`The project ${place.project} has the format text, whose documents have no names.`)
  const { readDocument } = await import('../src/rules/documents/read.ts')
  const key = await deriveKey(await keyString(keyFile, place.project), derivation).catch(asFailure)
  for (const { level, content } of documents) {
    const entries = readDocument(format, await decrypt(key, content, level), emptyEntries())
    if (entries === undefined) throw new Failure(`The document of the ${level} does not parse as ${format}.`)
    for (const [name, value] of Object.entries(entries)) {
      const above = values.get(name)
      values.set(name, { value, level, overrides: above === undefined ? [] : [...above.overrides, above.level!] })
    }
  }
  return values
}

const asFailure = (error: unknown): never => { throw new Failure((error as Error).message) }

const decrypt = (key: ClientKey, content: string, level: LevelName): Promise<string> =>
  openBlob(key, content).catch(() => {
    throw new Failure(`The key string does not decrypt the document of the ${level}.`)
  })

/** The key string, from a file or from the terminal. One line ending at the end of the file is not part of it. */
async function keyString (keyFile: string | undefined, project: string): Promise<string> {
  const path = keyFile ?? (process.env.STRONGROOM_KEY_FILE || undefined)
  if (path !== undefined) return readSecretFile(path, keyFile === undefined ? 'STRONGROOM_KEY_FILE' : '--key-file').replace(/\r?\n$/, '')
  return ask(`Key string of ${project}: `)
    .catch(() => { throw new Failure(`The project ${project} is client-managed: name a file with its key string by --key-file or STRONGROOM_KEY_FILE.`) })
}

// All control characters except the tab: keys such as the arrows send them.
const CONTROLS = /(?!\t)\p{Cc}/u
const NOT_ONE_LINE = 'The entry has several lines or control characters, so it is not used. Name a file with the text instead.'

/**
 * Asks for one line on the terminal, without showing what is typed. Ctrl-U clears the line. Throws if there is no
 * terminal, after Ctrl-C, and for a pasted text of several lines.
 */
export async function ask (question: string): Promise<string> {
  const [forInput, forOutput] = [openSync('/dev/tty', 'r'), openSync('/dev/tty', 'w')]
  const [input, output] = [new ReadStream(forInput), new WriteStream(forOutput)]
  try {
    input.setRawMode(true)
    output.write(question)
    return await new Promise((resolve, reject) => {
      let text = ''
      input.setEncoding('utf8')
      input.on('error', reject)
      input.on('data', (typed: string) => {
        const characters = [...typed]
        for (const [index, character] of characters.entries()) {
          if (character === '\r' || character === '\n') {
            // Only a pasted text has characters after its first line, and that line alone would be another value.
            const isWhole = /^[\r\n]*$/.test(characters.slice(index + 1).join('')) && !CONTROLS.test(text)
            return isWhole ? resolve(text) : reject(new Failure(NOT_ONE_LINE))
          }
          if (character === '\u0003' || character === '\u0004') return reject(new Failure('Nothing was entered.'))
          if (character === '\u0015') text = ''
          else text = character === '\u007f' || character === '\b' ? [...text].slice(0, -1).join('') : text + character
        }
      })
    })
  } finally {
    input.setRawMode(false)
    output.write('\n')
    input.destroy()
    output.end()
    try { closeSync(forInput) } catch { /* The stream has closed it. */ }
  }
}

export interface Reading extends Options {
  cache?: boolean, offline?: boolean, maxStale?: string, keyFile?: string, strict?: boolean
}

/** The values of a place for `run`: from the service, or the cached copy while the service is away. */
export async function loadOrRecall (
  argument: string | undefined, options: Reading
): Promise<{ at: At, loaded: Loaded }> {
  if (options.offline === true && options.cache === false) {
    throw new Misuse('Give --offline or --no-cache, not both: without the cached copy there would be no values.')
  }
  const at = await locate(options, argument, RUN_MS)
  const binding = bindingOf(at.service, at.named ?? '', textOfPlace(at.place))
  const maxStale = secondsOf(options.maxStale ?? '24h')
  if (options.offline === true) return { at, loaded: recallAndTell('') }
  const asked = Date.now()
  try {
    const loaded = await withShortLookups(() => load(at))
    if (options.cache !== false && binding !== undefined) keep(binding, loaded, asked)
    return { at, loaded }
  } catch (error) {
    if (endedBy(error) === 'place' && binding !== undefined) forget(binding)
    if (!(error instanceof Away) || options.cache === false || binding === undefined) throw error
    return { at, loaded: recallAndTell(`${error.message} `) }
  }

  function recallAndTell (reason: string): Loaded {
    if (binding === undefined) throw new Misuse('A workload keeps no cached copy, so --offline has no values.')
    try {
      const { loaded, age } = recall(binding, maxStale)
      tell(`${reason}The values are a cached copy, ${ageText(age)} old.`)
      return loaded
    } catch (error) { throw new Failure(`${reason}${(error as Error).message}`) }
  }
}

/**
 * Runs `work` with short waits for servers of names: the C library of Linux waits 10 s for each, and a process cannot
 * end while it waits. The variable is that of resolv.conf(5).
 */
async function withShortLookups<T> (work: () => Promise<T>): Promise<T> {
  if (process.env.RES_OPTIONS !== undefined) return work()
  process.env.RES_OPTIONS = 'timeout:1 attempts:2'
  try {
    return await work()
  } finally {
    delete process.env.RES_OPTIONS
  }
}

const UNITS: Record<string, number> = { '': 1, s: 1, m: 60, h: 3600, d: 86_400 }

/** A number of seconds, or one of minutes, hours or days such as `30m` and `48h`. */
function secondsOf (text: string): number {
  const [, number, unit = ''] = /^(\d{1,9})([smhd]?)$/.exec(text) ?? []
  if (number === undefined) throw new Failure(`${text} is no time: write seconds, or a number with m, h or d, such as 48h.`)
  return Number(number) * UNITS[unit]!
}

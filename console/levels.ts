import { ApiError, call, type Reply, type Request, type Schemas } from './api.ts'
import { openBlob, sealBlob } from '../src/client/keys.ts'
import { heldKey, isOpen } from './held-keys.ts'
import { shownProject } from './rights.ts'
import { changeValues, compareValues, isNestedJson, nestedValues, problemIn, readValues, type Comparison, type Format, type NameChange } from './values.ts'

// A level is a project, a target or an environment. Each kind has operations of its own.

type Part = string | undefined
export interface Level { organization: string, project: string, target?: Part, environment?: Part }
export const KINDS = ['project', 'target', 'environment'] as const
export type Kind = typeof KINDS[number]

export const kindOf = ({ target, environment }: Level): Kind =>
  environment !== undefined ? 'environment' : target !== undefined ? 'target' : 'project'
/** The name of a target, an environment or of the project without both; the slug where the name is not known. */
export function nameOf ({ project, target, environment }: Omit<Level, 'organization'>): string {
  const known = shownProject.value?.slug === project ? shownProject.value : undefined
  if (target === undefined) return known?.name ?? project
  const found = known?.levels.find((one) =>
    one.target === target && (environment === undefined || one.environment === environment))
  return environment === undefined ? found?.target_name ?? target : found?.name ?? environment
}
/** What people call a level: its path below the project. */
export const titleOf = (level: Level): string => level.environment === undefined
  ? nameOf(level)
  : `${nameOf({ project: level.project, target: level.target })} / ${nameOf(level)}`
export const levelPath = ({ organization, project, target, environment }: Level): string =>
  [organization, project, target ?? '', environment ?? ''].join('/')
export const projectPath = ({ organization, project }: Level): string => `${organization}/${project}`

export const inBody = ({ project, target, environment }: Level) =>
  ({ project, ...(target !== undefined && { target }), ...(environment !== undefined && { environment }) })
export const inHistory = (level: Level) => ({ ...inBody(level), level: kindOf(level) })

const WORDS = { project: 'Project', target: 'Target', environment: 'Environment' } as const
type Verb = 'readSecrets' | 'changeSecrets' | 'readNames' | 'readNameHistory' | 'compareSecrets'
type Of<V extends Verb> = V extends `read${infer Rest}` ? `readEnvironment${Rest}` : V extends `change${infer Rest}`
  ? `changeEnvironment${Rest}`
  : V extends `compare${infer Rest}` ? `compareEnvironment${Rest}` : never

/** Calls the operation of the kind of the level, such as `readTargetNames`. All kinds have the same shapes. */
export async function callLevel<V extends Verb> (
  verb: V, level: Level, request: Omit<Request<Of<V>>, 'path'> = {}
): Promise<Reply<Of<V>>> {
  const operation = verb.replace(/^(read|change|compare)/, `$1${WORDS[kindOf(level)]}`) as Of<V>
  return call(operation, { ...request, path: level } as Request<Of<V>>)
}

/** The ETag and the version of a level: null without a document. */
export interface State { etag: string | null, version: string | null }
export interface LevelDocument extends State { text: string }

/** The document of a level, as the service stores it or decrypted by the service. */
export const storedAt = async (level: Level, query = {}) =>
  (await callLevel('readSecrets', level, { query })).data.data.attributes.levels?.[kindOf(level)]

/** Reads and decrypts the document of a level. For a client-managed project, the browser decrypts. */
export async function readDocument (level: Level, isClient: boolean): Promise<LevelDocument> {
  const found = await storedAt(level, isClient ? {} : { decrypt: true })
  if (found === undefined) return { text: '', etag: null, version: null }
  return { ...found, text: isClient ? await openBlob(heldKey(projectPath(level)), found.content) : found.content }
}

export const stateOf = async (level: Level): Promise<State> => await storedAt(level) ?? { etag: null, version: null }

/** Stores a whole document. For a client-managed project, the browser encrypts. */
export async function storeDocument (
  level: Level, text: string, etag: string | null | undefined, isClient: boolean,
  { unchecked = false, dry_run = false }: { unchecked?: boolean, dry_run?: boolean } = {}
) {
  const key = isClient ? heldKey(projectPath(level)) : undefined
  return call('storeSecrets', {
    path: { organization: level.organization },
    etag,
    ...(dry_run && { query: { dry_run } }),
    body: {
      ...inBody(level),
      ...(key === undefined ? { plaintext: text } : { content: await sealBlob(key, text), key_proof: key.proof }),
      ...(unchecked && { unchecked: true })
    }
  })
}

/** Refuses a text that does not parse in its format, in the words of the service. */
export function requireParsed (format: Format, text: string) {
  const details = problemIn(format, text)
  if (details) throw new ApiError(422, { message: 'The document does not parse in this format.', details })
}

/** What the service needs to restore a version of a client-managed project. */
export async function restoreBody (level: Level, version: string, isClient: boolean): Promise<Schemas['RestoreBody']> {
  if (!isClient || !isOpen(projectPath(level))) return {}
  const key = heldKey(projectPath(level))
  const { content, key: { is_active } } = await storedVersion(level, version)
  return { key_proof: key.proof, ...!is_active && { content: await sealBlob(key, await openBlob(key, content)) } }
}

const storedVersion = async ({ organization }: Level, version: string) =>
  (await call('getVersion', { path: { organization, version } })).data.data

/**
 * Restores the document before the last change, or deletes the document that the change made. `etag`: after the change
 * (null: a deletion), so that an undo never overwrites a later change. `versions`: how many the change has recorded.
 */
export async function undoChange (level: Level, etag: string | null, isClient: boolean, versions = 1): Promise<void> {
  const path = { organization: level.organization }
  const { data: { data: found } } = await call('listVersions', { path, body: { ...inHistory(level), per_page: versions + 1 } })
  const [last, before] = [found[versions - 1], found[versions]]
  const action = last?.attributes.action
  const isFirst = before === undefined ? action === 'create' : before.attributes.action === 'delete'
  if (etag !== null && isFirst) { await call('deleteSecrets', { path, body: inBody(level), etag }); return }
  // The version of a deletion holds the deleted document.
  const version = action === 'delete' ? last : before
  if (version === undefined) throw new Error('The history of this level does not have the document before the change.')
  const body = await restoreBody(level, version.id, isClient)
  await call('restoreVersion', { path: { ...path, version: version.id }, body, etag })
}

/**
 * Changes single names of a level. Throws `ApiError` with status 412 if the level has changed since the ETag. For a
 * client-managed project, the browser changes the document. Returns the new ETag; undefined if nothing changed.
 */
export async function changeNames (
  level: Level, change: NameChange, etag: string | null | undefined, isClient: boolean, format: Format
): Promise<string | undefined> {
  if (!isClient) {
    const { data, etag: after } = await sendNames(level, change, etag, change.isJson ? Object.keys(change.set!) : [])
    return data.data.unchanged ? undefined : after
  }
  const document = await readDocument(level, true)
  if (etag !== undefined && document.etag !== etag) throw new ApiError(412, { message: 'The level has changed since this page was loaded.' })
  const text = changeValues(format, document.text, change)
  return text === document.text ? undefined : (await storeDocument(level, text, document.etag, true)).etag
}

/**
 * Sends texts, and those of `nested` as JSON. The service does not replace an object or a list by a text, so the text
 * of such a name is sent as the object or list that it is.
 */
async function sendNames (
  level: Level, change: NameChange, etag: string | null | undefined, nested: readonly string[]
): Promise<Reply<'changeEnvironmentSecrets'>> {
  const { isJson, ...body } = change
  const { set = {}, unset = [] } = body
  const more = { unset, ...isJson && { replace: [...nested] } }
  const json = nested.length === 0 ? undefined : `{"set":${nestedValues(set, nested)},${JSON.stringify(more).slice(1)}`
  return callLevel('changeSecrets', level, { body: isJson ? { set, ...more } : body, json, etag }).catch((error: unknown) => {
    const refused = Object.keys(set).filter((name) =>
      isRefused(error, name) && !nested.includes(name) && isNestedJson(set[name]!))
    if (refused.length === 0) throw error
    return sendNames(level, change, etag, [...nested, ...refused])
  })
}

// The service names a value in an error by its first characters.
const MAX_MEMBER = 200

export const isRefused = (error: unknown, name: string): boolean =>
  error instanceof ApiError && Object.hasOwn(error.errors, `set.${name.slice(0, MAX_MEMBER)}`)

/** Who wrote a version, and through what. */
export function authorOf ({ created_by, created_through: through }: Pick<Schemas['VersionAttributes'], 'created_by' | 'created_through'>) {
  const name = created_by?.name ?? 'the operator'
  if (through == null) return name
  return { api_token: `API token ${name}`, workload: `workload rule ${name}`, application: `${name} through ${through.name}` }[through.type]
}

/** The names that changed from one version of a level to another one; null if nobody can tell. */
export async function changesBetween (
  level: Level, from: string, to: string, isClient: boolean, format: Format
): Promise<Comparison | null> {
  if (!isClient) return (await callLevel('compareSecrets', level, { query: { from, to } })).data.data.attributes
  const read = async (version: string) =>
    readValues(format, await openBlob(heldKey(projectPath(level)), (await storedVersion(level, version)).content))
  const [before, after] = [await read(from), await read(to)]
  return before && after ? compareValues(before, after) : null
}

export async function * columnsOf ({ organization, project }: Level): AsyncGenerator<Column> {
  for (let after: string | null | undefined; after !== null;) {
    const { data: { data, meta } }: Reply<'readProjectMatrix'> = await call('readProjectMatrix', {
      path: { organization, project }, query: { decrypt: false, ...(after !== undefined && { levels_after: after }) }
    })
    yield * data.attributes.levels
    after = meta.next_levels
  }
}

export type Matrix = Schemas['MatrixAttributes']
export type Column = Matrix['levels'][number]
export type Row = NonNullable<Matrix['names']>[number]
export type Cell = Row['cells'][number]
export const levelOf = ({ organization, slug }: Record<'organization' | 'slug', string>, { target, environment }: Pick<Column, 'target' | 'environment'>): Level =>
  ({ organization, project: slug, target: target ?? undefined, environment: environment ?? undefined })

export const titleOfColumn = ({ level, name }: Column): string => level === 'project' ? 'Project' : name

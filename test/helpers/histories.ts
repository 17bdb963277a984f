import { setTimeout as pause } from 'node:timers/promises'
import { check, type Call, type Checked, type Model } from './linearizable.ts'
import type { Level, Reply, Send } from './traffic.ts'

// A model of levels for linearizability tests, with the requests and responses of clients. The tests check each history
// twice. The first check covers each level alone; an operation on the whole project counts as an operation on each
// level. The second check covers all levels together. It also detects a read that saw one level before a write and
// another level after the write.

export interface Document {
  content: string
  etag: string
  /** Undefined if the response does not contain the version; null if the document has no version. */
  version?: number | null
  key?: number
}

/** A request about one level. */
export type Asked =
  | { kind: 'read' } | { kind: 'list' } | { kind: 'version', version: number }
  | { kind: 'store', content: string, ifMatch?: string, isNew?: boolean, noBackup?: boolean }
  | { kind: 'restore', version: number }
  | { kind: 'delete', ifMatch?: string, forGood?: boolean }
  | { kind: 'remove', version: number, force: boolean }
  | { kind: 'purge' } | { kind: 'rotate' }

/** A response: the status, and the fields that the kind of request returns. */
export interface Told {
  status: number
  /** The result of a read; null if the level has no document. */
  document?: Document | null
  /** The result of a list, oldest version first. */
  versions?: { id: number, action: string }[]
  /** The version that a write recorded; null if it recorded none. */
  version?: number | null
  etag?: string
  purged?: number
  key?: number
}

export type History = Call<Asked, Told>[]

interface Version {
  /** Null until a response contains the id. */
  id: number | null
  /** Lower bound: the highest known id when the version was recorded. */
  above: number
  action: string
  content: string
}

/** The state of a level; `versions` are sorted, oldest first. */
interface State {
  document: { content: string, etag: string | null, isRecorded: boolean } | null
  versions: Version[]
  key: number
  /** ETags of former documents; no later document may have one of them. */
  past: string[]
}

/** The model of a level. Ids of versions and ETags are unknown until a response contains them, and then fixed. */
export const level: Model<State, Asked, Told> = {
  initial: { document: null, versions: [], key: 1, past: [] },
  step (state, asked, told) {
    switch (asked.kind) {
      case 'read': return told?.status === 200 ? readBy(state, told.document ?? null) : undefined
      case 'list': return told?.versions && listedBy(state, told.versions)
      case 'version': return only(told, holds(state, asked.version) ? 200 : 404, state)
      case 'store': {
        const { content, ifMatch, isNew = false, noBackup = false } = asked
        const { document } = state
        const refused = (ifMatch !== undefined && document?.etag !== ifMatch) || (isNew && document !== null)
        if (refused) return only(told, 412, state)
        const action = document === null ? 'create' : 'update'
        return only(told, 200, write(state, content, noBackup ? null : { action, content }, told))
      }
      case 'restore': {
        const version = state.versions.find(({ id }) => id === asked.version)
        if (version === undefined) return only(told, 404, state)
        return only(told, 200, write(state, version.content, { action: 'restore', content: version.content }, told))
      }
      case 'delete': {
        const { document } = state
        if (document === null) return only(told, 404, state)
        if (asked.ifMatch !== undefined && document.etag !== asked.ifMatch) return only(told, 412, state)
        if (asked.forGood) return only(told, 204, { ...emptied(state), versions: [] })
        return only(told, 204, write(state, null, { action: 'delete', content: document.content }, told))
      }
      case 'remove': {
        const { document, versions } = state
        const place = versions.findIndex(({ id }) => id === asked.version)
        if (place < 0) return only(told, 404, state)
        const isNewest = place === versions.length - 1
        if (document === null && isNewest && !asked.force) return only(told, 422, state)
        return only(told, 204, {
          ...state,
          versions: versions.filter((_, i) => i !== place),
          document: document && { ...document, isRecorded: document.isRecorded && !isNewest }
        })
      }
      case 'purge': {
        if (told?.purged !== undefined && told.purged !== state.versions.length) return undefined
        const { document } = state
        return only(told, 200, {
          ...state, versions: [], document: document && { ...document, isRecorded: false }
        })
      }
      case 'rotate': {
        if (told?.key !== undefined && told.key !== state.key + 1) return undefined
        const { document } = state
        const rotated = document === null
          ? state
          : write(state, document.content, { action: 'rotate', content: document.content }, undefined)
        return rotated && only(told, 200, { ...rotated, key: state.key + 1 })
      }
    }
  }
}

const only = (told: Told | undefined, status: number, after: State | undefined) =>
  told === undefined || told.status === status ? after : undefined

const holds = ({ versions }: State, version: number) => versions.some(({ id }) => id === version)

/** The highest known version id. */
const newest = (versions: Version[]) => Math.max(0, ...versions.map(({ id, above }) => id ?? above))

function emptied (state: State): State {
  const { document, past } = state
  return { ...state, document: null, past: document?.etag ? [...past, document.etag] : past }
}

/** The state after a write. `content` null deletes the document; `record` null records no version. */
function write (
  state: State, content: string | null, record: { action: string, content: string } | null, told: Told | undefined
): State | undefined {
  const { past, versions, ...rest } = emptied(state)
  if (told?.version !== undefined && (told.version === null) !== (record === null)) return undefined
  const above = newest(versions)
  const id = told?.version ?? null
  const etag = told?.etag ?? null
  if ((id !== null && id <= above) || (etag !== null && past.includes(etag))) return undefined
  return {
    ...rest,
    past,
    document: content === null ? null : { content, etag, isRecorded: record !== null },
    versions: record === null ? versions : [...versions, { id, above, ...record }]
  }
}

/** Sets the id of a version; undefined if the version has another id or if the id contradicts the order of versions. */
function bind (state: State, place: number, id: number): State | undefined {
  const { versions } = state
  const version = versions[place]!
  if (version.id !== null) return version.id === id ? state : undefined
  if (id <= version.above || versions.slice(0, place).some((before) => (before.id ?? before.above) >= id)) {
    return undefined
  }
  if (versions.slice(place + 1).some((after) => after.id !== null && after.id <= id)) return undefined
  return { ...state, versions: versions.map((one, i) => i === place ? { ...one, id } : one) }
}

function readBy (state: State, told: Document | null): State | undefined {
  const { document, versions, past, key } = state
  if (document === null || told === null) return document === told ? state : undefined
  if (told.content !== document.content || (told.key ?? key) !== key) return undefined
  if (document.etag === null ? past.includes(told.etag) : document.etag !== told.etag) return undefined
  const known = { ...state, document: { ...document, etag: told.etag } }
  if (told.version === undefined) return known
  if (!document.isRecorded) return told.version === null ? known : undefined
  if (told.version === null) return undefined
  return bind(known, versions.length - 1, told.version)
}

function listedBy (state: State, told: { id: number, action: string }[]): State | undefined {
  const { versions } = state
  if (told.length !== versions.length || told.some(({ action }, i) => action !== versions[i]!.action)) return undefined
  return told.reduce<State | undefined>((known, { id }, i) => known && bind(known, i, id), state)
}

/** Whether the history of a level is linearizable. */
export const judge = (history: History): Checked => check(level, history)

/** An atomic operation on several levels of a project, with the response for each level. */
export type Merged = Call<{ at: string[] } & Asked, Told[]>

/** The model of all levels of a project, by name. */
const project: Model<Record<string, State>, Merged['asked'], Told[]> = {
  initial: {},
  step (states, { at, ...asked }, told) {
    const after = { ...states }
    for (const [i, name] of at.entries()) {
      const next = level.step(after[name] ?? level.initial, asked, told?.[i])
      if (next === undefined) return undefined
      after[name] = next
    }
    return after
  }
}

/** Whether the history of a project is linearizable. */
export const judgeTogether = (calls: Merged[]): Checked => check(project, calls)

/**
 * Violations of the rules for version ids of an organization. Two levels must not have the same id. The id of a write
 * must be greater than all ids of all levels in responses that came before the request.
 */
export function idProblems (calls: Merged[]): string[] {
  const levels = new Map<number, string>()
  const problems: string[] = []
  const seen: { id: number, answered: number }[] = []
  for (const { asked: { at }, told = [], answered } of calls) {
    for (const [i, one] of told.entries()) {
      const ids = [one.version, one.document?.version, ...one.versions?.map(({ id }) => id) ?? []]
      for (const id of ids) {
        if (id === null || id === undefined) continue
        const before = levels.get(id) ?? at[i]!
        if (before !== at[i]) problems.push(`version ${id} is of ${before} and of ${at[i]}`)
        levels.set(id, before)
        seen.push({ id, answered })
      }
    }
  }
  for (const { told = [], sent } of calls) {
    for (const { version } of told) {
      if (version === undefined || version === null) continue
      const above = seen.find(({ id, answered }) => answered < sent && id >= version)
      if (above !== undefined) problems.push(`version ${version} was written when ${above.id} had been told`)
    }
  }
  return problems
}

/** A history as text: the operations in the order of their requests, and the point where the search failed. */
export function written (name: string, history: Call<Asked, Told | Told[]>[], { order, stuck }: Checked): string {
  const first = Math.min(...history.map(({ sent }) => sent))
  const ms = (time: number) => (time - first).toFixed(1).padStart(8)
  const lines = history.map(({ asked: { kind, ...asked }, told, sent, answered }, place) => [sent, [
    ms(sent), told === undefined ? '       ?' : ms(answered), `#${place}`.padStart(4),
    stuck.includes(place) ? '!' : order.includes(place) ? ' ' : '.',
    kind.padEnd(7), JSON.stringify(asked), '->', told === undefined ? 'unknown' : JSON.stringify(told)
  ].join(' ')] as const)
  return [
    `${name}: no order of these operations is one of ${Array.isArray(history[0]?.told) ? 'a project' : 'a level'}`,
    '    sent answered    #', ...lines.sort(([one], [other]) => one - other).map(([, line]) => line),
    `The longest order: ${order.map((place) => `#${place}`).join(' ')}; none of those with ! can come next.`
  ].join('\n')
}

const KINDS = ['project', 'target', 'environment'] as const
const kindOf = ({ target, environment }: Level) => environment ? 'environment' : target ? 'target' : 'project'
const nameOf = ({ project, target, environment }: Level) =>
  [project, target, environment].filter((part) => part !== undefined).join('/')

/** The history of a level so far, with all version ids and ETags from its responses. */
interface Kept { level: Level, history: History, versions: number[], etags: string[] }

/** Sends operations on the levels of one project (deepest first) and records their histories. */
export class Recorder {
  readonly levels: Kept[]
  /** The history of the project, in which an operation on several levels is one call. */
  readonly calls: Merged[] = []
  /** Responses that violate the contract of the operation. */
  readonly strange: unknown[] = []
  unknown = 0
  private contents = 0
  private readonly readings = new Map<string, (Document | null)[]>()

  constructor (levels: Level[]) {
    this.levels = levels.map((level) => ({ level, history: [], versions: [], etags: [] }))
  }

  /** Sends a random operation. */
  async one (send: Send, next: () => number): Promise<void> {
    const kept = this.levels[Math.floor(next() * this.levels.length)]!
    const { level } = kept
    const dice = next()
    const version = kept.versions.at(-1 - Math.floor(next() * 4)) ?? kept.versions[0]
    const etag = next() < 0.7 ? kept.etags.at(-1) : kept.etags.at(-2)
    if (dice < 0.24) return this.read(send, kept, next() < 0.4)
    if (dice < 0.34) return this.list(send, kept)
    if (dice < 0.44 && etag !== undefined) return this.store(send, kept, { ifMatch: etag })
    if (dice < 0.49) return this.store(send, kept, { isNew: true })
    if (dice < 0.54) return this.store(send, kept, { noBackup: true })
    if (dice < 0.68 || version === undefined) return this.store(send, kept, {}, next() < 0.3)
    if (dice < 0.73) {
      return this.ask(kept, { kind: 'version', version }, [200, 404], () =>
        send('GET', `/secrets/versions/${version}`))
    }
    if (dice < 0.84) {
      const restored = () => send('POST', `/secrets/versions/${version}/restore`, {})
      return this.ask(kept, { kind: 'restore', version }, [200, 404], restored, ({ status, body }) =>
        status === 200 ? { version: Number(/as version (\d+)/.exec(body.message)![1]) } : {})
    }
    if (dice < 0.89) {
      return this.ask(kept, { kind: 'delete' }, [204, 404], () => send('POST', '/secrets/delete', { ...level }))
    }
    if (dice < 0.91 && etag !== undefined) {
      const deleted = () => send('POST', '/secrets/delete', { ...level }, { 'if-match': etag })
      return this.ask(kept, { kind: 'delete', ifMatch: etag }, [204, 404, 412], deleted)
    }
    if (dice < 0.93) {
      const deleted = () => send('POST', '/secrets/delete', { ...level, no_backup: true, confirmed: true })
      return this.ask(kept, { kind: 'delete', forGood: true }, [204, 404], deleted)
    }
    if (dice < 0.96) {
      const force = next() < 0.5
      const removed = () => send('DELETE', `/secrets/versions/${version}`, force ? { force } : {})
      return this.ask(kept, { kind: 'remove', version, force }, [204, 404, 422], removed)
    }
    if (dice < 0.98) {
      const purged = () => send('POST', '/secrets/versions/purge', { ...level, level: kindOf(level), confirmed: true })
      return this.ask(kept, { kind: 'purge' }, [200], purged, ({ body }) => ({ purged: body.data.purged_count }))
    }
    if (dice < 0.985) return this.purgeAll(send)
    return this.rotate(send, next() < 0.5 ? 'keep' : 're_encrypt')
  }

  /** Records the final state of all levels, after all other requests have ended. */
  async end (send: Send): Promise<void> {
    for (const kept of this.levels) {
      await this.read(send, kept, false)
      await this.list(send, kept)
    }
  }

  /** Histories of levels that are not linearizable, as text. Without any, also checks the history of the project. */
  problems (name: string): string[] {
    const found = this.levels.flatMap(({ level, history }) => {
      const checked = judge(history)
      return checked.linearizable ? [] : [written(`${name}, ${nameOf(level)}`, history, checked)]
    })
    found.push(...idProblems(this.calls))
    if (found.length > 0) return found
    const checked = judgeTogether(this.calls)
    return checked.linearizable ? [] : [written(name, this.calls, checked)]
  }

  store (
    send: Send, kept: Kept, how: { ifMatch?: string, isNew?: boolean, noBackup?: boolean }, repeats = false
  ): Promise<void> {
    const content = `VALUE=${kindOf(kept.level)}-${++this.contents}`
    const body = { ...kept.level, plaintext: content, ...(how.noBackup && { no_backup: true }) }
    const headers = {
      ...(how.ifMatch !== undefined && { 'if-match': how.ifMatch }),
      ...(how.isNew && { 'if-none-match': '*' }),
      ...(repeats && { 'idempotency-key': `key-${nameOf(kept.level)}-${this.contents}` })
    }
    const once = () => send('POST', '/secrets/store', body, headers)
    return this.ask(kept, { kind: 'store', content, ...how }, [200, 412], repeats ? () => repeated(once) : once, (reply) => {
      if (reply.status !== 200) return {}
      const { version } = reply.body.data
      return { version: version === null ? null : Number(version), etag: reply.headers.get('etag')! }
    })
  }

  list (send: Send, kept: Kept): Promise<void> {
    const { level } = kept
    const listed = () => send('POST', '/secrets/versions', { ...level, level: kindOf(level), per_page: 100 })
    return this.ask(kept, { kind: 'list' }, [200], listed, ({ body: { data, meta } }) => {
      if (meta.total !== data.length) this.strange.push(['list', nameOf(level), meta, data.length])
      return {
        versions: data.map(({ id, attributes }: { id: string, attributes: { action: string } }) =>
          ({ id: Number(id), action: attributes.action })).reverse()
      }
    })
  }

  /** Reads a level and the levels above it. If `conditionally`, sends the ETag of an earlier read. */
  async read (send: Send, { level }: Kept, conditionally: boolean): Promise<void> {
    const path = nameOf(level)
    const known = conditionally
      ? [...this.readings.keys()].filter((key) => key.startsWith(`${path} `)).at(-1)
      : undefined
    const headers: Record<string, string> = known === undefined ? {} : { 'if-none-match': known.slice(path.length + 1) }
    const kinds = KINDS.slice(0, KINDS.indexOf(kindOf(level)) + 1)
    const above = kinds.map((kind) => this.levels.find(({ level: one }) =>
      kindOf(one) === kind && `${path}/`.startsWith(`${nameOf(one)}/`))!)
    const told = (reply: Reply): (Document | null)[] => {
      // The documents are unchanged. Versions may have been deleted since, which does not change the ETag.
      if (reply.status === 304) return this.readings.get(known!)!.map(withoutVersion)
      const { levels } = reply.body.data.attributes
      const documents = kinds.map((kind) => levels[kind] ? documentOf(levels[kind]) : null)
      this.readings.set(`${path} ${reply.headers.get('etag')}`, documents)
      return documents
    }
    const sent = performance.now()
    const reply = await this.answerOf(() => send('GET', `/${path}/secrets?decrypt=true`, undefined, headers))
    const answered = performance.now()
    if (reply === undefined) return
    if (![200, 304].includes(reply.status)) {
      this.strange.push(['read', path, reply.status, reply.body])
      return
    }
    const all = told(reply).map((document): Told => ({ status: 200, document }))
    this.keep(above, { kind: 'read' }, all, sent, answered)
  }

  rotate (send: Send, history_policy: 'keep' | 're_encrypt'): Promise<void> {
    const { project } = this.levels[0]!.level
    const rotated = () => send('POST', `/${project}/encryption-key/rotate`, { history_policy })
    return this.ask(this.levels, { kind: 'rotate' }, [200, 409], rotated, ({ status, body }) =>
      status === 200 ? { key: Number(body.data.key.attributes.version) } : {})
  }

  purgeAll (send: Send): Promise<void> {
    const { project } = this.levels[0]!.level
    const purged = () => send('POST', '/secrets/versions/purge', { project, scope: 'project', confirmed: true })
    return this.ask(this.levels, { kind: 'purge' }, [200], purged)
  }

  private async ask (
    levels: Kept | Kept[], asked: Asked, statuses: number[], ask: () => Promise<Reply>,
    more: (reply: Reply) => Omit<Told, 'status'> = () => ({})
  ): Promise<void> {
    const sent = performance.now()
    const reply = await this.answerOf(ask)
    const answered = performance.now()
    if (reply !== undefined && !statuses.includes(reply.status)) this.strange.push([asked, reply.status, reply.body])
    // Another rotation was running, so this rotation had no effect.
    if (asked.kind === 'rotate' && reply?.status === 409) return
    const told = reply && { status: reply.status, ...(statuses.includes(reply.status) && more(reply)) }
    if (told === undefined) this.unknown++
    const all = [levels].flat()
    this.keep(all, asked, told && all.map(() => told), sent, answered)
  }

  /** The response. Undefined without a response and for a 503, because the effect of the request is unknown. */
  private async answerOf (ask: () => Promise<Reply>): Promise<Reply | undefined> {
    const reply = await ask().catch(() => undefined)
    return reply?.status === 503 ? undefined : reply
  }

  private keep (all: Kept[], asked: Asked, told: Told[] | undefined, sent: number, answered: number) {
    const isRead = asked.kind === 'read' || asked.kind === 'list' || asked.kind === 'version'
    if (told === undefined && isRead) return
    this.calls.push({ asked: { at: all.map(({ level }) => nameOf(level)), ...asked }, told, sent, answered })
    for (const [i, { history, versions, etags }] of all.entries()) {
      const one = told?.[i]
      history.push({ asked, told: one, sent, answered })
      for (const id of [one?.version, one?.document?.version]) if (id && !versions.includes(id)) versions.push(id)
      const etag = one?.etag ?? one?.document?.etag
      if (etag !== undefined && etags.at(-1) !== etag) etags.push(etag)
    }
  }
}

interface Answered { content: string, etag: string, version: string | null, key_version: string }
const documentOf = ({ content, etag, version, key_version }: Answered): Document =>
  ({ content, etag, version: version === null ? null : Number(version), key: Number(key_version) })

function withoutVersion (document: Document | null): Document | null {
  if (document === null) return null
  const { version: _, ...rest } = document
  return rest
}

const TRIES = 50

// For requests with an `Idempotency-Key`, which take effect only once, even if the client repeats them.
async function repeated (send: () => Promise<Reply>): Promise<Reply> {
  for (let tries = 1; ; tries++) {
    const reply = await send().catch(() => undefined)
    if (reply !== undefined && reply.status < 500 && reply.body.error !== 'conflict') return reply
    if (tries === TRIES) throw new Error('no answer')
    await pause(5)
  }
}

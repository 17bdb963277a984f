import { setTimeout as pause } from 'node:timers/promises'
import { check, type Call, type Checked, type Model } from './linearizable.ts'
import type { Level, Reply, Send } from './traffic.ts'

// What clients ask of a level, what they are told, and what the domain says a level is. Each level is checked by
// itself, where what is about a whole project is an operation of each of its levels, and then all of them as one, where
// it is one operation: a read that saw one level before a write and the other behind it is right at each.

export interface Document {
  content: string
  etag: string
  /** Undefined when the answer does not tell: null when no version holds the document. */
  version?: number | null
  key?: number
}

/** What was asked of one level. */
export type Asked =
  | { kind: 'read' } | { kind: 'list' } | { kind: 'version', version: number }
  | { kind: 'store', content: string, ifMatch?: string, isNew?: boolean, noBackup?: boolean }
  | { kind: 'restore', version: number }
  | { kind: 'delete', ifMatch?: string, forGood?: boolean }
  | { kind: 'remove', version: number, force: boolean }
  | { kind: 'purge' } | { kind: 'rotate' }

/** What was answered: the status alone where that tells all, and what is told beside it. */
export interface Told {
  status: number
  /** Of a read; null where the level has no document. */
  document?: Document | null
  /** Of a list, oldest first. */
  versions?: { id: number, action: string }[]
  /** Of a write; null where none is recorded. */
  version?: number | null
  etag?: string
  purged?: number
  key?: number
}

export type History = Call<Asked, Told>[]

interface Version {
  /** Null until an answer tells it. */
  id: number | null
  /** It is above all that were told before. */
  above: number
  action: string
  content: string
}

/** A level: its document, its versions, oldest first, and the ids that an answer has told. */
interface State {
  document: { content: string, etag: string | null, isRecorded: boolean } | null
  versions: Version[]
  key: number
  /** ETags that were; no later document has one of them. */
  past: string[]
}

/**
 * A level as the domain has it. Which id a version has and which ETag a document is known once an answer tells: from
 * then on it stays that.
 */
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

/** The highest id that an answer has told. */
const newest = (versions: Version[]) => Math.max(0, ...versions.map(({ id, above }) => id ?? above))

function emptied (state: State): State {
  const { document, past } = state
  return { ...state, document: null, past: document?.etag ? [...past, document.etag] : past }
}

/** A write, which records a version or none, and makes the next document or none. */
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

/** The state once an answer has told the id of a version; undefined when that is another, or against the order. */
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

/** Whether a history is one of a level. */
export const judge = (history: History): Checked => check(level, history)

/** One operation of several levels of a project, which happens at all of them at once: what each was asked and told. */
export type Merged = Call<{ at: string[] } & Asked, Told[]>

/** The levels of a project as one: by their names, those that something happened at. */
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

/** Whether what happened at several levels is a history of a project. */
export const judgeTogether = (calls: Merged[]): Checked => check(project, calls)

/**
 * Version ids that are not those of one organization: one that two levels have, and one that is not above those that
 * somebody had been told, at whichever level, before its write was sent.
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

/** A history to read: the operations in the order in which they were sent, and where no order goes on. */
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

/** What has happened at each level so far, and what its clients have learnt from it. */
interface Kept { level: Level, history: History, versions: number[], etags: string[] }

/** Levels of one project, deepest first, and the histories of them that clients record. */
export class Recorder {
  readonly levels: Kept[]
  /** The same, with what is one operation of several levels as one. */
  readonly calls: Merged[] = []
  /** Answers that are none that the operation has. */
  readonly strange: unknown[] = []
  unknown = 0
  private contents = 0
  private readonly readings = new Map<string, (Document | null)[]>()

  constructor (levels: Level[]) {
    this.levels = levels.map((level) => ({ level, history: [], versions: [], etags: [] }))
  }

  /** One operation of a random mix. */
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

  /** What everybody sees in the end, when nothing is under way. */
  async end (send: Send): Promise<void> {
    for (const kept of this.levels) {
      await this.read(send, kept, false)
      await this.list(send, kept)
    }
  }

  /** The histories that are none of a level, written down; where there are none, that of the project if it is none. */
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

  /** Reads a level and those above it; `If-None-Match` asks whether they are what somebody has read before. */
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
      // It is as it was then; a version of it may have been removed since, which its ETag does not tell.
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
    // Two rotations at once: nothing came of this one.
    if (asked.kind === 'rotate' && reply?.status === 409) return
    const told = reply && { status: reply.status, ...(statuses.includes(reply.status) && more(reply)) }
    if (told === undefined) this.unknown++
    const all = [levels].flat()
    this.keep(all, asked, told && all.map(() => told), sent, answered)
  }

  /** The answer, where one came and told what came of the request. */
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

// With an `Idempotency-Key`: however often it is sent, it happens once.
async function repeated (send: () => Promise<Reply>): Promise<Reply> {
  for (let tries = 1; ; tries++) {
    const reply = await send().catch(() => undefined)
    if (reply !== undefined && reply.status < 500 && reply.body.error !== 'conflict') return reply
    if (tries === TRIES) throw new Error('no answer')
    await pause(5)
  }
}

import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import type { ErrorCode } from '../../../schemas/errors.ts'
import {
  NameHistoryAnswer, NameHistoryQuery, NamesAnswer, NamesQuery, SHELL_TYPE, VALUES_TYPES, ValuesAnswer, ValuesQuery,
  YAML_TYPE, type NameChange, type SecretName
} from '../../../schemas/names.ts'
import { ReadHeaders } from '../../../schemas/shapes.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import { shownAuthor } from '../../db/rows/author.ts'
import { locate, levelOf, slicesOf } from '../../http/guard/level-lookup.ts'
import { listsEtag } from '../../http/repeats/etags.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { sendRead, writeIfLarge } from '../../http/responses/large-responses.ts'
import { sayLeftOut } from '../../http/responses/headers.ts'
import { preferredType } from '../../http/responses/negotiation.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import { LEVEL_PATHS } from '../../http/routes/routes.ts'
import { waitFor } from '../../http/routes/request-deadline.ts'
import type { Domain } from '../../http/routes/types.ts'
import { placeDetails } from '../../repositories/audit/audit.ts'
import { ownSecret, type Include, type LevelState } from '../../repositories/levels/levels.ts'
import { listVersionContents, NEWEST } from '../../repositories/secrets/version-contents.ts'
import { nameFilter, type Entries } from '../../rules/documents/entries.ts'
import { dockerText, shellText, yamlText, type ExportedText } from '../../rules/editing/export.ts'
import { fail } from '../../rules/api-error.ts'
import { etagOf } from '../../vault/documents/documents.ts'
import { nameHistory, type Change } from '../../vault/documents/name-history.ts'
import {
  charactersOf, currentContents, eventOfReading, leftOutOf, levelsByName, mergedValues, requireNames,
  restrictionsInEtag, storedSecrets, VALUES_EDITION, viewOf, type Contents, type View
} from '../../vault/documents/read.ts'
import { storageKeyOf } from '../../vault/keys/keys.ts'

const ERRORS = [
  'invalid_parameter_combination', 'client_managed_encryption', 'document_unreadable', 'integrity_error'
] as const satisfies ErrorCode[]

const UNCHANGED = Type.Null({ description: 'Not modified since the ETag in If-None-Match' })

/** Decrypted documents of a level. */
interface Opened { state: LevelState, view: View, documents: Contents }

/** Routes that read names and values. The routes of `secrets.ts` read whole documents. */
export const names: Domain = async (app) => {
  for (const { level, path, word } of LEVEL_PATHS) {
    app.get(`/:organization${path}/secrets/values`, {
      config: {
        access: ['secret:read', 'secret:decrypt'],
        at: level,
        include,
        audit: 'secret.decrypt',
        errors: [...ERRORS, 'names_not_in_shell', 'names_not_in_docker']
      },
      schema: {
        operationId: `read${word}Values`,
        summary: `Read the values of the ${level}, merged with the levels above: JSON, a shell text or YAML, by Accept`,
        description: 'For a process or a script: each name once, with the value of the deepest level.',
        querystring: ValuesQuery,
        headers: ReadHeaders,
        response: { 200: ValuesAnswer, 304: UNCHANGED }
      },
      handler: async (request, reply) => sendValues(request, reply, request.query)
    })

    app.get(`/:organization${path}/secrets/names`, {
      config: { access: ['secret:read', 'secret:decrypt'], at: level, include, audit: 'secret.names', errors: ERRORS },
      schema: {
        operationId: `read${word}Names`,
        summary: `List the names of the ${level}, without values; with merge, of the levels above as well`,
        description: 'Each name has the level of its value.',
        querystring: NamesQuery,
        headers: ReadHeaders,
        response: { 200: NamesAnswer, 304: UNCHANGED }
      },
      handler: async (request, reply) => sendNames(request, reply, request.query)
    })

    app.get(`/:organization${path}/secrets/names/history`, {
      config: {
        access: ['secret:read', 'secret:decrypt', 'secret:history'],
        at: level,
        include: 'revisions',
        audit: ['secret.names', 'secret.decrypt'],
        errors: ['invalid_parameter_combination', 'client_managed_encryption', 'integrity_error']
      },
      schema: {
        operationId: `read${word}NameHistory`,
        summary: `List the versions of the ${level}'s document that changed a name, newest first`,
        description: 'Each entry has the action, time and author of the version; `values` adds the value.',
        querystring: NameHistoryQuery,
        response: { 200: NameHistoryAnswer }
      },
      handler: async (request, reply) => {
        const { query } = request
        const answer = await inTurn(request, async (turn) => traceName(request, query, turn))
        const characters = answer.data.reduce((sum, { attributes }) => sum +
          (attributes.value?.length ?? 0) + (attributes.json?.length ?? 0), 0)
        return sendRead(reply, answer, characters)
      }
    })
  }

  async function sendValues (request: FastifyRequest, reply: FastifyReply, { format }: ValuesQuery) {
    const type = format ?? preferredType(request.headers.accept, VALUES_TYPES)
    const opened = await open(request, reply, true, ['values', type])
    if (opened === undefined) return reply.code(304).send()
    const { state, view, documents } = opened
    const values = await mergedValues(state, documents, view)
    const form = TEXTS[type]
    const written = form && await textOf(form, values)
    // An error that contains names of the document is also recorded as a read.
    await record(request, opened, 'secret.decrypt')
    if (written !== undefined && 'names' in written) return fail(form!.refusal!, { names: written.names })
    if (isAnyKnown(request)) return reply.code(304).send()
    sayLeftOut(reply, view)
    if (written !== undefined) return reply.type(`${form!.type}; charset=utf-8`).serializer(String).send(written.text)
    reply.type(type).serializer(JSON.stringify)
    return reply.send(await writeIfLarge(values, charactersOf(documents)))
  }

  async function sendNames (request: FastifyRequest, reply: FastifyReply, query: NamesQuery) {
    const { merge = false, prefix = '', search = '' } = query
    const opened = await open(request, reply, merge, ['names', String(merge), prefix, search])
    if (opened === undefined) return reply.code(304).send()
    const { view } = opened
    const levels = await levelsByName(opened.state, opened.documents, view)
    const listed = [...levels.keys()].filter(nameFilter(prefix, search))
    await yieldToEventLoop()
    const data = listed.sort().map((name): SecretName => {
      const overrides = [...levels.get(name)!]
      const level = overrides.pop()!
      const shown = overrides.filter((level) => !view.onlyMerged.includes(level))
      return { type: 'secret-names', attributes: { name, level, overrides: shown } }
    })
    await record(request, opened, 'secret.names')
    if (isAnyKnown(request)) return reply.code(304).send()
    return sendRead(reply, { data, meta: { total: data.length, ...leftOutOf(view) } }, charactersOf(opened.documents))
  }

  async function traceName (
    request: FastifyRequest, { name, values = false, after }: NameHistoryQuery, turn: Turn
  ) {
    const { organization } = principalOf(request)
    const state = levelOf(request)
    requireNames(state)
    const secret = ownSecret(state)
    const { retention_days } = organization.plan
    const context = { ...turn, keyring: app.keyring, storageKey: storageKeyOf(app.keyring, organization) }
    const { changes, opened, unreadable, missing, next } = await nameHistory(
      context, state, { name, after: after === undefined ? NEWEST : Number(after), withJson: values },
      async (before, limit) => secret === undefined
        ? { rows: [], isEnd: true, lostAfter: 0, lostBefore: 0 }
        : waitFor(request, listVersionContents(app.lists, state, secret, retention_days, before, limit))
    )
    const [newest] = opened
    const data = changes.map((change) => toItem(change, values))
    await app.recordRead(actorOf(request), {
      action: values ? 'secret.decrypt' : 'secret.names',
      resource_type: state.level,
      resource_id: state.level_id,
      details: {
        ...placeDetails(state),
        secrets: secret?.id ?? '',
        versions: opened.length,
        first: opened.at(-1)?.id ?? null,
        last: newest?.id ?? null
      }
    }, opened.reduce((sum, { size_bytes }) => sum + size_bytes, 0))
    return { data, meta: { unreadable, missing, next: next === null ? null : String(next) } }
  }

  async function record (
    request: FastifyRequest, { state, view }: Opened, action: 'secret.decrypt' | 'secret.names'
  ) {
    const { event, bytes } = eventOfReading(state, view.documents, action)
    await app.recordRead(actorOf(request), event, bytes)
  }

  /**
   * Decrypts the document of the level, or if merged all documents on its path. Sets the ETag. Returns undefined if
   * `If-None-Match` lists this ETag.
   */
  async function open (
    request: FastifyRequest, reply: FastifyReply, isMerged: boolean, shape: readonly string[]
  ): Promise<Opened | undefined> {
    const { organization } = principalOf(request)
    const slices = slicesOf(request)
    const storageKey = storageKeyOf(app.keyring, organization)
    const look = (state: LevelState) => {
      requireNames(state)
      const documents = storedSecrets(state).filter(({ level_id }) => isMerged || level_id === state.level_id)
      const view = viewOf(state, documents, slices, isMerged)
      const parts = [VALUES_EDITION, ...shape, state.project.secret_format, ...restrictionsInEtag(view)]
      const etag = etagOf(storageKey, view.documents, ...parts)
      reply.header('etag', etag)
      return { state, view, etag }
    }
    let found = look(levelOf(request))
    const known = request.headers['if-none-match']
    if (known !== undefined && !isAnyKnown(request)) {
      if (listsEtag(known, found.etag)) return undefined
      // The ETag differs: load the contents, which the first look-up omitted.
      found = look(await locate(app, request, 'readable'))
    }
    const { state, view } = found
    return { state, view, documents: await currentContents(app.keyring, storageKey, state, view.documents, true) }
  }
}

/**
 * Whether the request has `If-None-Match: *`. Only a successful response can become 304 (RFC 9110, 13.2.1), so the
 * request is first handled without this header. A listed ETag needs no such check: it comes from a successful response.
 */
const isAnyKnown = ({ headers }: FastifyRequest) => headers['if-none-match'] === '*'

// A request with ETags first loads only the revisions. `open` loads the contents if the ETag differs.
const include = (request: FastifyRequest): Include =>
  request.headers['if-none-match'] === undefined || isAnyKnown(request) ? 'readable' : 'revisions'

function toItem ({ version, change, value, json }: Change, withValues: boolean): NameChange {
  const { id, action, created_at } = version
  return {
    type: 'secret-name-changes',
    id: String(id),
    attributes: {
      change,
      action,
      created_at,
      ...shownAuthor(version),
      ...(withValues && { value: value ?? null, json: json ?? null })
    }
  }
}

interface TextForm {
  type: string
  write: (values: Entries) => ExportedText
  /** The error for names and values that the form cannot hold. */
  refusal?: 'names_not_in_shell' | 'names_not_in_docker'
}

/** The responses with values that are texts, by the media type or the parameter `format`. */
const TEXTS: Record<string, TextForm | undefined> = {
  [SHELL_TYPE]: { type: SHELL_TYPE, write: shellText, refusal: 'names_not_in_shell' },
  [YAML_TYPE]: { type: YAML_TYPE, write: yamlText },
  docker: { type: SHELL_TYPE, write: dockerText, refusal: 'names_not_in_docker' }
}

// Names to write per step; between steps, the event loop serves other requests.
const STEP = 500

async function textOf ({ write }: TextForm, values: Entries): Promise<ExportedText> {
  const entries = Object.entries(values)
  const names: string[] = []
  let text = ''
  let at = 0
  // The loop also runs once without entries, because YAML has a text for an empty mapping.
  do {
    const part = Object.fromEntries(entries.slice(at, at += STEP))
    const written = write(part)
    if ('names' in written) names.push(...written.names)
    else text += written.text
    await yieldToEventLoop()
  } while (at < entries.length)
  return names.length > 0 ? { names: names.sort() } : { text }
}

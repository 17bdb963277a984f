import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type, type Static } from '@sinclair/typebox'
import { DryRunAnswer } from '../../schemas/dry-run.ts'
import type { ErrorCode } from '../../schemas/errors.ts'
import {
  DeleteBody, RAW_TYPE, READ_TYPE, ReadAnswer, ReadSecretsQuery, RetrieveAnswer, RetrieveBody, StoreAnswer, StoreBody,
  type Merge
} from '../../schemas/secrets.ts'
import { BLOB_BYTES, NoContent, ReadHeaders, WriteHeaders } from '../../schemas/shapes.ts'
import { change, changeDocument } from '../changes/change.ts'
import { takeLargeBodies } from '../http/bodies/large-bodies.ts'
import { booleanIn } from '../http/bodies/validation.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import { requireScope } from '../http/guard/access.ts'
import { isDryRun } from '../http/routes/params.ts'
import { listsEtag, requirePrecondition } from '../http/repeats/etags.ts'
import { writeIfLarge } from '../http/responses/large-responses.ts'
import { sayLeftOut } from '../http/responses/headers.ts'
import {
  levelOf, locate, lockLevel, namesIn, namesOf, requireInside, requireLevel, slicesOf, TARGET_RULE
} from '../http/guard/level-lookup.ts'
import { LEVEL_PATHS } from '../http/routes/routes.ts'
import type { Domain, Rule } from '../http/routes/types.ts'
import { waitFor } from '../http/routes/request-deadline.ts'
import { eventOf, placeDetails } from '../repositories/audit/audit.ts'
import { emptySecret } from '../repositories/secrets/re-encryption.ts'
import {
  activeKeyOf, ownSecret, type Include, type LevelState, type SecretRow
} from '../repositories/levels/levels.ts'
import { findDocumentsAt } from '../repositories/secrets/point-in-time.ts'
import { purgeHistories } from '../repositories/operations/cleanup.ts'
import { fail, refuse } from '../rules/api-error.ts'
import { requireKeptAt } from '../rules/moments.ts'
import { requireTimestamp } from '../rules/formats/timestamps.ts'
import { acceptContent, notesOf } from '../vault/documents/accept.ts'
import { retrievalOf, revealKey } from '../vault/keys/descriptors.ts'
import { etagOf, openCurrent, sizeOf } from '../vault/documents/documents.ts'
import { dryRunAnswer, eventOfDryRun, planChange, plannedLevel } from '../vault/documents/dry-run.ts'
import type { Change } from '../vault/documents/plan-write.ts'
import { storageKeyOf } from '../vault/keys/keys.ts'
import {
  answerReading, charactersOf, currentContents, eventOfReading, pastContents, readingEtag, storedSecrets, viewOf,
  type Contents, type Reading, type View
} from '../vault/documents/read.ts'
import { removeSome } from '../vault/deletions.ts'

const READ_ERRORS = [
  'invalid_parameter_combination', 'client_managed_encryption', 'document_unreadable', 'integrity_error'
] as const satisfies ErrorCode[]

export const secrets: Domain = async (app) => {
  for (const { level, path, word } of LEVEL_PATHS) {
    app.get(`/:organization${path}/secrets`, {
      config: {
        access: 'secret:read',
        mayNeed: ['secret:decrypt', 'secret:history'],
        rules: combinationRules(({ query }) => parametersOf(query as ReadSecretsQuery)),
        at: level,
        // The prefetch calls this function before the query is validated, when `decrypt` is still a string.
        include: (request) => {
          const { decrypt, at } = request.query as ReadSecretsQuery
          return at === undefined ? includedForRead(request, booleanIn(String(decrypt)) === true) : 'place'
        },
        audit: ['secret.decrypt', 'version.read'],
        errors: [...READ_ERRORS, 'version_locked', 'version_gone'],
        hasLongPath: true
      },
      schema: {
        operationId: `read${word}Secrets`,
        summary: `Read the documents of the ${level} and of the levels above`,
        description: 'Returns encrypted documents, or plain ones with `decrypt`; `merge` combines the levels, and ' +
          '`at` reads the past.',
        querystring: ReadSecretsQuery,
        headers: ReadHeaders,
        response: { 200: ReadAnswer, 304: Type.Null({ description: 'Not modified since the ETag in If-None-Match' }) }
      },
      // The scope is checked before the other parameters are validated.
      preValidation: async (request) => {
        const { decrypt, at } = request.query as { decrypt?: unknown, at?: unknown }
        if (booleanIn(decrypt) === true) requireScope(request, 'secret:decrypt')
        if (at !== undefined) requireScope(request, 'secret:history')
      },
      handler: async (request, reply) => {
        const reading = readingOfQuery(request)
        return reading.at === undefined ? read(request, reply, reading) : readPast(request, reply, reading, reading.at)
      }
    })
  }

  app.post('/:organization/secrets/retrieve', {
    config: {
      access: 'authenticated',
      repeatable: false,
      mayNeed: ['secret:read', 'secret:decrypt', 'key:retrieve'],
      rules: [...combinationRules(readingOfBody), TARGET_RULE],
      at: ({ body }) => namesOf(body as RetrieveBody),
      include: (request) => {
        const { action = 'read' } = request.body as RetrieveBody
        return action === 'key:retrieve' ? 'key' : includedForRead(request, action === 'decrypt')
      },
      audit: ['secret.decrypt', 'key.retrieve'],
      errors: [...READ_ERRORS, 'insufficient_permissions'],
      hasLongPath: true
    },
    schema: {
      operationId: 'retrieveSecrets',
      summary: 'Read or decrypt documents, or get the key, named in a body; the required scope depends on `action`',
      description: 'For tools that name the level in a body; other clients read `…/secrets` of the level.',
      body: RetrieveBody,
      response: { 200: RetrieveAnswer }
    },
    // The scope is checked before the other fields of the body are validated.
    preValidation: async (request) => {
      const action = (request.body as { action?: unknown } | undefined)?.action
      requireScope(request, action === 'decrypt'
        ? 'secret:decrypt'
        : action === 'key:retrieve' ? 'key:retrieve' : 'secret:read')
    },
    handler: async (request, reply) => {
      const reading = readingOfBody(request)
      return reading.action === 'key:retrieve' ? retrieveKey(request, reply) : read(request, reply, reading)
    }
  })

  await app.register(storing)

  app.post('/:organization/secrets/delete', {
    config: {
      access: 'secret:write',
      mayNeed: ['secret:purge'],
      rules: [TARGET_RULE],
      at: ({ body }) => namesOf(body as DeleteBody),
      include: 'revisions',
      dryRun: true,
      audit: ['secret.delete', 'secret.names'],
      errors: ['confirmation_required', 'precondition_failed']
    },
    schema: {
      operationId: 'deleteSecrets',
      summary: 'Delete the document of a level; a restore snapshot is kept unless no_backup is set',
      description: 'The level itself stays. Restore the snapshot to undo the deletion.',
      headers: WriteHeaders,
      body: DeleteBody,
      response: { 200: DryRunAnswer, 204: NoContent }
    },
    preValidation: async (request) => {
      const body = request.body as { no_backup?: unknown, confirmed?: unknown } | undefined
      if (body?.no_backup !== true) return
      requireScope(request, 'secret:purge')
      if (body.confirmed !== true) fail('confirmation_required')
    },
    handler: async (request, reply) => {
      const { no_backup = false } = request.body
      if (no_backup && !isDryRun(request)) await deleteForGood(request)
      else {
        const planned = await deleteWithSnapshot(request, no_backup)
        if (planned !== null) return reply.code(200).send(planned)
      }
      return reply.code(204).send(null)
    }
  })

  /** Deletes the document and keeps a snapshot. A dry run of a deletion with or without a snapshot returns the plan. */
  async function deleteWithSnapshot (
    request: FastifyRequest, no_backup: boolean
  ): Promise<Static<typeof DryRunAnswer> | null> {
    const { organization } = principalOf(request)
    const storageKey = storageKeyOf(app.keyring, organization)
    const { body } = await changeDocument<Static<typeof DryRunAnswer> | null>(app.db, actorOf(request), {
      storageKey,
      load: { names: namesIn(request), include: 'readable' },
      bytes: ownSecret(levelOf(request))?.size_bytes ?? 0,
      decide (found) {
        const state = requireLevel(request, found)
        const secret = ownSecret(state)
        if (!isStored(secret)) return fail('not_found', { resource: 'secret' })
        requirePrecondition(request.headers, () => etagOf(storageKey, [secret]))
        const record = { action: 'delete' as const, blob: openCurrent(storageKey, state, secret) }
        const change: Change = { blob: null, record: no_backup ? null : record, event: 'secret.delete' }
        if (!isDryRun(request)) return { change, answer: () => ({ status: 204, body: null }) }
        const planned = planChange(app.keyring, storageKey, state, change, null)
        return {
          change,
          read: eventOfDryRun(change, planned, 'secret.names'),
          dryRun: async () => ({ body: dryRunAnswer(await plannedLevel(planned)) })
        }
      }
    })
    return body
  }

  async function deleteForGood (request: FastifyRequest) {
    const { organization } = principalOf(request)
    await change(app.db, actorOf(request), {
      async load (db) {
        const state = await lockLevel(db, request)
        const secret = ownSecret(state)
        if (!isStored(secret)) return fail('not_found', { resource: 'secret' })
        requirePrecondition(request.headers, () => etagOf(storageKeyOf(app.keyring, organization), [secret]))
        return { state, secret }
      },
      decide: ({ state, secret }) => ({
        async write (db, lockCounter) {
          const purged = await purgeHistories(db, organization.id, state.project.id, { secret_id: secret.id })
          await emptySecret(db, state, secret, await lockCounter())
          await removeSome(db, organization.id)
          return purged
        },
        events: ({ versions: purged, bytes }) => [{
          ...eventOf('secret.delete', secret.id, { ...placeDetails(state), level: state.level, purged }),
          growth: -bytes - secret.size_bytes
        }]
      })
    })
    app.removals.wake()
  }

  async function read (request: FastifyRequest, reply: FastifyReply, parameters: ReadParameters) {
    const { organization } = principalOf(request)
    const slices = slicesOf(request)
    const reading = toReading(request, parameters)
    const storageKey = storageKeyOf(app.keyring, organization)
    const look = (state: LevelState) => {
      validateReading(state, reading)
      const view = viewOf(state, storedSecrets(state), slices, isMerging(reading))
      return { state, view, etag: readingEtag(storageKey, state, view, reading) }
    }
    let found = look(levelOf(request))
    if (isConditional(request)) {
      const { etag } = found
      if (listsEtag(request.headers['if-none-match'], etag)) return reply.header('etag', etag).code(304).send()
      // The ETag differs: load the contents, which the first look-up omitted.
      found = look(await locate(app, request, includedContents(reading.decrypt)))
    }
    const { state, view, etag } = found
    reply.header('etag', etag)
    const documents = await currentContents(app.keyring, storageKey, state, view.documents, reading.decrypt)
    const answer = await answerReading(storageKey, state, view, documents, reading)
    if (reading.decrypt) await recordReading(request, state, view.documents, 'secret.decrypt')
    return send(reply, reading, view, documents, answer)
  }

  async function readPast (request: FastifyRequest, reply: FastifyReply, parameters: ReadParameters, at: Date) {
    const { organization } = principalOf(request)
    const slices = slicesOf(request)
    const reading = toReading(request, parameters)
    const storageKey = storageKeyOf(app.keyring, organization)
    const state = levelOf(request)
    validateReading(state, reading)
    const found = await waitFor(
      request, findDocumentsAt(app.reads, state, at, organization.plan.retention_days)
    ) ?? fail('not_found', { resource: state.level, at })
    if (found === 'future') return refuse('at', 'Lies in the future')
    const view = viewOf(state, found, slices, isMerging(reading))
    requireKeptAt(view.documents, organization.plan, view.onlyMerged)
    const etag = readingEtag(storageKey, state, view, reading)
    reply.header('etag', etag)
    if (listsEtag(request.headers['if-none-match'], etag)) return reply.code(304).send()
    const documents = await pastContents(app.keyring, storageKey, view.documents, reading.decrypt)
    const answer = await answerReading(storageKey, state, view, documents, reading)
    const action = reading.decrypt ? 'secret.decrypt' : 'version.read'
    await recordReading(request, state, view.documents, action, { at: at.toISOString() })
    return send(reply, reading, view, documents, answer)
  }

  async function send (
    reply: FastifyReply, { raw }: Reading, view: View<unknown>, documents: Contents, answer: object
  ) {
    if (raw) sayLeftOut(reply, view)
    reply.type(raw ? RAW_TYPE : READ_TYPE).serializer(JSON.stringify)
    return reply.send(await writeIfLarge(answer, charactersOf(documents)))
  }

  // A read with status 304 is not recorded, because it reveals nothing new to the caller.
  async function recordReading (request: FastifyRequest, ...reading: Parameters<typeof eventOfReading>) {
    const { event, bytes } = eventOfReading(...reading)
    await app.recordRead(actorOf(request), event, bytes)
  }

  async function retrieveKey (request: FastifyRequest, reply: FastifyReply) {
    const state = levelOf(request)
    requireInside(request, { project_id: state.project.id })
    const key = activeKeyOf(state)
    const answer = revealKey(app.keyring, key)
    await app.recordRead(actorOf(request), retrievalOf(key, state.project))
    return reply.type(READ_TYPE).serializer(JSON.stringify).send(answer)
  }
}

// JSON can escape each byte of a document, as `\u001b`, in six bytes. The rest of the body has 64 KiB.
const ESCAPED_FACTOR = 6
const MAX_ESCAPED_BYTES = ESCAPED_FACTOR * BLOB_BYTES + 64 * 1024

// A separate plugin, because a body with an escaped document needs another content type parser.
const storing: Domain = async (app) => {
  app.post('/:organization/secrets/store', {
    ...takeLargeBodies(app, { schema: StoreBody, maxBytes: MAX_ESCAPED_BYTES, factor: ESCAPED_FACTOR }),
    config: {
      access: 'secret:write',
      rules: [{ reads: [], check: ({ body }) => { validateContent(body as StoreBody) } }, TARGET_RULE],
      at: ({ body }) => namesOf(body as StoreBody),
      isFoundByWrite: true,
      dryRun: true,
      audit: ['secret.store', 'secret.decrypt'],
      errors: [
        'precondition_failed', 'client_managed_encryption', 'content_not_decryptable', 'document_unreadable',
        'key_proof_required', 'key_proof_mismatch', 'key_proof_reveals_key', 'plan_limit_reached'
      ]
    },
    schema: {
      operationId: 'storeSecrets',
      summary: 'Store the document of a level and record a version',
      description: 'Replaces the whole document: send `plaintext`, which the server encrypts, or encrypted `content`.',
      headers: WriteHeaders,
      body: StoreBody,
      response: { 200: StoreAnswer }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { no_backup = false } = request.body
      const storageKey = storageKeyOf(app.keyring, organization)
      const { content = '', plaintext } = request.body
      const { headers = {}, body } = await changeDocument(app.db, actorOf(request), {
        storageKey,
        load: { names: namesIn(request), include: isDryRun(request) ? 'readable' : 'storable' },
        bytes: content.length + (plaintext ?? '').length,
        decide (found) {
          const state = requireLevel(request, found)
          const secret = ownSecret(state)
          requirePrecondition(request.headers, () => secret?.is_stored ? etagOf(storageKey, [secret]) : undefined)
          const accepted = acceptContent(app, state, request.body)
          const { blob, revealed } = accepted
          const notes = notesOf(state, accepted)
          const record = no_backup ? null : { action: secret?.is_stored ? 'update' as const : 'create' as const, blob }
          const change: Change = { blob, record, event: 'secret.store', revealed }
          if (!isDryRun(request)) {
            return {
              change,
              answer: (written) => ({
                headers: { etag: etagOf(storageKey, [written.secret]) },
                body: { ...answerOfStore(state, written.secret), ...notes }
              })
            }
          }
          const planned = planChange(app.keyring, storageKey, state, change, plaintext ?? accepted.plain?.toString())
          const planOfStore = { id: secret?.id ?? null, size_bytes: sizeOf(blob), version: null }
          return {
            change,
            // The response tells whether the document has the sent values, so the event is a read of values.
            read: eventOfDryRun(change, planned, 'secret.decrypt'),
            dryRun: async () => ({
              body: { ...answerOfStore(state, planOfStore), ...dryRunAnswer(await plannedLevel(planned)), ...notes }
            })
          }
        }
      })
      reply.headers(headers)
      return body
    }
  })
}

const answerOfStore = (
  { level, slug }: LevelState, { id, size_bytes, version }: Pick<SecretRow, 'size_bytes' | 'version'> & { id: string | null }
) => ({
  data: {
    type: 'secrets' as const,
    level,
    source: slug,
    bytes: size_bytes,
    secret_id: id,
    version: version === null ? null : String(version)
  },
  message: version === null ? 'Stored without a version.' : `Stored as version ${version}.`
})

// Only GET and HEAD can get 304 (RFC 9110, 13.1.2).
const isConditional = ({ method, headers }: FastifyRequest) =>
  method !== 'POST' && headers['if-none-match'] !== undefined

// Whether the response contains merged values because the request asks for them.
const isMerging = ({ decrypt, merge }: Reading): boolean => decrypt && merge !== 'false'

const includedContents = (decrypt: boolean): Include => decrypt ? 'readable' : 'documents'

// A conditional request first loads only the revisions. `read` loads the contents if the ETag differs.
const includedForRead = (request: FastifyRequest, decrypt: boolean): Include =>
  isConditional(request) ? 'revisions' : includedContents(decrypt)

function isStored (secret: SecretRow | undefined): secret is SecretRow & { sealed: Buffer } {
  return secret !== undefined && secret.is_stored
}

function validateContent ({ content, plaintext }: StoreBody) {
  if ((content === undefined) === (plaintext === undefined)) {
    refuse('content', 'Send exactly one of content and plaintext')
  }
}

type Combination = Pick<Reading, 'decrypt' | 'merge' | 'raw' | 'filters'> & { action?: string }

// The combinations of parameters, independently of the level.
function combinationRules (parametersOf: (request: FastifyRequest) => Combination): Rule[] {
  const code = 'invalid_parameter_combination'
  const rule = (parameter: 'merge' | 'raw' | 'filters', check: (parameters: Combination) => void): Rule => ({
    reads: ['action', 'decrypt', parameter],
    check: (request) => {
      const parameters = parametersOf(request)
      if (parameters.action !== 'key:retrieve') check(parameters)
    }
  })
  return [
    rule('merge', ({ decrypt, merge }) => {
      if (!decrypt && merge !== 'false') refuse('merge', 'Only for decrypted documents', code)
    }),
    rule('raw', ({ decrypt, merge, raw }) => {
      if (!decrypt && raw) refuse('raw', 'Only for decrypted documents', code)
      if (raw && merge === 'both') refuse('raw', 'Cannot be combined with merge both', code)
    }),
    rule('filters', ({ decrypt, filters }) => {
      if (!decrypt && filters !== undefined && Object.keys(filters).length > 0) {
        refuse('filters', 'Only for decrypted documents', code)
      }
    })
  ]
}

// Validates the parameters against the project's `encryption_type` and `secret_format`.
function validateReading ({ project }: LevelState, { decrypt, merge, raw }: Reading) {
  if (decrypt && project.encryption_type === 'client') fail('client_managed_encryption')
  if (project.secret_format === 'text' && (merge !== 'false' || raw)) {
    refuse('merge', 'A `text` project has no names, so its documents cannot be merged', 'invalid_parameter_combination')
  }
}

const parametersOf = ({ decrypt = false, merge = 'false', raw = false }: ReadSecretsQuery) =>
  ({ action: decrypt ? 'decrypt' : 'read', decrypt, merge, raw })

const readingOfQuery = ({ query }: FastifyRequest) => {
  const { at } = query as ReadSecretsQuery
  return { ...parametersOf(query as ReadSecretsQuery), ...(at !== undefined && { at: requireTimestamp('at', at) }) }
}

type ReadParameters = Omit<Reading, 'isRetrieve' | 'path'>

const toReading = ({ method, url }: FastifyRequest, parameters: ReadParameters): Reading =>
  ({ ...parameters, isRetrieve: method === 'POST', path: url.split('?', 1)[0]! })

const readingOfBody = ({ body }: FastifyRequest) => {
  const { action = 'read', filters, merge = 'false', raw = false } = body as RetrieveBody
  const decrypt = action === 'decrypt'
  // Some clients also send `merge` with the action `read`, and expect the unmerged documents of the levels.
  return { action, decrypt, merge: decrypt ? String(merge) as Merge : 'false', raw, filters }
}

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { KeyObject } from 'node:crypto'
import { Type } from '@sinclair/typebox'
import { EncryptionKeyAnswer } from '../../schemas/encryption-keys.ts'
import { EnvironmentParams } from '../../schemas/environments.ts'
import type { ErrorCode } from '../../schemas/errors.ts'
import { OrganizationParams } from '../../schemas/organizations.ts'
import { ProjectParams, type SecretFormat } from '../../schemas/projects.ts'
import {
  DeleteBody, LEVELS, RawSecrets, ReadHeaders, ReadSecretsQuery, RetrieveBody, SecretsAnswer, StoreAnswer, StoreBody, WriteHeaders,
  type Level, type LevelDocument, type LevelNames, type Merge
} from '../../schemas/secrets.ts'
import { BLOB_BYTES, NoContent } from '../../schemas/shapes.ts'
import { TargetParams } from '../../schemas/targets.ts'
import { isBlobText, openBlob, sealBlob } from '../crypto/blob.ts'
import { IntegrityError } from '../crypto/at-rest.ts'
import { rest } from '../crypto/rest.ts'
import { transaction } from '../db/database.ts'
import { actorOf } from '../http/actor.ts'
import { principalOf, requireInside, requireScope } from '../http/access.ts'
import { deprecatedFor } from '../http/deprecated.ts'
import { listsEtag, requirePrecondition } from '../http/etags.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import { lockProject } from '../repositories/projects.ts'
import { deleteSecret, findLevel, ownSecret, placeOf, type LevelState, type SecretRow } from '../repositories/secrets.ts'
import { mergeDocuments, readDocument } from '../rules/documents.ts'
import { removeHistories } from '../repositories/removals.ts'
import { fail, refuse } from '../rules/errors.ts'
import { isInside } from '../rules/slices.ts'
import { revealKey } from '../vault/descriptors.ts'
import { etagOf, openCurrent } from '../vault/documents.ts'
import { dataKeyOf, storageKeyOf } from '../vault/keys.ts'
import { judgeProof, revealsKey } from '../vault/proofs.ts'
import { removeSome } from '../vault/removals.ts'
import { writeLevel } from '../vault/write.ts'

const READ_ERRORS = ['invalid_parameter_combination', 'client_managed_encryption', 'document_unreadable', 'integrity_error'] as const satisfies ErrorCode[]
const READ_ANSWER = Type.Union([SecretsAnswer, RawSecrets], { examples: SecretsAnswer.examples })

interface ReadRequest { names: LevelNames, action: string, decrypt: boolean, merge: Merge, raw: boolean, filters?: RetrieveBody['filters'] }
type StoredSecret = SecretRow & { sealed: Buffer }

export const secrets: Domain = async (app) => {
  const paths = [
    { level: 'project', params: ProjectParams, path: '/:organization/:project/secrets', old: '/organizations/:organization/projects/:project/secrets' },
    { level: 'target', params: TargetParams, path: '/:organization/:project/:target/secrets', old: '/organizations/:organization/projects/:project/targets/:target/secrets' },
    {
      level: 'environment',
      params: EnvironmentParams,
      path: '/:organization/:project/:target/:environment/secrets',
      old: '/organizations/:organization/projects/:project/targets/:target/environments/:environment/secrets'
    }
  ]
  for (const { level, params, path, old } of paths) {
    for (const url of [path, old]) {
      const deprecated = url === old
      const operation = `read${level[0]!.toUpperCase()}${level.slice(1)}Secrets`
      app.get(url, {
        config: { access: 'secret:read', mayNeed: ['secret:decrypt'], audit: 'secret.decrypt', errors: READ_ERRORS },
        schema: {
          operationId: deprecated ? `${operation}LongPath` : operation,
          tags: ['secrets'],
          summary: `Read the documents on the way to a ${level}`,
          deprecated,
          params,
          querystring: ReadSecretsQuery,
          headers: ReadHeaders,
          response: { 200: READ_ANSWER, 304: Type.Null({ description: 'Not modified since the ETag in If-None-Match' }) }
        },
        // The scope goes before the other parameters are judged.
        preValidation: async (request, reply) => {
          if ((request.query as { decrypt?: unknown }).decrypt === 'true') requireScope(request, reply, 'secret:decrypt')
        },
        ...(deprecated && { preHandler: deprecatedFor(`/api/v1${path}`) }),
        handler: async (request, reply) => {
          const { organization: _, ...names } = request.params
          const { decrypt = false, merge = 'false', raw = false } = request.query
          return read(request, reply, { names: names as LevelNames, action: decrypt ? 'decrypt' : 'read', decrypt, merge, raw })
        }
      })
    }
  }

  for (const { url, old } of [{ url: '/:organization/secrets/retrieve', old: false }, { url: '/organizations/:organization/secrets/retrieve', old: true }]) {
    app.post(url, {
      config: { access: 'authenticated', mayNeed: ['secret:read', 'secret:decrypt', 'key:retrieve'], audit: ['secret.decrypt', 'key.retrieve'], errors: [...READ_ERRORS, 'insufficient_permissions'] },
      schema: {
        operationId: old ? 'retrieveSecretsLongPath' : 'retrieveSecrets',
        tags: ['secrets'],
        summary: 'Read, decrypt or get the key, by a body instead of a path; the scope goes by the action',
        deprecated: old,
        params: OrganizationParams,
        body: RetrieveBody,
        response: { 200: Type.Union([SecretsAnswer, RawSecrets, EncryptionKeyAnswer], { examples: SecretsAnswer.examples }) }
      },
      // The scope is judged before the body's other members are, by what a readable body asks for.
      preValidation: async (request, reply) => {
        const action = (request.body as { action?: unknown } | undefined)?.action
        requireScope(request, reply, action === 'decrypt' ? 'secret:decrypt' : action === 'key:retrieve' ? 'key:retrieve' : 'secret:read')
      },
      ...(old && { preHandler: deprecatedFor('/api/v1/:organization/secrets/retrieve') }),
      handler: async (request, reply) => {
        const { project, target, environment, action = 'read', filters, merge = 'false', raw = false } = request.body
        const names = { project, target, environment }
        if (action === 'key:retrieve') return retrieveKey(request, reply, names)
        return read(request, reply, { names, action, decrypt: action === 'decrypt', merge: String(merge) as Merge, raw, filters })
      }
    })
  }

  app.post('/:organization/secrets/store', {
    config: {
      access: 'secret:write',
      audit: 'secret.store',
      errors: ['precondition_failed', 'client_managed_encryption', 'content_not_decryptable', 'key_proof_required', 'key_proof_mismatch', 'key_proof_reveals_key', 'integrity_error']
    },
    schema: {
      operationId: 'storeSecrets',
      tags: ['secrets'],
      summary: 'Store the document of a level and record a version',
      params: OrganizationParams,
      headers: WriteHeaders,
      body: StoreBody,
      response: { 200: StoreAnswer }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { content, plaintext, key_proof, no_backup = false } = request.body
      const names = namesOf(request.body)
      if ((content === undefined) === (plaintext === undefined)) refuse('content', 'Send exactly one of content and plaintext')
      if (content !== undefined && !isBlobText(content)) refuse('content', 'Expected base64 of 28 bytes to 1 MiB')
      const storageKey = storageKeyOf(app.keyring, organization)
      const written = await writeLevel(app, organization, actorOf(request), () => findLevel(app.reads, organization.id, names), (state, secret) => {
        requireInside(request, placeOf(state))
        requirePrecondition(request.headers, secret?.sealed ? etagOf(storageKey, [secret]) : undefined)
        const revealed = state.project.encryption_type === 'client' && acceptClientContent(state, content, key_proof)
        const blob = state.project.encryption_type === 'client' ? content! : serverContent(state, content, plaintext)
        const record = no_backup ? null : { action: isStored(secret) ? 'update' as const : 'create' as const, blob }
        return { blob, record, event: 'secret.store', revealed }
      })
      const { state, secret, version, bytes } = written
      reply.header('etag', etagOf(storageKey, [secret]))
      return {
        data: { type: 'secrets' as const, level: state.level, source: state.slug, bytes, secret_id: secret.id, version: version === null ? null : String(version) },
        message: version === null ? 'Stored without a version.' : `Stored as version ${version}.`
      }
    }
  })

  app.post('/:organization/secrets/delete', {
    config: { access: 'secret:write', mayNeed: ['secret:purge'], audit: 'secret.delete', errors: ['confirmation_required', 'precondition_failed', 'integrity_error'] },
    schema: {
      operationId: 'deleteSecrets',
      tags: ['secrets'],
      summary: 'Delete the document of a level; a restore snapshot is kept unless no_backup is set',
      params: OrganizationParams,
      headers: WriteHeaders,
      body: DeleteBody,
      response: { 204: NoContent }
    },
    preValidation: async (request, reply) => {
      const body = request.body as { no_backup?: unknown, confirmed?: unknown } | undefined
      if (body?.no_backup !== true) return
      requireScope(request, reply, 'secret:purge')
      if (body.confirmed !== true) fail('confirmation_required')
    },
    handler: async (request, reply) => {
      const { no_backup = false } = request.body
      const names = namesOf(request.body)
      await (no_backup ? deleteForGood(request, names) : deleteWithSnapshot(request, names))
      return reply.code(204).send(null)
    }
  })

  async function deleteWithSnapshot (request: FastifyRequest, names: LevelNames) {
    const { organization } = principalOf(request)
    const storageKey = storageKeyOf(app.keyring, organization)
    await writeLevel(app, organization, actorOf(request), () => findLevel(app.reads, organization.id, names), (state, secret) => {
      requireInside(request, placeOf(state))
      if (!isStored(secret)) return fail('not_found')
      requirePrecondition(request.headers, etagOf(storageKey, [secret]))
      return { blob: null, record: { action: 'delete', blob: openCurrent(storageKey, state, secret) }, event: 'secret.delete' }
    })
  }

  async function deleteForGood (request: FastifyRequest, names: LevelNames) {
    const { organization } = principalOf(request)
    await transaction(app.db, async (db) => {
      await lockProject(db, organization.id, { slug: names.project })
      const state = await findLevel(db, organization.id, names) ?? fail('not_found')
      requireInside(request, placeOf(state))
      const secret = ownSecret(state)
      if (!isStored(secret)) return fail('not_found')
      requirePrecondition(request.headers, etagOf(storageKeyOf(app.keyring, organization), [secret]))
      const { versions: purged } = await removeHistories(db, organization.id, { secret_id: secret.id })
      await deleteSecret(db, state, secret)
      await removeSome(db, organization.id)
      await recordEvent(db, actorOf(request), { action: 'secret.delete', resource_type: 'secret', resource_id: secret.id, details: { level: state.level, purged } })
    })
    app.removals.wake()
  }

  async function read (request: FastifyRequest, reply: FastifyReply, asked: ReadRequest) {
    const { organization, slices } = principalOf(request)
    const { decrypt, merge, raw } = asked
    refuseCombinations(asked)
    const state = await findLevel(app.reads, organization.id, namesOf(asked.names)) ?? fail('not_found')
    requireInside(request, placeOf(state))
    if (decrypt && state.project.encryption_type === 'client') fail('client_managed_encryption')
    if (state.project.secret_format === 'text' && (merge !== 'false' || raw)) refuse('merge', 'Documents of a text project have no values to merge', 'invalid_parameter_combination')
    const visible = state.secrets.filter(isStored).filter(({ level }) => isInside(slices, placeOf(state, level)))
    const storageKey = storageKeyOf(app.keyring, organization)
    const etag = etagOf(storageKey, visible, request.method === 'POST' ? 'retrieve' : 'read', String(decrypt), merge, String(raw), JSON.stringify(asked.filters ?? null), state.project.secret_format,
      state.project.slug, state.target?.slug ?? '', state.environment?.slug ?? '')
    reply.header('etag', etag)
    // 304 is for GET and HEAD (RFC 9110, 13.1.2).
    if (request.method !== 'POST' && listsEtag(request.headers['if-none-match'], etag)) return reply.code(304).send()
    const dataKey = decrypt && visible.length > 0 ? dataKeyOf(app.keyring, state.key) : undefined
    const documents = new Map(visible.map((secret) => [secret.level, contentOf(state, secret, storageKey, dataKey)]))
    const answer = raw
      ? filterValues(await valuesOf(state, documents, merge === 'true' ? LEVELS : [state.level]), asked.filters)
      : await toAnswer(request, state, asked, visible, documents, storageKey)
    if (decrypt) await recordDecryption(request, state, visible)
    return reply.type('application/json; charset=utf-8').serializer(JSON.stringify).send(answer)
  }

  // Not for 304, which hands out nothing that the caller does not have.
  async function recordDecryption (request: FastifyRequest, { level, level_id }: LevelState, visible: readonly StoredSecret[]) {
    const details = { secrets: visible.map(({ id }) => id).join(' '), revisions: visible.map(({ revision }) => revision).join(' ') }
    await app.recordRead(actorOf(request), { action: 'secret.decrypt', resource_type: level, resource_id: level_id, details })
  }

  async function retrieveKey (request: FastifyRequest, reply: FastifyReply, names: LevelNames) {
    const { organization } = principalOf(request)
    const state = await findLevel(app.reads, organization.id, namesOf(names)) ?? fail('not_found')
    requireInside(request, { project_id: state.project.id })
    const answer = revealKey(app.keyring, state.key)
    await app.recordRead(actorOf(request), { action: 'key.retrieve', resource_type: 'encryption-key', resource_id: String(state.key.id), details: { version: state.key.version } })
    return reply.type('application/json; charset=utf-8').serializer(JSON.stringify).send(answer)
  }

  // The document itself with a data key, else the blob.
  function contentOf (state: LevelState, secret: StoredSecret, storageKey: KeyObject, dataKey: KeyObject | undefined): string {
    const blob = openCurrent(storageKey, state, secret)
    if (dataKey === undefined) return blob
    // What was stored could be opened then, so a blob that does not open now was tampered with.
    const plain = openBlob(dataKey, blob)
    if (plain === undefined) throw new IntegrityError()
    return plain.toString('utf8')
  }

  // Key logic of a client-managed write. True when the proof gives the key away and the operator allows that.
  function acceptClientContent (state: LevelState, content: string | undefined, proof: string | undefined): boolean {
    if (content === undefined) return fail('client_managed_encryption')
    if (state.key.key_check === null) return fail('key_proof_required')
    if (judgeProof(app.keyring, state.key, proof) !== 'right') fail('key_proof_mismatch')
    const reveals = revealsKey(proof, content)
    if (reveals && !app.config.allowRevealingKeyProof) fail('key_proof_reveals_key')
    return reveals
  }

  function serverContent (state: LevelState, content: string | undefined, plaintext: string | undefined): string {
    const dataKey = dataKeyOf(app.keyring, state.key)
    if (plaintext !== undefined) {
      if (Buffer.byteLength(plaintext) > BLOB_BYTES - 28) refuse('plaintext', 'Larger than 1 MiB when sealed')
      return sealBlob(dataKey, plaintext)
    }
    return openBlob(dataKey, content!) === undefined ? fail('content_not_decryptable') : content!
  }
}

function isStored (secret: SecretRow | undefined): secret is StoredSecret {
  return secret !== undefined && secret.sealed !== null
}

function namesOf ({ project, target, environment }: LevelNames): LevelNames {
  if (environment !== undefined && target === undefined) refuse('target', 'Required with environment')
  return { project, target, environment }
}

function refuseCombinations ({ decrypt, merge, raw, filters }: ReadRequest) {
  const code = 'invalid_parameter_combination'
  if (!decrypt && merge !== 'false') refuse('merge', 'Needs the documents decrypted', code)
  if (!decrypt && raw) refuse('raw', 'Needs the documents decrypted', code)
  if (raw && merge === 'both') refuse('raw', 'Answers one object: merge cannot be both', code)
  if (!decrypt && filters !== undefined && Object.keys(filters).length > 0) refuse('filters', 'Need the documents decrypted', code)
}

// Deeper levels override, whatever order they are named in.
async function valuesOf (state: LevelState, documents: ReadonlyMap<Level, string>, levels: readonly Level[]): Promise<Record<string, string>> {
  const read: Record<string, string>[] = []
  for (const level of levels) {
    if (!documents.has(level)) continue
    read.push(readDocument(state.project.secret_format, documents.get(level)!) ?? fail('document_unreadable', { level }))
    await rest()
  }
  return mergeDocuments(...read)
}

async function toAnswer (
  request: FastifyRequest, state: LevelState, asked: ReadRequest, visible: StoredSecret[], documents: ReadonlyMap<Level, string>, storageKey: KeyObject
): Promise<SecretsAnswer> {
  const { decrypt, merge, action, filters } = asked
  const slugs: Record<Level, string> = { project: state.project.slug, target: state.target?.slug ?? '', environment: state.environment?.slug ?? '' }
  const levels = Object.fromEntries(visible.map((secret): [Level, LevelDocument] => [secret.level, {
    id: secret.id,
    encrypted: !decrypt,
    content: documents.get(secret.level)!,
    source: slugs[secret.level],
    version: secret.version === null ? null : String(secret.version),
    key_version: String(secret.key_version),
    etag: etagOf(storageKey, [secret])
  }]))
  const merged = merge === 'false' ? undefined : await valuesOf(state, documents, LEVELS)
  const values = action === 'decrypt' && request.method === 'POST' ? merged ?? await readableValues(state, documents) : undefined
  return {
    data: {
      type: 'secrets',
      attributes: { encrypted: !decrypt, format: reportedFormat(state.project.secret_format), ...(merge !== 'true' && { levels }), ...(merged && { merged }) },
      ...(values && { secrets: filterValues(values, filters) })
    },
    meta: {
      api_path: request.url.split('?', 1)[0]!,
      format: 'hierarchical',
      merged: merge,
      timestamp: new Date().toISOString(),
      hierarchy: { project: state.project.slug, target: state.target?.slug ?? null, environment: state.environment?.slug ?? null },
      action
    }
  }
}

// A document that does not parse is still returned as it is; only its values cannot be told.
async function readableValues ({ project }: LevelState, documents: ReadonlyMap<Level, string>): Promise<Record<string, string> | undefined> {
  const read: Record<string, string>[] = []
  for (const level of LEVELS) {
    if (!documents.has(level)) continue
    const values = readDocument(project.secret_format, documents.get(level)!)
    if (values === undefined) return undefined
    read.push(values)
    await rest()
  }
  return mergeDocuments(...read)
}

function filterValues (values: Record<string, string>, filters: ReadRequest['filters']): Record<string, string> {
  const { names, tags, search } = filters ?? {}
  const wanted = search?.toLowerCase()
  const listed = new Set(names)
  const kept = Object.entries(values).filter(([key]) =>
    (listed.size === 0 || listed.has(key)) &&
    (tags === undefined || tags.length === 0) &&
    (wanted === undefined || key.toLowerCase().includes(wanted)))
  return Object.fromEntries(kept)
}

function reportedFormat (format: SecretFormat): 'env' | 'json' {
  return format === 'json' ? 'json' : 'env'
}

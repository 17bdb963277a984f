import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Static } from '@sinclair/typebox'
import {
  EncryptionKeyAnswer, KeyHistoryAnswer, PendingAnswer, PendingBody, ReEncryptAnswer, ReEncryptBody, RotateAnswer,
  RotateBody, RotateClientKeysAnswer,
  RotateClientKeysBody
} from '../../schemas/encryption-keys.ts'
import { ListQuery } from '../../schemas/shapes.ts'
import { change } from '../changes/change.ts'
import { changeLong, conflictOnLockTimeout } from '../changes/long.ts'
import { isBlobText } from '../crypto/blob.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import type { RedactedReplay } from '../http/repeats/idempotency.ts'
import { readKeyCheck, warnOfIterations } from '../http/bodies/key-checks.ts'
import { yieldingBetween, takeLargeBodies } from '../http/bodies/large-bodies.ts'
import { levelOf, locate } from '../http/guard/level-lookup.ts'
import type { Domain } from '../http/routes/types.ts'
import { placeDetails } from '../repositories/audit/audit.ts'
import { type KeyRow, type KeyState, listKeys } from '../repositories/keys/encryption-keys.ts'
import { countWaiting, findReEncryption } from '../repositories/secrets/re-encryption.ts'
import { activeKeyOf } from '../repositories/levels/levels.ts'
import { lockProject } from '../repositories/levels/projects.ts'
import type { Organization } from '../repositories/people/principals.ts'
import { fail, refuse } from '../rules/api-error.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { counted } from '../rules/formats/phrases.ts'
import { describeKey, retrievalOf, revealKey } from '../vault/keys/descriptors.ts'
import { etagOf, sizeOf } from '../vault/documents/documents.ts'
import { listPending, loadSubmission, writeSubmission } from '../vault/operations/re-encryption.ts'
import { keyStringOf, makeServerKey, registerClientKey, storageKeyOf } from '../vault/keys/keys.ts'
import { validateProof, provesAnyKey, refuseRevealing, revealsKey } from '../vault/keys/proofs.ts'
import { reencrypt, rotationOf, type Rotated } from '../vault/operations/rotate.ts'

// The response stored for an `Idempotency-Key` has no key string, so that no copy outlives the key. A repeated request
// reads the key string of the active key. It loads the project again, because `levelOf` may be older than the commit of
// the first request.
const KEY_STRING: RedactedReplay = {
  keep: (answer: KeyAnswer) => withKey(answer, ''),
  give: async (app, request, answer: KeyAnswer) => {
    const { id, attributes } = answer.data.key
    const active = activeKeyOf(await locate(app, request))
    const keyString = active.id === attributes.id ? keyStringOf(app.keyring, active) : undefined
    return {
      answer: withKey(answer, keyString ?? fail('idempotent_secret_unavailable', { id })),
      event: retrievalOf(active, levelOf(request).project)
    }
  }
}

type KeyAnswer = Static<typeof RotateAnswer>

const withKey = ({ data: { key }, ...answer }: KeyAnswer, keyString: string): KeyAnswer =>
  ({ ...answer, data: { key: { ...key, attributes: { ...key.attributes, key: keyString } } } })

export const encryptionKeys: Domain = async (app) => {
  app.get('/:organization/:project/encryption-key', {
    config: { access: 'key:retrieve', at: 'project', include: 'key', audit: 'key.retrieve' },
    schema: {
      operationId: 'getEncryptionKey',
      summary: 'Get the active key, which can decrypt every document of the project',
      description: 'If the clients hold the key, the response only describes it.',
      response: { 200: EncryptionKeyAnswer }
    },
    handler: async (request) => {
      const key = activeKeyOf(levelOf(request))
      const answer = revealKey(app.keyring, key)
      await app.recordRead(actorOf(request), retrievalOf(key, levelOf(request).project))
      return answer
    }
  })

  app.get('/:organization/:project/encryption-key/history', {
    config: { access: 'key:retrieve', at: 'project', audit: 'key.retrieve' },
    schema: {
      operationId: 'listEncryptionKeys',
      summary: 'List all keys of the project, the active key first',
      description: 'Older keys decrypt the versions that a rotation kept under them.',
      querystring: ListQuery,
      response: { 200: KeyHistoryAnswer }
    },
    handler: async (request) => {
      const { organization } = principalOf(request)
      const { project } = levelOf(request)
      const page = pageOf(request.query)
      const [{ rows, total }, re_encryption] = await Promise.all([
        listKeys(app.lists, project, page), reEncryptionOf(app, organization, project)
      ])
      const data = rows.map((key) => describeKey(app.keyring, key))
      await app.recordRead(actorOf(request), {
        action: 'key.retrieve',
        resource_type: 'project',
        resource_id: project.id,
        details: { ...placeDetails({ project }), keys: data.length }
      })
      return { data, meta: pageMeta(page, total, rows.length), re_encryption }
    }
  })

  app.post('/:organization/:project/encryption-key/rotate', {
    config: {
      access: 'key:rotate',
      at: 'project',
      include: 'key',
      limitOfEffect: 'key_rotation',
      redactedReplay: KEY_STRING,
      audit: ['key.rotate', 'key.retrieve'],
      errors: ['client_managed_key', 'rotation_in_progress', 'plan_limit_reached']
    },
    schema: {
      operationId: 'rotateEncryptionKey',
      summary:
        'Rotate a server-managed key: re-encrypts all current documents immediately, and optionally the history',
      description: '`history_policy` decides what happens to the versions under older keys.',
      body: RotateBody,
      response: { 200: RotateAnswer }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const seen = activeKeyOf(levelOf(request))
      if (seen.managed === 'client') fail('client_managed_key')
      const rotation = rotationOf(app.keyring, organization, actorOf(request), {
        seen: seenOf(seen),
        makeKey: () => makeServerKey(
          app.keyring, { ...seen, version: seen.version + 1 }, undefined, app.costs.keyIterations
        ),
        policy: request.body.history_policy,
        beforeEffect: () => app.countEffect(request, reply),
        convert: reencrypt(app.keyring)
      })
      const { body, written } = await rotate(app, request, seen, rotation, (rotated) => {
        const {
          format: _, encrypted: __, content: ___, key: keyString, version, ...rest
        } = revealKey(app.keyring, rotated.key).data.attributes
        const { id } = rotated.key
        return {
          message: rotationMessage(rotated, 'is being re-encrypted', 'are being re-encrypted'),
          data: {
            key: {
              type: 'encryption-keys' as const,
              id: String(id),
              attributes: { id, key: keyString!, version: String(version), ...rest }
            }
          }
        }
      })
      if (written.waiting > 0) app.histories.wake()
      return body
    }
  })

  await app.register(clientRotation)

  app.post('/:organization/:project/secrets/re-encrypt-history/pending', {
    config: {
      access: 'key:rotate',
      repeatable: false,
      at: 'project',
      audit: 'version.read',
      errors: ['server_managed_encryption']
    },
    schema: {
      operationId: 'listPendingVersions',
      summary: 'List versions under older client-managed keys, oldest first, for re-encryption by the client',
      description: 'Only a client that has the keys can re-encrypt them. Submit the result to `…/re-encrypt-history`.',
      body: PendingBody,
      response: { 200: PendingAnswer }
    },
    handler: async (request) => {
      const { organization } = principalOf(request)
      const { project } = levelOf(request)
      if (project.encryption_type === 'server') fail('server_managed_encryption')
      const { limit = 50, after = 0 } = request.body
      const { versions, unreadable, remaining } = await listPending(
        { db: app.lists, keyring: app.keyring }, organization, project, { limit, after }
      )
      if (unreadable > 0) {
        request.log.warn({ project: project.id, unreadable }, 'pending versions cannot be decrypted and were omitted')
      }
      const [first, last] = [versions[0]?.id ?? null, versions.at(-1)?.id ?? null]
      await app.recordRead(actorOf(request), {
        action: 'version.read',
        resource_type: 'project',
        resource_id: project.id,
        details: { ...placeDetails({ project }), versions: versions.length, first, last }
      })
      return {
        data: versions.map(({ key_version, ...version }) =>
          ({ ...version, key_version: String(key_version) })),
        meta: { remaining }
      }
    }
  })

  app.post('/:organization/:project/secrets/re-encrypt-history', {
    config: {
      access: 'key:rotate',
      rules: [
        { reads: ['versions'], check: ({ body }) => { requireDifferent((body as Static<typeof ReEncryptBody>).versions) } },
        { each: 'versions', check: requireBlob }
      ],
      at: 'project',
      audit: 'history.re_encrypt',
      errors: [
        'server_managed_encryption', 'key_proof_mismatch', 'key_proof_reveals_key', 'key_version_conflict',
        'rotation_in_progress', 'plan_limit_reached'
      ]
    },
    schema: {
      operationId: 'reEncryptHistory',
      summary: 'Submit pending versions, re-encrypted with the active key: all are stored, or none',
      description: 'Repeat this until no versions are pending.',
      body: ReEncryptBody,
      response: { 200: ReEncryptAnswer }
    },
    handler: async (request) => {
      const { organization } = principalOf(request)
      const { versions, key_proof } = request.body
      const { project } = levelOf(request)
      const { body } = await conflictOnLockTimeout(() => change(app.db, actorOf(request), {
        load: async (db) => loadSubmission(db, app, organization, project.id, { versions, key_proof }),
        decide: (submission) => ({
          write: async (db, lockCounter) =>
            writeSubmission(db, submission, organization.plan, await lockCounter()),
          events: ({ event }) => [event],
          answer: ({ updated, remaining }) => ({ body: { data: { updated, remaining } } })
        })
      }))
      return body
    }
  })
}

function requireDifferent (versions: readonly { id: number }[]) {
  if (new Set(versions.map(({ id }) => id)).size !== versions.length) refuse('versions', 'Contains a version twice')
}

function requireBlob ({ content }: { content: string }, at: string) {
  if (!isBlobText(content)) refuse(`${at}.content`, 'Expected base64 of 28 bytes to 1 MiB')
}

// The limit of a body with all documents is this multiple of the normal body limit, but at most `MAX_BYTES`.
const BODY_LIMIT_FACTOR = 16
const MAX_BYTES = 64 * 1024 * 1024

// A separate plugin, because the large body (all documents of the project) needs another content type parser.
const clientRotation: Domain = async (app) => {
  app.post('/:organization/:project/secrets/rotate-client-keys', {
    ...takeLargeBodies(app, {
      schema: RotateClientKeysBody,
      list: 'secrets',
      factor: BODY_LIMIT_FACTOR,
      maxBytes: MAX_BYTES,
      validatePlace: (request) => locate(app, request)
    }),
    config: {
      // Requires `secret:write`, because the rotation replaces every document of the project.
      access: ['key:rotate', 'secret:write'],
      at: 'project',
      include: 'key',
      limitOfEffect: 'client_key_rotation',
      audit: 'key.rotate',
      errors: [
        'server_managed_encryption', 'secrets_incomplete', 'precondition_failed', 'key_proof_mismatch',
        'key_proof_reveals_key', 'rotation_in_progress', 'plan_limit_reached'
      ]
    },
    schema: {
      operationId: 'rotateClientKeys',
      summary:
        'Rotate a client-managed key: send all current documents encrypted with the new key, and the proof of that key',
      description: 'The server cannot read the documents, so a client re-encrypts all of them first.',
      body: RotateClientKeysBody,
      response: { 200: RotateClientKeysAnswer }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { secrets, history_policy, key_proof, key_check, ...triple } = request.body
      const seen = activeKeyOf(levelOf(request))
      if (seen.managed === 'server') fail('server_managed_encryption')
      if (validateProof(app.keyring, seen, key_proof) === 'wrong') fail('key_proof_mismatch')
      const sent = new Map(secrets.map((secret) => [secret.id, secret]))
      if (sent.size !== secrets.length) refuse('secrets', 'Contains a secret twice')
      const storageKey = storageKeyOf(app.keyring, organization)
      const key = registerClientKey(
        app.keyring, storageKey, { ...seen, version: seen.version + 1 }, readKeyCheck({ key_check, ...triple })
      )
      let revealed = false
      for await (const [i, { content }] of yieldingBetween(secrets, ({ content }) => content.length)) {
        requireBlob({ content }, `secrets.${i}`)
        revealed ||= revealsKey(key_check, content)
      }
      refuseRevealing(app.config, revealed)
      const rotation = rotationOf(app.keyring, organization, actorOf(request), {
        seen: seenOf(seen),
        makeKey: async () => key,
        policy: history_policy,
        validate: async (db, project, ids) => {
          if (await provesAnyKey(db, storageKey, project, key_check)) {
            refuse('key_check', 'Already used for a key of this project; use a new key')
          }
          const current = new Set(ids)
          const missing = ids.filter((id) => !sent.has(id))
          const unknown = secrets.filter(({ id }) => !current.has(id)).map(({ id }) => id)
          if (missing.length + unknown.length > 0) fail('secrets_incomplete', { missing, unknown })
        },
        beforeEffect: () => app.countEffect(request, reply),
        convert: (document) => {
          const { content, etag } = sent.get(document.id)!
          if (etag !== undefined && etag !== etagOf(storageKey, [document])) fail('precondition_failed')
          return content
        },
        sizeOf: (id) => sizeOf(sent.get(id)?.content ?? ''),
        ...(revealed && { details: { key_proof_reveals_key: true } })
      })
      warnOfIterations(reply, key.iterations)
      const { body } = await rotate(app, request, seen, rotation, (rotated) => ({
        success: true as const,
        message: rotationMessage(rotated, 'waits to be re-encrypted', 'wait to be re-encrypted'),
        data: { count: rotated.documents }
      }))
      return body
    }
  })
}

const rotate = async <Body extends object>(
  app: FastifyInstance, request: FastifyRequest, { project_id }: KeyRow,
  { prepare, write }: ReturnType<typeof rotationOf>, bodyOf: (rotated: Rotated) => Body
) => changeLong(app.longTransactions, actorOf(request), {
  projectId: project_id,
  prepare,
  load: async (db) =>
    await lockProject(db, principalOf(request).organization.id, { id: project_id }) ?? fail('not_found'),
  decide: (project) => ({
    write: async (db, lockCounter) => write(db, project, lockCounter),
    events: ({ event }) => [event],
    answer: (rotated) => ({ body: bodyOf(rotated) })
  })
})

// The state of the last re-encryption. Counts pending versions while it runs. Later, only unreadable versions remain.
async function reEncryptionOf (app: FastifyInstance, { plan }: Organization, project: KeyState) {
  const progress = await findReEncryption(app.lists, project)
  if (progress === undefined) return null
  const { unreadable, ...rest } = progress
  if (progress.finished_at !== null) return { ...rest, state: 'done' as const, remaining: unreadable }
  const isClients = project.encryption_type === 'client'
  const remaining = await countWaiting(app.lists, project, isClients ? plan.retention_days : null)
  // In a client-managed project, the last pending version can also be purged, or locked by the retention window. Then
  // nothing sets `finished_at`.
  return { ...rest, state: isClients && remaining === 0 ? 'done' as const : 'running' as const, remaining }
}

const seenOf = ({ project_id, version, managed }: KeyRow) => ({ id: project_id, version, managed })

function rotationMessage (
  { key, documents, waiting }: { key: KeyRow, documents: number, waiting: number }, one: string, more: string
): string {
  const history = waiting === 0 ? '' : ` ${counted(waiting, 'version')} of the history ${waiting === 1 ? one : more}.`
  return `Rotated to key version ${key.version} with ${counted(documents, 'document')}.${history}`
}

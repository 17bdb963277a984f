import type { Static } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import type { ErrorCode } from '../../schemas/errors.ts'
import { LEVELS } from '../../schemas/secrets.ts'
import { VersionNamesAnswer, type VersionNames } from '../../schemas/names.ts'
import { NoContent, PAGE_SIZE, WriteHeaders } from '../../schemas/shapes.ts'
import {
  DeleteVersionBody, DeleteVersionQuery, ListVersionsBody, PurgeAnswer, PurgeBody, RestoreAnswer, RestoreBody,
  RestoreToAnswer, RestoreToBody, VersionAnswer, VersionPage, VersionParams, type LevelOfHistory, type Version
} from '../../schemas/versions.ts'
import { change, changeDocument } from '../changes/change.ts'
import { changeLong } from '../changes/long.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import { isDryRun } from '../http/routes/params.ts'
import { requirePrecondition } from '../http/repeats/etags.ts'
import {
  levelOf, locate, lockLevel, lockProjectOf, namesOf, requireFoundInside, requireInside, requireTarget, slicesOf
} from '../http/guard/level-lookup.ts'
import { requireConfirmation } from '../http/routes/requirements.ts'
import type { Domain, Rule } from '../http/routes/types.ts'
import { inTurn, type Turn } from '../http/guard/turns.ts'
import { sendRead } from '../http/responses/large-responses.ts'
import { waitFor } from '../http/routes/request-deadline.ts'
import type { Db } from '../db/database.ts'
import { shownAuthor } from '../db/rows/author.ts'
import { placeDetails } from '../repositories/audit/audit.ts'
import { findLevelsOfSecrets, ownSecret, type LevelState } from '../repositories/levels/levels.ts'
import { lockProject } from '../repositories/levels/projects.ts'
import { purgeHistories } from '../repositories/operations/cleanup.ts'
import { listVersionContents } from '../repositories/secrets/version-contents.ts'
import {
  deleteVersion, findFullVersion, findVersion, listVersions, type FoundVersion, type FullVersion, type VersionRow
} from '../repositories/secrets/versions.ts'
import { fail, refuse } from '../rules/api-error.ts'
import { requireKeptVersion } from '../rules/moments.ts'
import { parseId } from '../rules/formats/ids.ts'
import { pageMeta } from '../rules/pagination.ts'
import { requireTimestamp } from '../rules/formats/timestamps.ts'
import { counted } from '../rules/formats/phrases.ts'
import { acceptRestored, notesOfRestore } from '../vault/documents/accept.ts'
import { describeKey } from '../vault/keys/descriptors.ts'
import { etagOf, openVersion } from '../vault/documents/documents.ts'
import { DRY_RUN_MESSAGE, dryRunAnswer, eventOfDryRun, planChange, plannedLevel } from '../vault/documents/dry-run.ts'
import type { Change } from '../vault/documents/plan-write.ts'
import { storageKeyOf } from '../vault/keys/keys.ts'
import { removeSome } from '../vault/deletions.ts'
import { hasNames } from '../vault/documents/open-documents.ts'
import { namesChangedBy } from '../vault/documents/name-history.ts'
import { eventOfReading, mergedValues, requireNames, versionContents } from '../vault/documents/read.ts'
import { previewRestore } from '../vault/operations/restore-preview.ts'
import { restorationOf } from '../vault/operations/restore-to.ts'

const RESTORE_ERRORS = [
  'version_locked', 'content_required_for_old_key', 'key_proof_mismatch', 'key_proof_reveals_key',
  'content_not_decryptable', 'integrity_error', 'plan_limit_reached', 'precondition_failed'
] as const satisfies ErrorCode[]

// An attempt fails if another request deletes versions between the count and the list.
const MAX_ATTEMPTS = 5

export const versions: Domain = async (app) => {
  app.post('/:organization/secrets/versions', {
    config: {
      access: 'secret:history',
      goSdk: 'levelBySlugs',
      repeatable: false,
      rules: LEVEL_RULES,
      at: ({ body }) => namesOf(body as LevelOfHistory),
      include: 'revisions',
      audit: 'none'
    },
    schema: {
      operationId: 'listVersions',
      summary: 'List the version history of a level, newest first',
      description: 'Each write of a document records a version, unless it has `no_backup`.',
      body: ListVersionsBody,
      response: { 200: VersionPage }
    },
    handler: async (request) => {
      const { organization } = principalOf(request)
      const { page = 1, per_page = PAGE_SIZE.default } = request.body
      const pageRequest = { page, per_page }
      let state = levelOf(request)
      for (let attempts = 1; ; attempts++) {
        const secret = ownSecret(state)
        if (secret === undefined) return { data: [], meta: pageMeta(pageRequest, 0, 0) }
        const { rows, areFewer } = await waitFor(
          request, listVersions(app, state, secret, organization.plan.retention_days, pageRequest)
        )
        if (!areFewer || attempts === MAX_ATTEMPTS) {
          return { data: rows.map(toItem), meta: pageMeta(pageRequest, secret.version_count, rows.length) }
        }
        state = await locate(app, request)
      }
    }
  })

  app.get('/:organization/secrets/versions/:version', {
    config: {
      access: 'secret:history',
      preload: findKeptContent,
      audit: 'version.read',
      errors: ['version_locked', 'integrity_error']
    },
    schema: {
      operationId: 'getVersion',
      summary: 'Get a version with its encrypted content and key descriptor',
      description: 'The descriptor says which key decrypts the content, and how a client derives that key.',
      params: VersionParams,
      response: { 200: VersionAnswer }
    },
    handler: async (request) => {
      const found = contentOf(request)
      const content = openVersion(
        storageKeyOf(app.keyring, principalOf(request).organization), found.key.organization_id, found
      )
      const answer = { data: { ...toItem(found.version), content, key: describeKey(app.keyring, found.key) } }
      const { id, key_version } = found.version
      await app.recordRead(actorOf(request), {
        action: 'version.read',
        resource_type: 'secret',
        resource_id: found.secret.id,
        details: { ...placeDetails(found.levels), version: id, key_version }
      }, content.length)
      return answer
    }
  })

  app.get('/:organization/secrets/versions/:version/names', {
    config: {
      access: ['secret:history', 'secret:decrypt'],
      preload: findKeptVersion,
      audit: 'secret.names',
      errors: [
        'version_locked', 'invalid_parameter_combination', 'client_managed_encryption', 'document_unreadable',
        'integrity_error'
      ]
    },
    schema: {
      operationId: 'readVersionNames',
      summary: 'List the names that a version added, changed and removed, without values',
      description: 'The server decrypts the version and the one before, and keeps no such list.',
      params: VersionParams,
      response: { 200: VersionNamesAnswer }
    },
    handler: async (request, reply) => {
      const { data, bytes } = await inTurn(request, async (turn) => namesOfVersion(request, turn))
      return sendRead(reply, { data }, bytes)
    }
  })

  app.post('/:organization/secrets/versions/:version/restore', {
    config: {
      access: 'secret:restore',
      preload: findKeptVersion,
      dryRun: true,
      audit: ['secret.restore', 'secret.names', 'secret.decrypt'],
      errors: RESTORE_ERRORS
    },
    schema: {
      operationId: 'restoreVersion',
      summary: 'Restore a version: its content becomes the current document, as a new version',
      description: 'History only grows: the document that it replaces stays a version.',
      params: VersionParams,
      headers: WriteHeaders,
      body: RestoreBody,
      response: { 200: RestoreAnswer }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const storageKey = storageKeyOf(app.keyring, organization)
      const { version, secret } = versionOf(request)
      const { version: restored_from } = request.params
      const data = { type: 'secrets' as const, secret_id: secret.id, restored_from }
      const { headers = {}, body } = await changeDocument(app.db, actorOf(request), {
        storageKey,
        load: { secret_id: secret.id, version: version.id, include: isDryRun(request) ? 'readable' : 'storable' },
        bytes: request.body.content?.length ?? version.size_bytes,
        // Checks the version again, because another request may have purged it. Checks that the plan still keeps the
        // version before the key proof.
        decide (state, found) {
          if (state === undefined) return fail('not_found')
          const restored = requireKept(request, requireVersion(request, found))
          const current = ownSecret(state)
          requirePrecondition(request.headers, () => current?.is_stored ? etagOf(storageKey, [current]) : undefined)
          const accepted = acceptRestored(app, storageKey, state, restored, request.body)
          const { blob, revealed } = accepted
          const notes = notesOfRestore(state, accepted)
          const record = { action: 'restore' as const, blob, restored_from: restored.version.id }
          const change: Change = { blob, record, event: 'secret.restore', revealed }
          if (!isDryRun(request)) {
            return {
              change,
              answer: (written) => ({
                headers: { etag: etagOf(storageKey, [written.secret]) },
                body: { data, message: `Restored version ${restored_from} as version ${written.secret.version}.`, ...notes }
              })
            }
          }
          const planned = planChange(app.keyring, storageKey, state, change, accepted.plain?.toString())
          // With `content`, the response tells whether the document has the sent values, so the event is a read of
          // values.
          const action = request.body.content === undefined ? 'secret.names' : 'secret.decrypt'
          return {
            change,
            read: eventOfDryRun(change, planned, action, { version: restored.version.id }),
            dryRun: async () => ({ body: { data, ...dryRunAnswer(await plannedLevel(planned)), ...notes } })
          }
        }
      })
      reply.headers(headers)
      return body
    }
  })

  app.delete('/:organization/secrets/versions/:version', {
    config: {
      access: 'secret:purge',
      preload: findOwnVersion,
      audit: 'version.delete',
      errors: ['version_protected', 'integrity_error']
    },
    schema: {
      operationId: 'deleteVersion',
      summary: 'Delete a version; the restore snapshot of a deleted secret needs `force`',
      description: 'Removes one entry of the history; the other versions and the current document stay.',
      params: VersionParams,
      querystring: DeleteVersionQuery,
      body: DeleteVersionBody,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const force = request.query.force === true || request.body.force === true
      const found = versionOf(request)
      const { id, key_version } = found.version
      await change(app.db, actorOf(request), {
        async load (db) {
          await lockProjectOf(db, request, found.secret.project_id)
          await requireStillInside(db, request)
        },
        decide: () => ({
          async write (db) {
            const outcome = await deleteVersion(db, organization.id, id, force)
            if (outcome === 'missing') fail('not_found')
            return outcome === 'protected' ? fail('version_protected') : outcome
          },
          events: ({ bytes }) => [{
            action: 'version.delete',
            resource_type: 'secret',
            resource_id: found.secret.id,
            details: { ...placeDetails(found.levels), version: id, key_version, force },
            growth: -bytes
          }]
        })
      })
      return reply.code(204).send(null)
    }
  })

  app.post('/:organization/secrets/versions/purge', {
    config: {
      access: 'secret:purge',
      goSdk: 'levelBySlugs',
      rules: LEVEL_RULES,
      at: ({ body }) => namesOf(body as PurgeBody),
      include: 'revisions',
      audit: 'version.purge',
      errors: ['confirmation_required']
    },
    schema: {
      operationId: 'purgeVersions',
      summary: 'Purge the history of a level or of a whole project, including restore snapshots',
      description: 'It cannot be undone, so the body must have `"confirmed": true`.',
      body: PurgeBody,
      response: { 200: PurgeAnswer }
    },
    preValidation: requireConfirmation,
    handler: async (request) => {
      const { organization } = principalOf(request)
      const { scope = 'level' } = request.body
      if (scope === 'project') requireInside(request, { project_id: levelOf(request).project.id })
      const { body } = await change(app.db, actorOf(request), {
        load: async (db) => lockLevel(db, request),
        decide (state) {
          const { project } = state
          const secret = ownSecret(state)
          const below = scope === 'project' ? { project_id: project.id } : secret && { secret_id: secret.id }
          return {
            async write (db) {
              const purged = below === undefined
                ? { versions: 0, bytes: 0 }
                : await purgeHistories(db, organization.id, project.id, below)
              await removeSome(db, organization.id)
              return purged
            },
            events: ({ versions, bytes }) => [{
              action: 'version.purge',
              resource_type: scope,
              resource_id: scope === 'project' ? project.id : state.level_id,
              details: { ...placeDetails(scope === 'project' ? { project } : state), purged_count: versions },
              growth: -bytes
            }],
            answer: ({ versions }) => ({
              body: { data: { purged_count: versions }, message: `Purged ${counted(versions, 'version')}.` }
            })
          }
        }
      })
      app.removals.wake()
      return body
    }
  })

  app.post('/:organization/:project/restore-to', {
    config: {
      // Requires `secret:write`, because the restore deletes documents that did not exist at that time.
      access: ['secret:restore', 'secret:write'],
      at: 'project',
      limitOfEffect: 'project_restore',
      limitOfDryRun: 'project_restore_dry_run',
      dryRun: true,
      audit: ['project.restore', 'secret.names'],
      errors: [
        'confirmation_required', 'version_locked', 'version_gone', 'content_required_for_old_key',
        'content_not_decryptable', 'integrity_error', 'plan_limit_reached'
      ]
    },
    schema: {
      operationId: 'restoreProject',
      summary: 'Restore all documents of a project to a point in time, as new versions; later documents are deleted',
      description: 'The body must have `"confirmed": true`. A second restore, to a time before the first, undoes it.',
      body: RestoreToBody,
      response: { 200: RestoreToAnswer }
    },
    preValidation: requireConfirmation,
    handler: async (request, reply) => {
      const { project } = levelOf(request)
      const at = requireTimestamp('at', request.body.at)
      const { organization } = principalOf(request)
      if (isDryRun(request)) {
        await app.countEffect(request, reply)
        const { answer, bytes } = await inTurn(request, async (turn) => planOfRestore(request, at, turn))
        return sendRead(reply, answer, bytes)
      }
      const restore = restorationOf(app, organization, actorOf(request), at, () => app.countEffect(request, reply))
      const { body } = await changeLong(app.longTransactions, actorOf(request), {
        projectId: project.id,
        inUse: 'conflict',
        load: async (db) => await lockProject(db, organization.id, project) ?? fail('not_found'),
        decide: (project) => ({
          write: async (db, lockCounter) => restore(db, project, lockCounter),
          events: ({ event }) => [event],
          answer: ({ restored, emptied, unreadable }) => ({
            body: {
              data: { type: 'projects' as const, id: project.id, at, restored, emptied },
              message: restored + emptied === 0
                ? 'All documents are already in this state. Nothing was changed.'
                : `Restored ${counted(restored, 'document')}, deleted ${emptied}.`,
              ...warningOfProject(project, unreadable)
            }
          })
        })
      })
      return body
    }
  })

  async function namesOfVersion (request: FastifyRequest, turn: Turn) {
    const { organization } = principalOf(request)
    const storageKey = storageKeyOf(app.keyring, organization)
    // Loads the version here, because the caller may have waited for the turn.
    const found = requireKept(request, await findOwn(request, findFullVersion))
    const { version, secret } = found
    const [state] = await turn.waitFor(findLevelsOfSecrets(app.lists, organization.id, [secret.id]))
    const own = state && ownSecret(state)
    if (state === undefined || own === undefined) return fail('not_found')
    requireNames(state)
    const entries = await mergedValues(
      state, await versionContents(app.keyring, storageKey, found), { onlyMerged: [] }, turn.pace
    )
    const { older, names } = await namesChangedBy(
      { ...turn, keyring: app.keyring, storageKey }, state, version, entries,
      async (before, limit) =>
        turn.waitFor(listVersionContents(app.lists, state, own, organization.plan.retention_days, before, limit))
    )
    const compared_with = older === null ? null : String(older.id)
    const read = [found, ...(older === null ? [] : [{ version: older, sealed: older.sealed }])]
    const { event, bytes } = eventOfReading(
      state, read.map(({ version: { revision }, sealed }) => ({ id: secret.id, revision, sealed })), 'secret.names',
      { version: version.id, ...(compared_with !== null && { compared_with }) }
    )
    await app.recordRead(actorOf(request), event, bytes)
    const { added = null, changed = null, removed = null } = names ?? {}
    const data: VersionNames =
      { type: 'secret-version-names', id: String(version.id), attributes: { compared_with, added, changed, removed } }
    return { data, bytes }
  }

  async function planOfRestore (request: FastifyRequest, at: Date, turn: Turn) {
    const { organization } = principalOf(request)
    const { project } = levelOf(request)
    const context = { ...turn, vault: app, db: app.lists, storageKey: storageKeyOf(app.keyring, organization) }
    const { opened, levels, more, restored, emptied, unreadable } =
      await previewRestore(context, organization, project, at)
    if (hasNames(project)) {
      const { event, bytes } = eventOfReading(
        levelOf(request), opened, 'secret.names',
        { dry_run: 'project.restore', at: at.toISOString() }
      )
      await app.recordRead(actorOf(request), event, bytes)
    }
    const left = more === 0 ? '' : ` ${counted(more, 'more level')} ${more === 1 ? 'was' : 'were'} not compared.`
    const answer: Static<typeof RestoreToAnswer> = {
      data: { type: 'projects', id: project.id, at, restored, emptied },
      message:
        `${DRY_RUN_MESSAGE} The request would restore ${counted(restored, 'document')} and delete ${emptied}.${left}`,
      ...warningOfProject(project, unreadable),
      dry_run: { levels, more }
    }
    return { answer, bytes: opened.reduce((sum, { size_bytes }) => sum + size_bytes, 0) }
  }

  // Loads the version that the path names.
  async function findOwn<V extends FoundVersion> (request: FastifyRequest, find: FindVersion<V>): Promise<V> {
    const { organization: { id: organization_id } } = principalOf(request)
    const id = parseId((request.params as Static<typeof VersionParams>).version) ?? fail('not_found')
    const found = await find(app.reads, { organization_id, id }) ?? fail('not_found')
    await requireFoundInside(app, request, found.secret)
    loadedVersions.set(request, found)
    return found
  }

  // Checks restrictions by status again: the status of the environment may have changed since the version was loaded.
  // In this transaction the status cannot change.
  async function requireStillInside (db: Db, request: FastifyRequest) {
    if (slicesOf(request).every(({ except_status }) => except_status === undefined)) return
    const { organization: { id: organization_id } } = principalOf(request)
    const found = await findVersion(db, { organization_id, id: versionOf(request).version.id })
    requireInside(request, (found ?? fail('not_found')).secret)
  }

  async function findOwnVersion (request: FastifyRequest) {
    return findOwn(request, findVersion)
  }

  async function findKeptVersion (request: FastifyRequest) {
    requireKept(request, await findOwnVersion(request))
  }

  async function findKeptContent (request: FastifyRequest) {
    loadedContents.set(request, requireKept(request, await findOwn(request, findFullVersion)))
  }
}

const warningOfProject = ({ secret_format }: Pick<LevelState['project'], 'secret_format'>, unreadable: number) =>
  unreadable > 0 && {
    warning: (secret_format === 'text'
      ? 'Are not UTF-8, so that decrypted reads give U+FFFD: '
      : `Do not parse as ${secret_format}, and cannot be merged: `) + `${counted(unreadable, 'document')}.`
  }

type FindVersion<V> = (db: Db, version: { organization_id: string, id: number }) => Promise<V | undefined>

function requireVersion (request: FastifyRequest, found: FullVersion | undefined): FullVersion {
  if (found === undefined) return fail('not_found')
  requireInside(request, found.secret)
  return found
}

function requireKept<V extends FoundVersion> (request: FastifyRequest, found: V): V {
  requireKeptVersion(found.version, principalOf(request).organization.plan)
  return found
}

// Versions that `preload` found before the handler runs.
const loadedVersions = new WeakMap<FastifyRequest, FoundVersion>()
const versionOf = (request: FastifyRequest) => loadedVersions.get(request)!
const loadedContents = new WeakMap<FastifyRequest, FullVersion>()
const contentOf = (request: FastifyRequest) => loadedContents.get(request)!

// Requires exactly the slugs of the level: a missing or an extra slug could purge more, or less, than intended.
const slugOfLevelRule = (slug: 'target' | 'environment'): Rule => ({
  reads: ['level', 'scope'],
  check: ({ body }) => {
    const { level = 'environment', scope, [slug]: named } = body as LevelOfHistory & Pick<PurgeBody, 'scope'>
    if (scope === 'project') return
    const isAbove = LEVELS.indexOf(slug) <= LEVELS.indexOf(level)
    if (isAbove && named === undefined) refuse(slug, `Required with level ${level}`)
    if (!isAbove && named !== undefined) refuse(slug, `Not allowed with level ${level}`)
  }
})

const LEVEL_RULES: readonly Rule[] = [slugOfLevelRule('target'), slugOfLevelRule('environment'), {
  reads: ['scope'],
  check: ({ body }) => {
    const { scope, level, ...names } = body as PurgeBody
    if (scope !== 'project') return
    if (level !== undefined) refuse('level', 'Not allowed with scope project')
    requireTarget(names)
  }
}]

function toItem (row: VersionRow): Version {
  const key = String(row.key_version)
  return {
    type: 'secret-versions',
    id: String(row.id),
    attributes: {
      action: row.action,
      size_bytes: row.size_bytes,
      is_client_encrypted: row.managed === 'client',
      encryption_key_version: key,
      key_version: key,
      created_at: row.created_at,
      ...shownAuthor(row),
      metadata: { level: row.level, restored_from: row.restored_from === null ? null : String(row.restored_from) },
      locked: row.locked,
      locked_reason: row.locked ? 'retention' : null
    }
  }
}

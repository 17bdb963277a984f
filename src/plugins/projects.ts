import type { FastifyReply, FastifyRequest } from 'fastify'
import { ulid } from 'ulidx'
import {
  CreateProjectBody, Project, ProjectList, UpdateProjectBody, type ProjectAttributes
} from '../../schemas/projects.ts'
import { NamedListQuery, NoContent } from '../../schemas/shapes.ts'
import { change } from '../changes/change.ts'
import { changeLongIf } from '../changes/long.ts'
import type { Db } from '../db/database.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import { requireScope } from '../http/guard/access.ts'
import {
  KEY_CHECK_MEMBERS, readKeyCheck, refuseKeyCheck, requireKeyCheck, warnOfIterations
} from '../http/bodies/key-checks.ts'
import { levelOf, lockProjectOf, reachOfWhole, requireSiblings } from '../http/guard/level-lookup.ts'
import { onceClosed } from '../http/responses/closed.ts'
import { requirePlanQuota } from '../http/routes/requirements.ts'
import { chooseSlug, orSlugTaken, slugRule } from '../http/routes/slugs.ts'
import type { Domain, Rule } from '../http/routes/types.ts'
import { eventOf, placeDetails } from '../repositories/audit/audit.ts'
import { activeKeyOf } from '../repositories/levels/levels.ts'
import type { Repeatable } from '../repositories/operations/idempotency.ts'
import {
  createProject, deleteProject, findProject, listProjects, updateProject
} from '../repositories/levels/projects.ts'
import { fail, refuse } from '../rules/api-error.ts'
import { requireNewName } from '../rules/formats/names.ts'
import { isDefault, pageMeta, pageOf } from '../rules/pagination.ts'
import { projectsInside } from '../rules/slices.ts'
import { differenceOf, handToClient, handToServer } from '../vault/operations/custody.ts'
import { derivations, makeServerKey, registerClientKey, storageKeyOf } from '../vault/keys/keys.ts'
import { refuseRevealing } from '../vault/keys/proofs.ts'
import { deleteLevel, isLongDeletion } from '../vault/deletions.ts'
import { requireSeen } from '../vault/operations/rotate.ts'
import { lockCurrentCanary } from '../vault/keys/master-keys.ts'

/** The creations of projects with an `Idempotency-Key` that this process runs. */
const creations = new Set<Repeatable>()

/**
 * Runs a creation. Ends a repeated one with 409 while this process runs the first one, so that the repeat derives no
 * key. A later repeat gets the stored response.
 */
async function unlessRunning<T> (
  { answering }: FastifyRequest, reply: FastifyReply, create: () => Promise<T>
): Promise<T> {
  if (answering === null) return create()
  if ([...creations].some((other) => answering.repeats(other))) fail('conflict')
  creations.add(answering)
  try {
    return await create()
  } finally {
    // A repeat may have looked for the stored response shortly before the commit.
    onceClosed(reply, () => { creations.delete(answering) })
  }
}

const toItem = <A extends ProjectAttributes>(attributes: A) =>
  ({ type: 'projects' as const, id: attributes.ulid, attributes })

async function findItem (db: Db, organizationId: string, id: string) {
  const attributes = await findProject(db, organizationId, id)
  return attributes && toItem(attributes)
}

// These rules read whether a member was sent, so only the value of `storage_mode` must be valid.
const custodyRule = (check: (body: CreateProjectBody & UpdateProjectBody) => void): Rule => ({
  reads: ['storage_mode'], check: ({ body }) => { check(body as CreateProjectBody & UpdateProjectBody) }
})

const CUSTODY_RULES: readonly Rule[] = [
  custodyRule(({ storage_mode, encryption_key }) => {
    if (storage_mode === 'client' && encryption_key !== undefined) {
      refuse('encryption_key', 'Only allowed with storage_mode server, because a client does not send its key')
    }
  }),
  custodyRule((body) => {
    if (body.storage_mode === 'client') requireKeyCheck(body)
    else refuseKeyCheck(body, 'Only allowed with storage_mode client')
  }),
  {
    reads: ['storage_mode', ...KEY_CHECK_MEMBERS],
    check: ({ body }) => { if ((body as CreateProjectBody).storage_mode === 'client') readKeyCheck(body as CreateProjectBody) }
  }
]

const ONLY_TO_CLIENT = 'Only allowed with a change of storage_mode to client'
const HANDOVER_RULES: readonly Rule[] = [
  custodyRule(({ storage_mode, encryption_key }) => {
    if (storage_mode !== 'server' && encryption_key !== undefined) {
      refuse('encryption_key', 'Only allowed with a change of storage_mode to server')
    }
  }),
  custodyRule((body) => { if (body.storage_mode !== 'client') refuseKeyCheck(body, ONLY_TO_CLIENT) }),
  custodyRule(({ storage_mode, key_proof }) => {
    if (storage_mode !== 'client' && key_proof !== undefined) refuse('key_proof', ONLY_TO_CLIENT)
  })
]

export const projects: Domain = async (app) => {
  app.get('/:organization/projects', {
    config: { access: 'project:read', filtersInHandler: true, hasLongPath: true },
    schema: {
      operationId: 'listProjects',
      summary: 'List projects, with the last change of each',
      description: 'Contains only the projects that the caller can access.',
      querystring: NamedListQuery,
      response: { 200: ProjectList }
    },
    handler: async (request) => {
      const principal = principalOf(request)
      const page = pageOf(request.query)
      const shown = {
        organization_id: principal.organization.id,
        ids: projectsInside(principal.slices),
        user_id: request.byTeams === null ? null : principal.person!.user_id
      }
      // With team roles, a search or a sort order, the duration of the query grows with the number of projects. Such a
      // query uses the pool for slow lists.
      const db = shown.user_id === null && isDefault(page) ? app.pages : app.lists
      const { rows, total } = await listProjects(db, shown, page)
      const changed = rows.filter(({ last_change }) => last_change !== null).map(({ ulid }) => ulid)
      // The last change can be at any level, so it is shown only to callers who may list the versions of all levels.
      const showsHistory = await reachOfWhole(app, request, changed, 'secret:history')
      // Changes the rows, because copies of them would take a sixth of the time of the request.
      for (const row of rows) if (!showsHistory(row.ulid)) row.last_change = null
      const data = rows.map(toItem)
      return { data, meta: pageMeta(page, total, rows.length) }
    }
  })

  app.get('/:organization/:project', {
    config: { access: 'project:read', at: 'project', etag: true, hasLongPath: true },
    schema: {
      operationId: 'getProject',
      summary: 'Get a project',
      description: 'Returns the attributes; the documents are at `…/secrets`.',
      response: { 200: Project.one }
    },
    handler: async (request) => {
      const { organization_id, project: { id } } = levelOf(request)
      return { data: await findItem(app.reads, organization_id, id) ?? fail('not_found') }
    }
  })

  app.post('/:organization/projects', {
    config: {
      access: 'project:create',
      // A token with restrictions cannot create a project, because a new project is outside of its restrictions.
      at: 'organization',
      rules: [slugRule('project'), ...CUSTODY_RULES],
      etag: true,
      audit: 'project.create',
      errors: ['slug_taken', 'plan_limit_reached']
    },
    schema: {
      operationId: 'createProject',
      summary: 'Create a project with its first key',
      description: 'The key encrypts all documents of the project. The server holds it, unless `storage_mode` is ' +
        '`client`.',
      body: CreateProjectBody,
      response: { 201: Project.one }
    },
    handler: async (request, reply) => unlessRunning(request, reply, async () => {
      const { organization } = principalOf(request)
      const { body } = request
      const id = ulid()
      const keyId = { organization_id: organization.id, project_id: id, version: 1 }
      const encryption_type = body.storage_mode ?? 'server'
      // The key derivation takes 200 ms, so it runs before the transaction.
      const key = encryption_type === 'client'
        ? registerClientKey(
          app.keyring, storageKeyOf(app.keyring, organization), keyId, { ...readKeyCheck(body), hint: body.key_hint }
        )
        : await derivations.run([organization.id], () => makeServerKey(
          app.keyring, keyId, { key: body.encryption_key, hint: body.key_hint }, app.costs.keyIterations
        ))
      if (encryption_type === 'client') warnOfIterations(reply, key.iterations)
      const created = await orSlugTaken(() => change(app.db, actorOf(request), {
        async load (db, counter) {
          await lockCurrentCanary(db, app.keyring)
          await requirePlanQuota(db, counter, 'projects')
          return chooseSlug(db, 'project', { organization_id: organization.id }, body)
        },
        decide: (slug) => ({
          async write (db) {
            await createProject(db, {
              id,
              organization_id: organization.id,
              name: body.name,
              slug,
              description: body.description ?? null,
              secret_format: body.secret_format ?? 'env',
              encryption_type,
              history_policy: body.history_policy ?? 'keep'
            }, key)
            return await findProject(db, organization.id, id) ?? fail('not_found')
          },
          events: [eventOf('project.create', id, {
            ...placeDetails({ project: { id, slug } }), slug, encryption_type, iterations: key.iterations
          })],
          answer: (project) => ({ status: 201, body: { data: toItem(project) } })
        })
      }))
      reply.code(201)
      return created.body
    })
  })

  app.patch('/:organization/:project', {
    config: {
      access: 'project:update',
      at: 'project',
      include: (request) => (request.body as UpdateProjectBody).storage_mode === undefined ? 'place' : 'key',
      rules: [slugRule('project'), ...HANDOVER_RULES],
      etag: true,
      changes: findItem,
      // Changing the custody of a key requires the same scope as rotating the key.
      mayNeed: ['key:rotate'],
      limitOfEffect: 'key_custody',
      audit: 'project.update',
      errors: [
        'slug_taken', 'key_proof_mismatch', 'key_proof_reveals_key', 'content_not_decryptable',
        'history_under_old_keys',
        'rotation_in_progress'
      ]
    },
    schema: {
      operationId: 'updateProject',
      summary: 'Change a project; omitted fields stay unchanged. `storage_mode` changes who holds the key',
      description: 'Documents stay as they are. A new slug changes the paths of everything in the project.',
      body: UpdateProjectBody,
      response: { 200: Project.one }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { body } = request
      requireSiblings(request, levelOf(request), body.slug)
      const handover = await prepareHandover(request, reply, body)
      const { id: projectId } = levelOf(request).project
      const updated = await orSlugTaken(() => changeLongIf(handover !== undefined, app, actorOf(request), {
        projectId,
        async load (db) {
          const project = await lockProjectOf(db, request, projectId)
          if (handover !== undefined) await requireSeen(db, app.keyring, project, handover.seen)
          await requireNewName(body.name, async () => (await findProject(db, organization.id, project.id))?.name)
          return project
        },
        decide: (project) => ({
          async write (db) {
            const { name, slug, description, secret_format, history_policy } = body
            await handover?.make(db, project)
            await updateProject(
              db, organization.id, project.id, { name, slug, description, secret_format, history_policy }
            )
            return await findProject(db, organization.id, project.id) ?? fail('not_found')
          },
          events: () => [{
            action: handover === undefined ? 'project.update' : 'key.change_custody',
            resource_type: 'project',
            resource_id: project.id,
            details: { ...placeDetails({ project }), members: Object.keys(body).join(' '), ...handover?.details }
          }],
          answer: (project) => ({ body: { data: toItem(project) } })
        })
      }))
      return updated.body
    }
  })

  app.delete('/:organization/:project', {
    config: {
      access: 'project:delete',
      at: 'project',
      limitOfEffect: 'level_deletion',
      changes: findItem,
      audit: ['project.delete', 'api-token.delete', 'workload.delete'],
      errors: ['conflict']
    },
    schema: {
      operationId: 'deleteProject',
      summary: 'Delete a project with everything below it, including documents and history',
      description: 'It takes effect at once, and the slug is free again.',
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { project } = levelOf(request)
      const below = { project_id: project.id }
      const { organization } = principalOf(request)
      const isLong = await isLongDeletion(app.reads, organization.id, below)
      await changeLongIf(isLong, app, actorOf(request), {
        projectId: project.id,
        inUse: 'conflict',
        // Counts only if no other request uses the project.
        async load (db) {
          const locked = await lockProjectOf(db, request, project.id)
          if (isLong) await app.countEffect(request, reply)
          return locked
        },
        decide: ({ id }) => ({
          write: async (db, lockCounter) => deleteLevel(
            db, organization.id, below, eventOf('project.delete', id, placeDetails({ project })), lockCounter,
            () => deleteProject(db, organization.id, id)
          ),
          events: (events) => events
        })
      })
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })

  // Validates a change of storage_mode before the transaction, because key derivations are slow.
  async function prepareHandover (request: FastifyRequest, reply: FastifyReply, body: UpdateProjectBody) {
    const { organization } = principalOf(request)
    const { storage_mode } = body
    if (storage_mode === undefined) return undefined
    const key = activeKeyOf(levelOf(request))
    const seen = { id: key.project_id, version: key.version, managed: key.managed }
    if (storage_mode === key.managed) {
      if (body.encryption_key !== undefined) {
        refuse('encryption_key', 'The server already holds the key; rotate the key to change it')
      }
      refuseKeyCheck(body, 'The client already holds the key; rotate the key to change it')
      return undefined
    }
    requireScope(request, 'key:rotate')
    // `countEffect` runs before the key derivation, which is expensive and shows whether a guessed key is right. In
    // both directions the audit event records that the server knew the key.
    const details = { from: key.managed, to: storage_mode, key_version: key.version, server_knew_key: true }
    if (storage_mode === 'server') {
      const keyString = body.encryption_key ??
        refuse('encryption_key', 'Required: the current key string, which the server will store')
      await app.countEffect(request, reply)
      return { ...await handToServer(app.keyring, organization, key, keyString), seen, details }
    }
    const keyCheck = readKeyCheck(body)
    await app.countEffect(request, reply)
    const difference = differenceOf(app.keyring, key, keyCheck)
    if (difference !== undefined) {
      refuse(`key_check_${difference}`, `Expected the ${difference} of the current key`)
    }
    const handover = await handToClient(app.keyring, organization, key, keyCheck, body.key_proof)
    const revealed = refuseRevealing(app.config, handover.revealed)
    return { ...handover, seen, details: { ...details, ...(revealed && { key_proof_reveals_key: true }) } }
  }
}

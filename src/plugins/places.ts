import type { TSchema } from '@sinclair/typebox'
import { ulid } from 'ulidx'
import {
  CreateEnvironmentBody, Environment, EnvironmentList, UpdateEnvironmentBody, type ListedEnvironment
} from '../../schemas/environments.ts'
import { NamedListQuery, NoContent } from '../../schemas/shapes.ts'
import { CreateTargetBody, Target, TargetList, UpdateTargetBody } from '../../schemas/targets.ts'
import { change } from '../changes/change.ts'
import { changeLongIf } from '../changes/long.ts'
import type { Db } from '../db/database.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import { levelOf, lockLevel, reachBelow, requireInside, requireSiblings } from '../http/guard/level-lookup.ts'
import { chooseSlug, orSlugTaken, slugRule } from '../http/routes/slugs.ts'
import type { Domain } from '../http/routes/types.ts'
import {
  createPlace, deletePlace, findPlace, listPlaces, updatePlace, type ListedPlace, type NewPlace, type Place,
  type PlaceKind
} from '../repositories/levels/places.ts'
import { eventOf, placeDetails, type AuditEvent } from '../repositories/audit/audit.ts'
import { fail } from '../rules/api-error.ts'
import { requireNewName } from '../rules/formats/names.ts'
import { answerPage, isDefault } from '../rules/pagination.ts'
import type { Place as LevelPlace } from '../rules/slices.ts'
import { deleteLevel, isLongDeletion } from '../vault/deletions.ts'

type CreateBody = CreateTargetBody & CreateEnvironmentBody

interface Kind {
  kind: PlaceKind
  /** The noun with its article, for summaries. */
  a: string
  parent: 'project' | 'target'
  parentPath: string
  answers: { one: TSchema, list: TSchema }
  /** The level of a row of the list. */
  placeOf: (row: ListedPlace) => LevelPlace
  bodies: { create: TSchema, update: TSchema }
  /** Values of the columns that only this kind has. */
  own: (body: CreateBody, target_id: string | undefined) => Pick<NewPlace, 'target_id' | 'status' | 'is_production'>
  /** Explains the level in the OpenAPI document. */
  meaning: string
  /** Deleting a target can be a long operation; deleting an environment deletes a single level. */
  deletion: { summary: string, isLong: boolean }
}

const placesOf = (
  { kind, a, parent, parentPath, answers, placeOf, bodies, own, meaning, deletion }: Kind
): Domain => async (app) => {
  const plural = `${kind}s` as const
  // The name of the kind in operation ids, such as `createTarget`.
  const Kind = `${kind[0]!.toUpperCase()}${kind.slice(1)}`
  const [listPath, path] = [`/:organization${parentPath}/${plural}`, `/:organization${parentPath}/:${kind}`]
  const toItem = ({ id, ...attributes }: Place) => ({ type: plural, id, attributes })
  const findItem = async (db: Db, organizationId: string, id: string) => {
    const row = await findPlace(db, kind, organizationId, id)
    return row && toItem(row)
  }
  const event = <V extends 'create' | 'update' | 'delete'>(
    verb: V, level: Parameters<typeof placeDetails>[0], details: AuditEvent['details'] = {}
  ): AuditEvent => {
    const action = `${kind}.${verb}` as `${PlaceKind}.${V}`
    return eventOf(action, level[kind]!.id, { ...placeDetails(level), ...details })
  }

  app.get(listPath, {
    config: { access: `${kind}:read`, at: parent, hasLongPath: true },
    schema: {
      operationId: `list${Kind}s`,
      summary: `List ${plural} of a ${parent}, with the last change of each`,
      description: meaning,
      querystring: NamedListQuery,
      response: { 200: answers.list }
    },
    handler: async (request) => {
      const { organization_id, level_id } = levelOf(request)
      const showsHistory = reachBelow(request, 'secret:history')
      const toListed = (place: ListedPlace) => {
        const { id, ...attributes } = place
        if (!showsHistory(placeOf(place))) attributes.last_change = null
        return { type: plural, id, attributes }
      }
      return answerPage(request.query, toListed, (page) =>
        listPlaces(isDefault(page) ? app.pages : app.lists, kind, organization_id, level_id, page))
    }
  })

  app.get(path, {
    config: { access: `${kind}:read`, at: kind, etag: true, hasLongPath: true },
    schema: {
      operationId: `get${Kind}`,
      summary: `Get ${a}`,
      description: 'Returns the attributes; the document is at `…/secrets`.',
      response: { 200: answers.one }
    },
    handler: async (request) => {
      const { organization_id, level_id } = levelOf(request)
      return { data: await findItem(app.reads, organization_id, level_id) ?? fail('not_found') }
    }
  })

  app.post(listPath, {
    config: {
      access: `${kind}:create`, at: parent, rules: [slugRule(kind)], etag: true, audit: `${kind}.create`, errors: ['slug_taken']
    },
    schema: {
      operationId: `create${Kind}`,
      summary: `Create ${a}`,
      description: 'The slug in its path is made from the name unless you send one.',
      body: bodies.create,
      response: { 201: answers.one }
    },
    handler: async (request, reply) => {
      const body = request.body as CreateBody
      const id = ulid()
      const created = await orSlugTaken(() => change(app.db, actorOf(request), {
        async load (db) {
          const { organization_id, project, target } = await lockLevel(db, request)
          const among = kind === 'target' ? { project_id: project.id } : { target_id: target!.id }
          const slug = await chooseSlug(db, kind, { organization_id, ...among }, body)
          return { organization_id, project, target, slug }
        },
        decide: ({ organization_id, project, target, slug }) => ({
          async write (db) {
            await createPlace(db, kind, {
              id,
              organization_id,
              project_id: project.id,
              name: body.name,
              slug,
              description: body.description ?? null,
              ...own(body, target?.id)
            } as unknown as NewPlace)
            return await findItem(db, organization_id, id) ?? fail('not_found')
          },
          events: [event('create', { project, target, [kind]: { id, slug } }, { slug })],
          answer: (data) => ({ status: 201, body: { data } })
        })
      }))
      return reply.code(201).send(created.body)
    }
  })

  app.patch(path, {
    config: {
      access: `${kind}:update`,
      at: kind,
      etag: true,
      rules: [slugRule(kind)],
      changes: findItem,
      audit: `${kind}.update`,
      errors: ['slug_taken']
    },
    schema: {
      operationId: `update${Kind}`,
      summary: `Change ${a}; omitted fields stay unchanged`,
      description: 'The document and its history stay. A new slug changes the paths.',
      body: bodies.update,
      response: { 200: answers.one }
    },
    handler: async (request) => {
      const body = request.body as UpdateTargetBody & UpdateEnvironmentBody
      const updated = await orSlugTaken(() => change(app.db, actorOf(request), {
        async load (db) {
          const level = await lockLevel(db, request)
          const { organization_id, level_id: id, project, environment } = level
          // Restrictions with `except_status` depend on the status, so only callers with access to the whole project
          // set the status.
          if (body.status !== undefined && body.status !== environment?.status) {
            requireInside(request, { project_id: project.id })
          }
          requireSiblings(request, level, body.slug)
          await requireNewName(body.name, async () => (await findPlace(db, kind, organization_id, id))?.name)
          return level
        },
        decide: ({ organization_id, level_id: id, ...level }) => ({
          async write (db) {
            await updatePlace(db, kind, organization_id, id, body as Partial<NewPlace>)
            return await findItem(db, organization_id, id) ?? fail('not_found')
          },
          events: [event('update', level, { members: Object.keys(body).join(' ') })],
          answer: (data) => ({ body: { data } })
        })
      }))
      return updated.body
    }
  })

  app.delete(path, {
    config: {
      access: `${kind}:delete`,
      at: kind,
      ...(deletion.isLong && { limitOfEffect: 'level_deletion' }),
      changes: findItem,
      audit: [`${kind}.delete`, 'api-token.delete', 'workload.delete', 'team-project.delete'],
      ...(deletion.isLong && { errors: ['conflict'] })
    },
    schema: {
      operationId: `delete${Kind}`,
      summary: deletion.summary,
      description: 'It takes effect at once, and the slug is free again.',
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const below = { [`${kind}_id`]: levelOf(request).level_id } as { target_id: string } | { environment_id: string }
      const { organization } = principalOf(request)
      const isLong = deletion.isLong && await isLongDeletion(app.reads, organization.id, below)
      await changeLongIf(isLong, app, actorOf(request), {
        projectId: levelOf(request).project.id,
        inUse: 'conflict',
        // Counts only if no other request uses the project.
        async load (db) {
          const level = await lockLevel(db, request)
          if (isLong) await app.countEffect(request, reply)
          return level
        },
        decide: (level) => ({
          write: async (db, lockCounter) => deleteLevel(
            db, organization.id, below, event('delete', level), lockCounter,
            ({ documents }) => deletePlace(db, kind, level[kind]!, documents), level.project.id
          ),
          events: (events) => events
        })
      })
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })
}

export const targets = placesOf({
  kind: 'target',
  a: 'a target',
  parent: 'project',
  parentPath: '/:project',
  answers: { one: Target.one, list: TargetList },
  placeOf: ({ project_id, id }) => ({ project_id, target_id: id }),
  bodies: { create: CreateTargetBody, update: UpdateTargetBody },
  own: () => ({}),
  meaning: 'A target is a part of the project that is deployed by itself: a service, an app or a job.',
  deletion: { summary: 'Delete a target with its environments, documents and history', isLong: true }
})

export const environments = placesOf({
  kind: 'environment',
  a: 'an environment',
  parent: 'target',
  parentPath: '/:project/:target',
  answers: { one: Environment.one, list: EnvironmentList },
  placeOf: ({ id, ...row }) => {
    const { project_id, target_id, status } = row as ListedEnvironment
    return { project_id, target_id, environment_id: id, status }
  },
  bodies: { create: CreateEnvironmentBody, update: UpdateEnvironmentBody },
  own: ({ status = 'development', is_production = status === 'production' }, target_id) =>
    ({ target_id: target_id!, status, is_production }),
  meaning: 'An environment is a stage of the target, such as `live` or `test`.',
  deletion: { summary: 'Delete an environment with its document and history', isLong: false }
})

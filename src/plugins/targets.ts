import { ulid } from 'ulidx'
import { ProjectParams } from '../../schemas/projects.ts'
import { ListQuery, NoContent } from '../../schemas/shapes.ts'
import { CreateTargetBody, Target, TargetParams, UpdateTargetBody } from '../../schemas/targets.ts'
import type { Db } from '../db/database.ts'
import { actorOf, principalOf } from '../http/actor.ts'
import { inLevel, levelOf } from '../http/places.ts'
import { chooseSlug, orSlugTaken, refuseReserved } from '../http/slugs.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import {
  createTarget, deleteTarget, findTarget, listTargets, updateTarget, type TargetRow
} from '../repositories/targets.ts'
import { fail } from '../rules/errors.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { deleteLevel, deletionRunner } from '../vault/removals.ts'

const toItem = ({ id, ...attributes }: TargetRow) => ({ type: 'targets' as const, id, attributes })

async function findItem (db: Db, organizationId: string, id: string) {
  const row = await findTarget(db, organizationId, id)
  return row && toItem(row)
}

export const targets: Domain = async (app) => {
  app.get('/:organization/:project/targets', {
    config: {
      access: 'target:read', at: 'project', formerly: '/organizations/:organization/projects/:project/targets'
    },
    schema: {
      operationId: 'listTargets',
      tags: ['targets'],
      summary: 'List targets of a project',
      params: ProjectParams,
      querystring: ListQuery,
      response: { 200: Target.list }
    },
    handler: async (request) => {
      const { organization_id, project } = levelOf(request)
      const page = pageOf(request.query)
      const { rows, total } = await listTargets(app.pages, organization_id, project.id, page)
      return { data: rows.map(toItem), meta: pageMeta(page, total, rows.length) }
    }
  })

  app.get('/:organization/:project/:target', {
    config: {
      access: 'target:read',
      at: 'target',
      tagged: true,
      formerly: '/organizations/:organization/projects/:project/targets/:target'
    },
    schema: {
      operationId: 'getTarget',
      tags: ['targets'],
      summary: 'Get a target',
      params: TargetParams,
      response: { 200: Target.one }
    },
    handler: async (request) => {
      const { organization_id, level_id } = levelOf(request)
      return { data: await findItem(app.reads, organization_id, level_id) ?? fail('not_found') }
    }
  })

  app.post('/:organization/:project/targets', {
    config: {
      access: 'target:create', at: 'project', tagged: true, audit: 'target.create', errors: ['slug_taken']
    },
    schema: {
      operationId: 'createTarget',
      tags: ['targets'],
      summary: 'Create a target',
      params: ProjectParams,
      body: CreateTargetBody,
      response: { 201: Target.one }
    },
    handler: async (request, reply) => {
      const { body } = request
      refuseReserved('target', body.slug)
      const created = await orSlugTaken(() => inLevel(app, request, async (db, { organization_id, project }) => {
        const slug = await chooseSlug(db, 'target', { organization_id, project_id: project.id }, body)
        const id = ulid()
        await createTarget(db, {
          id, organization_id, project_id: project.id, name: body.name, slug, description: body.description ?? null
        })
        await recordEvent(
          db, actorOf(request), { action: 'target.create', resource_type: 'target', resource_id: id, details: { slug } }
        )
        return findTarget(db, organization_id, id)
      }))
      return reply.code(201).send({ data: toItem(created!) })
    }
  })

  app.patch('/:organization/:project/:target', {
    config: {
      access: 'target:update',
      at: 'target',
      put: true,
      tagged: true,
      changes: findItem,
      audit: 'target.update',
      errors: ['slug_taken']
    },
    schema: {
      operationId: 'updateTarget',
      tags: ['targets'],
      summary: 'Change a target; what is left out stays',
      params: TargetParams,
      body: UpdateTargetBody,
      response: { 200: Target.one }
    },
    handler: async (request) => {
      const { body } = request
      refuseReserved('target', body.slug)
      const updated = await orSlugTaken(() => inLevel(app, request, async (db, { organization_id, level_id: id }) => {
        const { name, slug, description } = body
        await updateTarget(db, organization_id, id, { name, slug, description })
        const details = { members: Object.keys(body).join(' ') }
        await recordEvent(
          db, actorOf(request), { action: 'target.update', resource_type: 'target', resource_id: id, details }
        )
        return findTarget(db, organization_id, id)
      }))
      return { data: toItem(updated!) }
    }
  })

  app.delete('/:organization/:project/:target', {
    config: {
      access: 'target:delete',
      at: 'target',
      limitOfEffect: 'level_deletion',
      changes: findItem,
      audit: ['target.delete', 'api-token.delete'],
      errors: ['conflict']
    },
    schema: {
      operationId: 'deleteTarget',
      tags: ['targets'],
      summary: 'Delete a target with its environments, documents and history',
      params: TargetParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const below = { target_id: levelOf(request).target!.id }
      await inLevel(app, request, async (db, { organization_id, target }) => {
        const event = { action: 'target.delete', resource_type: 'target', resource_id: target!.id } as const
        await deleteLevel(db, actorOf(request), below, event, () => deleteTarget(db, organization_id, target!))
      }, deletionRunner(app, {
        organization: principalOf(request).organization,
        actor: actorOf(request),
        below,
        countLongOperation: () => app.countEffect(request, reply)
      }))
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })
}

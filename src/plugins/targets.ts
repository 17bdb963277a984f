import { ulid } from 'ulidx'
import { ProjectParams } from '../../schemas/projects.ts'
import { ListQuery, NoContent } from '../../schemas/shapes.ts'
import { CreateTargetBody, Target, TargetParams, UpdateTargetBody } from '../../schemas/targets.ts'
import { transaction } from '../db/database.ts'
import { actorOf } from '../http/actor.ts'
import { principalOf, requireInside } from '../http/access.ts'
import { deprecatedFor } from '../http/deprecated.ts'
import { chooseSlug, orSlugTaken, refuseReserved } from '../http/slugs.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import { findProject, lockProject } from '../repositories/projects.ts'
import { createTarget, deleteTarget, findTarget, listTargets, updateTarget, type TargetRow } from '../repositories/targets.ts'
import { fail } from '../rules/errors.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { deleteLevel } from '../vault/removals.ts'

const toItem = ({ id, ...attributes }: TargetRow) => ({ type: 'targets' as const, id, attributes })

export const targets: Domain = async (app) => {
  for (const { path, old } of [{ path: '/:organization/:project/targets', old: false }, { path: '/organizations/:organization/projects/:project/targets', old: true }]) {
    app.get(path, {
      config: { access: 'target:read' },
      schema: {
        operationId: old ? 'listTargetsLongPath' : 'listTargets',
        tags: ['targets'],
        summary: 'List targets of a project',
        deprecated: old,
        params: ProjectParams,
        querystring: ListQuery,
        response: { 200: Target.list }
      },
      ...(old && { preHandler: deprecatedFor('/api/v1/:organization/:project/targets') }),
      handler: async (request) => {
        const { organization } = principalOf(request)
        const project = await findProject(app.lists, organization.id, { slug: request.params.project }) ?? fail('not_found')
        requireInside(request, { project_id: project.ulid })
        const page = pageOf(request.query)
        const { rows, total } = await listTargets(app.lists, organization.id, project.ulid, page)
        return { data: rows.map(toItem), meta: pageMeta(page, total, rows.length) }
      }
    })
  }

  for (const { path, old } of [
    { path: '/:organization/:project/:target', old: false },
    { path: '/organizations/:organization/projects/:project/targets/:target', old: true }
  ]) {
    app.get(path, {
      config: { access: 'target:read' },
      schema: {
        operationId: old ? 'getTargetLongPath' : 'getTarget',
        tags: ['targets'],
        summary: 'Get a target',
        deprecated: old,
        params: TargetParams,
        response: { 200: Target.one }
      },
      ...(old && { preHandler: deprecatedFor('/api/v1/:organization/:project/:target') }),
      handler: async (request) => {
        const { project, target } = request.params
        const row = await findTarget(app.db, principalOf(request).organization.id, project, target) ?? fail('not_found')
        requireInside(request, { project_id: row.project_id, target_id: row.id })
        return { data: toItem(row) }
      }
    })
  }

  app.post('/:organization/:project/targets', {
    config: { access: 'target:create', audit: 'target.create', errors: ['slug_taken'] },
    schema: {
      operationId: 'createTarget',
      tags: ['targets'],
      summary: 'Create a target',
      params: ProjectParams,
      body: CreateTargetBody,
      response: { 201: Target.one }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { body, params } = request
      refuseReserved('target', body.slug)
      const created = await orSlugTaken(() => transaction(app.db, async (db) => {
        const project = await lockProject(db, organization.id, { slug: params.project }) ?? fail('not_found')
        requireInside(request, { project_id: project.id })
        const slug = await chooseSlug(db, 'target', { organization_id: organization.id, project_id: project.id }, body)
        const id = ulid()
        await createTarget(db, { id, organization_id: organization.id, project_id: project.id, name: body.name, slug, description: body.description ?? null })
        await recordEvent(db, actorOf(request), { action: 'target.create', resource_type: 'target', resource_id: id, details: { slug } })
        return findTarget(db, organization.id, params.project, slug)
      }))
      return reply.code(201).send({ data: toItem(created!) })
    }
  })

  for (const method of ['PUT', 'PATCH'] as const) {
    app.route({
      method,
      url: '/:organization/:project/:target',
      config: { access: 'target:update', audit: 'target.update', errors: ['slug_taken'] },
      schema: {
        operationId: method === 'PUT' ? 'putTarget' : 'updateTarget',
        tags: ['targets'],
        summary: 'Change a target; what is left out stays',
        params: TargetParams,
        body: UpdateTargetBody,
        response: { 200: Target.one }
      },
      handler: async (request) => {
        const { organization } = principalOf(request)
        const { body, params } = request
        refuseReserved('target', body.slug)
        const updated = await orSlugTaken(() => transaction(app.db, async (db) => {
          await lockProject(db, organization.id, { slug: params.project })
          const target = await findTarget(db, organization.id, params.project, params.target) ?? fail('not_found')
          requireInside(request, { project_id: target.project_id, target_id: target.id })
          const { name, slug, description } = body
          await updateTarget(db, organization.id, target.id, { name, slug, description })
          await recordEvent(db, actorOf(request), { action: 'target.update', resource_type: 'target', resource_id: target.id, details: { members: Object.keys(body).join(' ') } })
          return findTarget(db, organization.id, params.project, slug ?? params.target)
        }))
        return { data: toItem(updated!) }
      }
    })
  }

  app.delete('/:organization/:project/:target', {
    config: { access: 'target:delete', audit: ['target.delete', 'api-token.delete'] },
    schema: {
      operationId: 'deleteTarget',
      tags: ['targets'],
      summary: 'Delete a target with its environments, documents and history',
      params: TargetParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { project, target } = request.params
      await transaction(app.db, async (db) => {
        await lockProject(db, organization.id, { slug: project })
        const row = await findTarget(db, organization.id, project, target) ?? fail('not_found')
        requireInside(request, { project_id: row.project_id, target_id: row.id })
        const event = { action: 'target.delete', resource_type: 'target', resource_id: row.id } as const
        await deleteLevel(db, actorOf(request), { target_id: row.id }, event, () => deleteTarget(db, organization.id, row))
      })
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })
}

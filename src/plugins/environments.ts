import { ulid } from 'ulidx'
import { CreateEnvironmentBody, Environment, EnvironmentParams, UpdateEnvironmentBody } from '../../schemas/environments.ts'
import { ListQuery, NoContent } from '../../schemas/shapes.ts'
import { TargetParams } from '../../schemas/targets.ts'
import { transaction } from '../db/database.ts'
import { actorOf } from '../http/actor.ts'
import { principalOf, requireInside } from '../http/access.ts'
import { deprecatedFor } from '../http/deprecated.ts'
import { chooseSlug, orSlugTaken, refuseReserved } from '../http/slugs.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import {
  createEnvironment, deleteEnvironment, findEnvironment, listEnvironments, updateEnvironment, type EnvironmentRow
} from '../repositories/environments.ts'
import { lockProject } from '../repositories/projects.ts'
import { findTarget } from '../repositories/targets.ts'
import { fail } from '../rules/errors.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { deleteLevel } from '../vault/removals.ts'

const toItem = ({ id, ...attributes }: EnvironmentRow) => ({ type: 'environments' as const, id, attributes })
const placeOf = ({ id, project_id, target_id }: EnvironmentRow) => ({ project_id, target_id, environment_id: id })

export const environments: Domain = async (app) => {
  for (const { path, old } of [
    { path: '/:organization/:project/:target/environments', old: false },
    { path: '/organizations/:organization/projects/:project/targets/:target/environments', old: true }
  ]) {
    app.get(path, {
      config: { access: 'environment:read' },
      schema: {
        operationId: old ? 'listEnvironmentsLongPath' : 'listEnvironments',
        tags: ['environments'],
        summary: 'List environments of a target',
        deprecated: old,
        params: TargetParams,
        querystring: ListQuery,
        response: { 200: Environment.list }
      },
      ...(old && { preHandler: deprecatedFor('/api/v1/:organization/:project/:target/environments') }),
      handler: async (request) => {
        const { project, target } = request.params
        const { organization } = principalOf(request)
        const parent = await findTarget(app.lists, organization.id, project, target) ?? fail('not_found')
        requireInside(request, { project_id: parent.project_id, target_id: parent.id })
        const page = pageOf(request.query)
        const { rows, total } = await listEnvironments(app.lists, organization.id, parent, page)
        return { data: rows.map(toItem), meta: pageMeta(page, total, rows.length) }
      }
    })
  }

  for (const { path, old } of [
    { path: '/:organization/:project/:target/:environment', old: false },
    { path: '/organizations/:organization/projects/:project/targets/:target/environments/:environment', old: true }
  ]) {
    app.get(path, {
      config: { access: 'environment:read' },
      schema: {
        operationId: old ? 'getEnvironmentLongPath' : 'getEnvironment',
        tags: ['environments'],
        summary: 'Get an environment',
        deprecated: old,
        params: EnvironmentParams,
        response: { 200: Environment.one }
      },
      ...(old && { preHandler: deprecatedFor('/api/v1/:organization/:project/:target/:environment') }),
      handler: async (request) => {
        const { project, target, environment } = request.params
        const row = await findEnvironment(app.db, principalOf(request).organization.id, project, target, environment) ?? fail('not_found')
        requireInside(request, placeOf(row))
        return { data: toItem(row) }
      }
    })
  }

  app.post('/:organization/:project/:target/environments', {
    config: { access: 'environment:create', audit: 'environment.create', errors: ['slug_taken'] },
    schema: {
      operationId: 'createEnvironment',
      tags: ['environments'],
      summary: 'Create an environment',
      params: TargetParams,
      body: CreateEnvironmentBody,
      response: { 201: Environment.one }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { body, params: { project, target } } = request
      refuseReserved('environment', body.slug)
      const created = await orSlugTaken(() => transaction(app.db, async (db) => {
        await lockProject(db, organization.id, { slug: project })
        const parent = await findTarget(db, organization.id, project, target) ?? fail('not_found')
        requireInside(request, { project_id: parent.project_id, target_id: parent.id })
        const slug = await chooseSlug(db, 'environment', { organization_id: organization.id, target_id: parent.id }, body)
        const id = ulid()
        const status = body.status ?? 'development'
        await createEnvironment(db, {
          id,
          organization_id: organization.id,
          project_id: parent.project_id,
          target_id: parent.id,
          name: body.name,
          slug,
          description: body.description ?? null,
          status,
          is_production: body.is_production ?? status === 'production'
        })
        await recordEvent(db, actorOf(request), { action: 'environment.create', resource_type: 'environment', resource_id: id, details: { slug } })
        return findEnvironment(db, organization.id, project, target, slug)
      }))
      return reply.code(201).send({ data: toItem(created!) })
    }
  })

  for (const method of ['PUT', 'PATCH'] as const) {
    app.route({
      method,
      url: '/:organization/:project/:target/:environment',
      config: { access: 'environment:update', audit: 'environment.update', errors: ['slug_taken'] },
      schema: {
        operationId: method === 'PUT' ? 'putEnvironment' : 'updateEnvironment',
        tags: ['environments'],
        summary: 'Change an environment; what is left out stays',
        params: EnvironmentParams,
        body: UpdateEnvironmentBody,
        response: { 200: Environment.one }
      },
      handler: async (request) => {
        const { organization } = principalOf(request)
        const { body, params: { project, target, environment } } = request
        refuseReserved('environment', body.slug)
        const updated = await orSlugTaken(() => transaction(app.db, async (db) => {
          await lockProject(db, organization.id, { slug: project })
          const row = await findEnvironment(db, organization.id, project, target, environment) ?? fail('not_found')
          requireInside(request, placeOf(row))
          const { name, slug, description, status, is_production } = body
          await updateEnvironment(db, organization.id, row.id, { name, slug, description, status, is_production })
          await recordEvent(db, actorOf(request), { action: 'environment.update', resource_type: 'environment', resource_id: row.id, details: { members: Object.keys(body).join(' ') } })
          return findEnvironment(db, organization.id, project, target, slug ?? environment)
        }))
        return { data: toItem(updated!) }
      }
    })
  }

  app.delete('/:organization/:project/:target/:environment', {
    config: { access: 'environment:delete', audit: ['environment.delete', 'api-token.delete'] },
    schema: {
      operationId: 'deleteEnvironment',
      tags: ['environments'],
      summary: 'Delete an environment with its document and history',
      params: EnvironmentParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { organization } = principalOf(request)
      const { project, target, environment } = request.params
      await transaction(app.db, async (db) => {
        await lockProject(db, organization.id, { slug: project })
        const row = await findEnvironment(db, organization.id, project, target, environment) ?? fail('not_found')
        requireInside(request, placeOf(row))
        const event = { action: 'environment.delete', resource_type: 'environment', resource_id: row.id } as const
        await deleteLevel(db, actorOf(request), { environment_id: row.id }, event, ({ documents }) => deleteEnvironment(db, organization.id, row, documents))
      })
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })
}
